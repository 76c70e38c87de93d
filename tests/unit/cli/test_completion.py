"""What a shell is told when somebody presses Tab."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from palyra.cli.app import COMMANDS
from tests.support.needs import BASH, needs
from tests.unit.cli.door import Cli

ENOUGH_SECONDS = 1.0
"""Many times what it takes of the processor: a shell that hangs at Tab is what is looked for."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a `palyra` that runs this source."""
    program = tmp_path / "bin" / "palyra"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m palyra "$@"\n')
    program.chmod(0o755)
    return program.parent


def completed(folder: Path, script: str, *words: str) -> list[str]:
    """Return what bash offers for the last word."""
    asked = " ".join(f"'{word}'" for word in words)
    told = f"""
{script}
COMP_WORDS=({asked}); COMP_CWORD={len(words) - 1}
_palyra_completion palyra
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", told], capture_output=True, text=True, check=True, env=environ, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.split()


def cpu_seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@needs(BASH)
def test_bash_finishes_commands_and_their_options(cli: Cli, folder: Path) -> None:
    script = cli("completion", "bash").out

    assert set(completed(folder, script, "palyra", "")) == set(COMMANDS)
    assert completed(folder, script, "palyra", "sess") == ["sessions"]
    assert completed(folder, script, "palyra", "config", "t") == ["target"]
    assert completed(folder, script, "palyra", "--profile", "work", "tokens", "re") == ["revoke"]
    assert completed(folder, script, "palyra", "config", "show", "--eff") == ["--effective"]
    assert completed(folder, script, "palyra", "tokens", "create", "x", "--scope", "a") == ["admin"]


@needs(BASH)
def test_the_answer_comes_before_one_gets_impatient(cli: Cli, folder: Path) -> None:
    script = cli("completion", "bash").out
    taken = []
    for _ in range(3):
        before = cpu_seconds_of_children()
        completed(folder, script, "palyra", "conf")
        taken.append(cpu_seconds_of_children() - before)
    assert min(taken) < ENOUGH_SECONDS


def test_the_commands_are_told_without_importing_any() -> None:
    code = (
        "import os, sys; os.environ.update(_PALYRA_COMPLETE='bash_complete', COMP_WORDS='palyra ', COMP_CWORD='1')\n"
        "from palyra.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, [n for n in sys.modules if 'palyra.' in n], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "plain,doctor" in done.stdout
    assert done.stderr.startswith("0 ")
    assert "palyra.config'" not in done.stderr
    assert "palyra.gateway" not in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(cli: Cli, shell: str) -> None:
    result = cli("completion", shell)
    assert (result.code, result.err) == (0, "")
    assert f"{shell}_complete" in result.out
    assert json.loads(cli("completion", shell, "--json").out) == {"shell": shell, "script": result.out[:-1]}


def test_another_shell_is_refused(cli: Cli) -> None:
    result = cli("completion", "tcsh")
    assert (result.code, result.out) == (2, "")
    assert "bash" in result.err
