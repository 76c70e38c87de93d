"""The HTTP library is loaded by who asks a model, and by nobody else."""

import subprocess
import sys

PROGRAM = """
import asyncio, sys
import palyra.daemon.serve, palyra.providers.remote, palyra.providers.registry
from palyra.core.model import Dialect
from palyra.providers.http import Http, LineFailed
for each in (Dialect.OPENAI, Dialect.RESPONSES, Dialect.ANTHROPIC, Dialect.GEMINI):
    palyra.providers.registry.dialect(each)

async def ask():
    http = Http()
    assert "aiohttp" not in sys.modules, "loaded before it is needed"
    try:
        await http.get("http://127.0.0.1:1/", headers={}, seconds=5)
    except LineFailed as error:
        assert "no server listens there" in error.why, error.why
    await http.close()
    assert "aiohttp" in sys.modules

asyncio.run(ask())
"""


def test_an_idle_daemon_does_not_load_the_http_library() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
