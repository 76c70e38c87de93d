"""What the documents tell a newcomer to type is typed, as written, in an empty home."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.provider_thread import Played, played

ROOT = Path(__file__).parents[2]

KEY = "sk-test-51c2a80e9f7d4b36"

_BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)


def commands(document: str) -> list[str]:
    """Return the lines of a document's shell blocks, comments left out."""
    lines = [line for block in _BLOCK.findall((ROOT / document).read_text()) for line in block.splitlines()]
    return [line.split("  #")[0].strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def type_in(command: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Type a command into a shell at the root of the checkout; a chat gets one line to answer."""
    # What an outer make hands down would make an inner one talk.
    ours = ("PALYRA_", "MAKE", "MFLAGS")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environ["PALYRA_HOME"] = str(home)
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env=environ,
        input="hello\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def within_reach(command: str, claude: Played) -> str:
    """Return a command as it was written, but for where Anthropic answers: no test asks the real one."""
    return f"{command} --base-url {claude.url}" if "providers add anthropic" in command else command


@pytest.mark.parametrize("document", ["README.md", "docs/quickstart.md"])
def test_every_command_works_as_written(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    found = commands(document)
    with played(models=("llama3.2",)) as ollama, played(key=KEY) as claude:
        monkeypatch.setenv("OLLAMA_HOST", ollama.url.removeprefix("http://").removesuffix("/v1"))
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        try:
            for command in found:
                if command == "make test":
                    continue  # what runs this very test
                done = type_in(within_reach(command, claude), home)
                assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        finally:
            type_in("palyra down", home)
        asked = [len(ollama.questions), len(claude.questions)]
    assert len(found) > 5
    assert asked == ([3, 3] if document == "README.md" else [0, 0])


def test_a_piped_message_gets_nothing_but_its_answer_on_standard_output(tmp_path: Path) -> None:
    done = type_in('echo "what time is it?" | make run', tmp_path / "home")
    assert done.stdout.startswith("It is ")
    assert len(done.stdout.strip().splitlines()) == 1
