"""`palyra providers add` finds out how a model calls tools: with a real daemon, and a server that plays the model."""

import json
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from palyra.core.model.provider_status import PROBE_CITY, PROBE_TOOL
from tests.e2e.conftest import NewDaemon
from tests.support.command import command
from tests.support.daemon import Daemon
from tests.support.model_server import Asked, Line, Reply, answer, silent, stream
from tests.support.provider_thread import SAYS, Played, called, played, said, wants_call

REFUSES = answer(400, {"error": {"message": "this model does not support tools", "type": "invalid_request_error"}})
CALL = {"tool": PROBE_TOOL.name, "arguments": {"city": PROBE_CITY}}
ASKS_FOR_CALL = b"Call the tool"


@pytest.fixture
def daemon(new_sqlite_daemon: NewDaemon) -> Daemon:
    made = new_sqlite_daemon(model_provider=None, model_script=None)
    made.home.path.mkdir(mode=0o700, parents=True)
    made.home.config.write_text("# Mine.\n")
    made.home.config.chmod(0o600)
    return made.start()


@pytest.fixture
def provider() -> Iterator[Played]:
    with played() as made:
        yield made


def offers(asked: Asked) -> bool:
    return bool(asked.json().get("tools"))


def is_held(asked: Asked) -> bool:
    return "response_format" in asked.json()


def held_to_schema(asked: Asked) -> str:
    """Return what a model says that is held to the form of a call or an answer."""
    return said(asked, json.dumps(CALL if ASKS_FOR_CALL in asked.body else {"answer": SAYS}))


def playing(*, native: Reply | None = None, schema: Reply | None = None) -> Reply:
    """Return a server that answers as it is told when tools are offered, when a schema is set, and well otherwise."""

    async def reply(asked: Asked, line: Line) -> None:
        if offers(asked) and native is not None:
            await native(asked, line)
        elif is_held(asked) and schema is not None:
            await schema(asked, line)
        else:
            await stream(said(asked))(asked, line)

    return reply


def saying(text: str) -> Reply:
    async def reply(asked: Asked, line: Line) -> None:
        await stream(said(asked, text))(asked, line)

    return reply


async def keeps_to_schema(asked: Asked, line: Line) -> None:
    await stream(held_to_schema(asked))(asked, line)


async def calls_always(asked: Asked, line: Line) -> None:
    await stream(called(asked))(asked, line)


async def calls_elsewhere(asked: Asked, line: Line) -> None:
    await stream(called(asked, "London") if wants_call(asked) else said(asked))(asked, line)


def add(daemon: Daemon, provider: Played, *args: str) -> Any:
    given = ("providers", "add", "mine", "--base-url", provider.url, "--model", "tiny", *args)
    done = command(daemon.home.path, *given, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)["tools"]


def mode(daemon: Daemon) -> str | None:
    """Return what the settings say of the model's tools."""
    provider = tomllib.loads(daemon.home.config.read_text())["model"]["providers"]["mine"]
    found: str | None = provider.get("models", {}).get("tiny", {}).get("tools")
    return found


def test_a_model_that_calls_tools_by_itself_is_left_to(daemon: Daemon, provider: Played) -> None:
    tools = add(daemon, provider)
    assert (tools["mode"], tools["tested"], mode(daemon)) == ("native", True, "native")
    assert len(provider.questions) == 3, "a hello, a call, and a hello with a tool at hand"
    assert all(len(asked.body) < 2_000 for asked in provider.questions), "few tokens"
    assert daemon.sessions() == [], "the test is out of the way"


NATIVE_FAILS: dict[str, tuple[Reply, str]] = {
    "the server ignores tools": (saying("It is sunny."), "did not call"),
    "the server refuses tools": (REFUSES, "does not support tools"),
    "the call comes as text": (saying(json.dumps({"name": PROBE_TOOL.name, "arguments": {}})), "did not call"),
    "the server breaks": (answer(500, {"error": {"message": "tools param requires --jinja flag"}}), "jinja"),
    "wrong arguments": (calls_elsewhere, "wrong arguments"),
    "calls at every turn": (calls_always, "only to say hello"),
}


