"""Once it is warmed up, a daemon answers its first message without loading code: whoever writes first does not wait.

A finder in front of all others writes the name of each module that is looked for to the output of the process. No time
is measured here; `scripts/bench start` does that.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.bench.turns import TEXT, grpc_turns, run
from tests.e2e.conftest import NewDaemon
from tests.e2e.test_bad_models import calls
from tests.support.daemon import Daemon, warmed_up
from tests.support.provider_thread import Played, played

KEY = "not-a-shape-that-anybody-knows-51c7"
REMOTE = """\
[model]
provider = "acme"

[model.providers.acme]
dialect = "{dialect}"
base_url = "{url}"
key = "file:{key}"
model = "tiny"
"""
FINDER = """\
import os, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        os.write(2, f"imports {name}\\n".encode())

sys.meta_path.insert(0, Finder())
"""
CALLS = [{"do": "call", "tool": "time.now", "arguments": {}}]
ASKS_THE_TIME = {"rules": [{"turns": [CALLS, [{"do": "text", "text": "It is late."}]]}]}


@pytest.fixture
def provider() -> Iterator[Played]:
    with played(key=KEY) as made:
        yield made


@pytest.fixture(autouse=True)
def _imports_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(FINDER)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def over_http(daemon: Daemon) -> None:
    assert list(daemon.chat(TEXT, key="first"))[-1].kind == "run_completed"


def over_grpc(daemon: Daemon) -> None:
    async def turn() -> None:
        async with grpc_turns(daemon, ["first"]) as [take]:
            await take()

    run(turn())


def over_v1(daemon: Daemon) -> None:
    with OpenAI(base_url=f"{daemon.address}/v1", api_key=daemon.token) as client:
        answer = client.chat.completions.create(model="palyra", messages=[{"role": "user", "content": TEXT}])
    assert answer.choices[0].message.content


def over_v1_responses(daemon: Daemon) -> None:
    with OpenAI(base_url=f"{daemon.address}/v1", api_key=daemon.token) as client:
        assert client.responses.create(model="palyra", input=TEXT).output_text


OPENAI_ROUTES = "palyra.gateway.http.openai."


def imported(daemon: Daemon) -> list[str]:
    """Return the modules that the process has imported so far, or has tried to."""
    lines = daemon.output().splitlines()
    return [line.removeprefix("imports ") for line in lines if line.startswith("imports ")]


def imported_by(turn: Callable[[Daemon], None], daemon: Daemon) -> list[str]:
    """Return the modules that the first turn of a daemon imports."""
    daemon.start()
    warmed_up(daemon)
    before = imported(daemon)
    assert "palyra.daemon.serve" in before  # else nothing is told, and nothing proved
    turn(daemon)
    return imported(daemon)[len(before) :]


@pytest.mark.parametrize("turn", [over_http, over_grpc])
def test_a_first_turn_imports_nothing(new_sqlite_daemon: NewDaemon, turn: Callable[[Daemon], None]) -> None:
    assert imported_by(turn, new_sqlite_daemon(program=True, model_provider=None, model_script=None)) == []


@pytest.mark.parametrize("turn", [over_v1, over_v1_responses])
def test_a_first_turn_over_v1_imports_its_routes_alone(
    new_sqlite_daemon: NewDaemon, turn: Callable[[Daemon], None]
) -> None:
    # Most daemons are never asked there: a megabyte that they do not hold.
    modules = imported_by(turn, new_sqlite_daemon(program=True, model_provider=None, model_script=None))

    assert modules
    assert [name for name in modules if not name.startswith(OPENAI_ROUTES)] == []


def test_a_first_call_of_a_tool_imports_nothing(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(ASKS_THE_TIME, program=True)

    assert imported_by(over_http, daemon) == []

    [run_id] = [run["run_id"] for run in daemon.runs()]
    assert "tool_finished" in [line.kind for line in daemon.tape(f"/runs/{run_id}")]


@pytest.mark.parametrize("dialect", ["openai", "responses", "anthropic", "gemini"])
def test_a_first_turn_of_a_remote_model_imports_nothing(
    new_sqlite_daemon: NewDaemon, provider: Played, tmp_path: Path, *, dialect: str
) -> None:
    assert imported_by(over_http, remote(new_sqlite_daemon, provider, tmp_path, dialect=dialect)) == []

    assert len(provider.questions) == 1


def test_a_first_call_of_a_remote_model_imports_nothing(
    new_sqlite_daemon: NewDaemon, provider: Played, tmp_path: Path
) -> None:
    provider.instead = calls("{}")

    assert imported_by(over_http, remote(new_sqlite_daemon, provider, tmp_path, dialect="openai")) == []

    assert len(provider.questions) == 2


def test_without_a_remote_model_its_client_is_not_loaded(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(program=True).start()
    warmed_up(daemon)

    assert "cedarpy" in imported(daemon)
    assert "aiohttp" not in imported(daemon)  # 8 MB that this daemon has no use for


def remote(new_daemon: NewDaemon, provider: Played, folder: Path, *, dialect: str) -> Daemon:
    """Prepare a daemon whose model is that of the provider."""
    key = folder / "key"
    key.write_text(KEY)
    daemon = new_daemon(program=True, model_provider=None, model_script=None)
    daemon.home.path.mkdir(mode=0o700, parents=True)
    daemon.home.config.write_text(REMOTE.format(url=provider.url, key=key, dialect=dialect))
    daemon.home.config.chmod(0o600)
    return daemon
