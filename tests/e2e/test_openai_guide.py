"""The guide to `/v1`: what it tells to type is typed, as written but for the port."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import NewDaemon
from tests.support.needs import CURL, needs

GUIDE = Path(__file__).parents[2] / "docs/guides/openai-api.md"


def blocks(kind: str) -> str:
    return "\n".join(re.findall(rf"```{kind}\n(.*?)```", GUIDE.read_text(), re.DOTALL))


@needs(CURL)
def test_the_guide_works_as_written(new_sqlite_daemon: NewDaemon, tmp_path: Path) -> None:
    daemon = new_sqlite_daemon(home=tmp_path / ".palyra", model_provider="embedded").start()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PALYRA_")}
    environ |= {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}"}
    program = tmp_path / "program.py"
    program.write_text(blocks("python"))
    script = "set -e\n" + blocks("sh").replace("http://127.0.0.1:7717", daemon.address) + f"\npython {program}\n"
    done = subprocess.run(
        ["bash", "-c", script], env=environ, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("built-in helper") >= 3
    assert "data: [DONE]" in done.stdout
