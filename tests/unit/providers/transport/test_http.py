"""The HTTP library is loaded by who asks a model, and by nobody else; and a request waits for its descriptor."""

import asyncio
import subprocess
import sys

import pytest

from palyra.providers.transport.http import ProviderHttpClient, RequestFailed
from tests.support.descriptors import no_descriptors, waits
from tests.support.eventually import eventually
from tests.support.model_server import answer, model_server

PROGRAM = """
import asyncio, sys
import palyra.daemon.serve, palyra.providers.transport.remote_provider, palyra.providers.registry
from palyra.core.model.catalog import DialectName
from palyra.providers.transport.http import ProviderHttpClient, RequestFailed
for each in (DialectName.OPENAI, DialectName.RESPONSES, DialectName.ANTHROPIC, DialectName.GEMINI):
    palyra.providers.registry.load_dialect(each)

async def ask():
    http = ProviderHttpClient()
    assert "aiohttp" not in sys.modules, "loaded before it is needed"
    try:
        await http.get("http://127.0.0.1:1/", headers={}, seconds=5)
    except RequestFailed as error:
        assert "the connection was refused" in error.why, error.why
    await http.close()
    assert "aiohttp" in sys.modules

asyncio.run(ask())
"""


def test_an_idle_daemon_does_not_load_the_http_library() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


async def test_a_request_to_a_provider_waits_for_a_descriptor(caplog: pytest.LogCaptureFixture) -> None:
    http = ProviderHttpClient()
    async with model_server(answer(200, {"data": []})) as server:
        # What is loaded when it is first used is loaded now.
        with pytest.raises(RequestFailed):
            await http.get("http://127.0.0.1:1/", headers={}, seconds=30)
        with no_descriptors():
            asking = asyncio.create_task(http.get(f"{server.url}/models", headers={}, seconds=30))
            await eventually(lambda: waits(caplog))
        async with await asking as answered:
            assert answered.status == 200
    await http.close()