@pytest.mark.parametrize("case", NATIVE_FAILS)
def test_who_does_not_is_held_to_a_schema_if_that_works(daemon: Daemon, provider: Played, *, case: str) -> None:
    native, why = NATIVE_FAILS[case]
    provider.instead = playing(native=native, schema=keeps_to_schema)
    tools = add(daemon, provider)
    assert (tools["mode"], tools["tested"], mode(daemon)) == ("schema", True, "schema")
    assert why in tools["reason"].partition("native: ")[2]


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(answer(400, {"error": {"message": "response_format is not supported"}}), id="refused"),
        pytest.param(saying("I would look out of the window."), id="ignored"),
        pytest.param(saying(json.dumps(CALL)), id="calls at every turn"),
    ],
)
def test_a_model_that_calls_tools_in_no_way_gets_none_and_can_talk(
    daemon: Daemon, provider: Played, *, schema: Reply
) -> None:
    provider.instead = playing(native=REFUSES, schema=schema)
    tools = add(daemon, provider, "--default")
    assert (tools["mode"], tools["tested"], mode(daemon)) == ("none", True, "none")
    before = len(provider.questions)
    run = daemon.finished(daemon.send("hello")["run_id"])
    assert run["status"] == "done"
    (asked,) = provider.questions[before:]
    assert not offers(asked)
    assert not is_held(asked)


def test_a_server_that_is_too_slow_with_tools_is_not_waited_for(daemon: Daemon, provider: Played) -> None:
    provider.instead = playing(native=silent, schema=keeps_to_schema)
    tools = add(daemon, provider)
    assert (tools["mode"], mode(daemon)) == ("schema", "schema")
    assert "native: it took longer than 20 s" in tools["reason"]
    statuses = [run["status"] for run in daemon.runs()]
    assert statuses.count("cancelled") == 1, "nobody is left waiting"


def test_a_failure_that_says_nothing_about_tools_decides_nothing(daemon: Daemon, provider: Played) -> None:
    provider.instead = playing(native=answer(402, {"error": {"message": "insufficient credit"}}))
    tools = add(daemon, provider)
    assert (tools["mode"], tools["tested"], mode(daemon)) == (None, False, None)
    assert "models" not in tomllib.loads(daemon.home.config.read_text())["model"]["providers"]["mine"]


def test_what_a_person_says_holds_and_is_not_tested(daemon: Daemon, provider: Played) -> None:
    tools = add(daemon, provider, "--tools", "schema")
    assert (tools["mode"], tools["tested"], mode(daemon)) == ("schema", False, "schema")
    assert len(provider.questions) == 1, "the hello alone"


def test_without_a_test_the_default_stays_and_is_told_to_be_untested(daemon: Daemon, provider: Played) -> None:
    given = ("providers", "add", "mine", "--base-url", provider.url, "--model", "tiny", "--no-test")
    done = command(daemon.home.path, *given)
    assert done.returncode == 0
    assert "Tools: not tested" in done.stdout
    assert mode(daemon) is None
    assert provider.questions == []


def test_the_choice_is_told_in_one_line_with_the_way_to_change_it(daemon: Daemon, provider: Played) -> None:
    provider.instead = playing(native=REFUSES, schema=keeps_to_schema)
    done = command(daemon.home.path, "providers", "add", "mine", "--base-url", provider.url, "--model", "tiny")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Tools:")]
    assert line.startswith("Tools: schema; it calls tools when its answers are restricted by a JSON Schema (native: ")
    assert '[model.providers.mine.models."tiny"]' in line
    assert "--replace --tools" in line


def test_one_that_is_replaced_is_tested_again_and_keeps_what_else_is_said_of_the_model(
    daemon: Daemon, provider: Played
) -> None:
    provider.instead = playing(native=REFUSES, schema=REFUSES)
    add(daemon, provider)
    daemon.home.config.write_text(daemon.home.config.read_text() + "window_tokens = 16384\n")
    assert mode(daemon) == "none"
    provider.instead = None
    add(daemon, provider, "--replace")
    card = tomllib.loads(daemon.home.config.read_text())["model"]["providers"]["mine"]["models"]["tiny"]
    assert card == {"tools": "native", "window_tokens": 16384}
    assert daemon.home.config.read_text().startswith("# Mine.\n")
