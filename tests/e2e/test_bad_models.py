"""Whatever a provider of models sends: its kind is on the tape, the person is told in one sentence without a key in it,
and the daemon goes on."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.e2e.conftest import NewDaemon
from tests.e2e.proof import prove
from tests.support.daemon import Daemon, Json, Watcher, until
from tests.support.model_server import (
    Asked,
    Line,
    Reply,
    answer,
    breaks_off,
    echo_key,
    endless,
    raw,
    silent,
    stalls,
    stream,
)
from tests.support.provider_thread import SAYS, Played, played, said

KEY = "not-a-shape-that-anybody-knows-51c7"
SETTINGS = """\
[model]
provider = "acme"

[model.providers.acme]
dialect = "openai"
base_url = "{url}"
key = "file:{key}"
model = "tiny"
max_attempts = 1
first_byte_timeout_seconds = {patience}
read_timeout_seconds = {patience}
"""


def piece(delta: object, finish: str | None = None) -> str:
    chunk = {"id": "c1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return f"data: {json.dumps(chunk)}\n\n"


def calls(*written: str) -> Reply:
    """Call for the time so often, with one id for all, and answer well once results are there."""
    drafts = [
        {"index": index, "id": "call_1", "function": {"name": "time_now", "arguments": arguments}}
        for index, arguments in enumerate(written)
    ]

    async def reply(asked: Asked, line: Line) -> None:
        done = any(message["role"] == "tool" for message in asked.json()["messages"])
        body = said(asked) if done else piece({"tool_calls": drafts}) + piece({}, "tool_calls") + "data: [DONE]\n\n"
        await stream(body)(asked, line)

    return reply


TEXT = piece({"content": "la "})
TOO_LONG = {"error": {"message": "maximum context length is 10 tokens", "code": "context_length_exceeded"}}

FAILING: dict[str, tuple[Reply, str]] = {
    "wrong key": (echo_key(401), "auth"),
    "no leave": (echo_key(403), "permission"),
    "unknown model": (answer(404, {"error": {"message": "The model does not exist", "code": "x"}}), "permission"),
    "no credit": (answer(402, {"error": {"message": "Insufficient Balance"}}), "quota"),
    "too much": (answer(429, {"error": {"message": "Slow down"}}, headers={"Retry-After": "1000"}), "rate_limit"),
    "a web page": (answer(200, "<html>Sign in</html>", headers={"Content-Type": "text/html"}), "malformed"),
    "half a json": (stream(TEXT + 'data: {"id": "c1", "choi\n\n'), "malformed"),
    "half a letter": (stream(TEXT.encode().replace(b"la ", b"l\xc3")), "malformed"),
    "an endless stream": (endless(TEXT.replace("la ", "la " * 300)), "malformed"),
    "an error inside": (stream(TEXT + 'data: {"error": {"message": "On fire", "code": 500}}\n\n'), "unavailable"),
    "a redirect": (answer(307, b"", headers={"Location": "http://localhost:1/v1"}), "malformed"),
    "a broken line": (breaks_off(TEXT), "network"),
    "no end": (stream(TEXT), "network"),
    "no http": (raw(b"SSH-2.0-OpenSSH_9.2\r\n"), "malformed"),
    "too long": (answer(400, TOO_LONG), "context_too_long"),
    "trouble": (answer(500, {"error": {"message": "Ouch"}}), "unavailable"),
}
STALLING: dict[str, tuple[Reply, str]] = {
    "a stream that stalls": (stalls(TEXT), "timeout"),
    "silence": (silent, "timeout"),
}


@pytest.fixture
def provider() -> Iterator[Played]:
    with played(key=KEY) as made:
        yield made


@pytest.fixture
def daemon(new_sqlite_daemon: NewDaemon, provider: Played, tmp_path: Path) -> Daemon:
    return asking(provider, new_sqlite_daemon, tmp_path / "key", patience=600.0)


@pytest.fixture
def hasty(new_sqlite_daemon: NewDaemon, provider: Played, tmp_path: Path) -> Daemon:
    """A daemon that gives a provider up after seconds."""
    return asking(provider, new_sqlite_daemon, tmp_path / "key", patience=2.0)


def asking(provider: Played, new_daemon: NewDaemon, key: Path, *, patience: float) -> Daemon:
    """Start a daemon that asks the provider."""
    key.write_text(KEY)
    made = new_daemon(model_provider=None, model_script=None)
    made.home.path.mkdir(mode=0o700, parents=True)
    made.home.config.write_text(SETTINGS.format(url=provider.url, key=key, patience=patience))
    made.home.config.chmod(0o600)
    return made.start()


def events(daemon: Daemon, run_id: str, kind: str) -> list[Json]:
    return [line.event for line in daemon.tape(f"/runs/{run_id}") if line.kind == kind]


def test_each_failure_is_on_the_tape_and_told_in_one_sentence(daemon: Daemon, provider: Played) -> None:
    check_failures(FAILING, daemon, provider)


def test_each_timeout_is_on_the_tape_and_told_in_one_sentence(hasty: Daemon, provider: Played) -> None:
    check_failures(STALLING, hasty, provider)


def check_failures(failing: dict[str, tuple[Reply, str]], daemon: Daemon, provider: Played) -> None:
    for name, (reply, kind) in failing.items():
        provider.instead = reply
        run = daemon.send(name)
        ended = daemon.finished(run["run_id"])

        discarded = events(daemon, run["run_id"], "model_turn_discarded")
        [failed] = events(daemon, run["run_id"], "run_failed")
        assert (name, ended["status"], discarded[-1]["failure"]) == (name, "failed", kind)
        for reason in (discarded[-1]["reason"], failed["reason"]):
            assert reason.isprintable(), name
            assert reason.endswith("."), name
        # What has no end is cut off by the run itself, whoever says it.
        if name != "an endless stream":
            assert "acme" in discarded[-1]["reason"], name
            assert "tiny" in discarded[-1]["reason"], name
        # A provider that answers is not left alone, whatever it did before.
        provider.instead = None
        assert daemon.finished(daemon.send("and now?")["run_id"])["status"] == "done", name

    written = b"".join(path.read_bytes() for path in daemon.home.path.rglob("*") if path.is_file())
    assert KEY.encode() not in written
    assert KEY not in daemon.output()
    prove(daemon)


def test_calls_that_can_not_be_read_go_back_to_the_model(daemon: Daemon, provider: Played) -> None:
    provider.instead = calls('{"zone": "Euro')

    run = daemon.send("What time is it?")

    assert daemon.finished(run["run_id"])["status"] == "done"
    [proposed] = events(daemon, run["run_id"], "tool_proposed")
    assert "not a JSON object" in proposed["malformed"]
    assert events(daemon, run["run_id"], "tool_started") == []
    told = provider.questions[-1].json()["messages"][-1]
    assert told["role"] == "tool"
    assert "not a JSON object" in told["content"]
    prove(daemon)


def test_calls_of_one_id_are_two_calls(daemon: Daemon, provider: Played) -> None:
    provider.instead = calls("{}", "{}")

    run = daemon.send("What time is it?")

    assert daemon.finished(run["run_id"])["status"] == "done"
    assert len(events(daemon, run["run_id"], "tool_finished")) == 2
    results = [message for message in provider.questions[-1].json()["messages"] if message["role"] == "tool"]
    assert len({message["tool_call_id"] for message in results}) == 2
    prove(daemon)


def test_usage_that_is_not_told_is_estimated_and_marked_so(daemon: Daemon, provider: Played) -> None:
    provider.instead = stream(piece({"content": SAYS}) + piece({}, "stop") + "data: [DONE]\n\n")

    run = daemon.send("Hello?")

    assert daemon.finished(run["run_id"])["status"] == "done"
    [ended] = events(daemon, run["run_id"], "model_turn_ended")
    assert ended["usage"]["estimated"]
    assert ended["usage"]["input_tokens"] > 0
    assert ended["usage"]["output_tokens"] > 0


@pytest.mark.parametrize(("reply", "begun"), [(stalls(TEXT), "model_text"), (silent, "model_turn_started")])
def test_a_cancel_closes_the_connection_to_the_provider_at_once(
    daemon: Daemon, provider: Played, *, reply: Reply, begun: str
) -> None:
    provider.instead = reply
    run = daemon.send("speak")
    Watcher(daemon, run["session_id"]).follow(_is(begun))
    until(lambda: provider.questions)
    line = provider.server.lines[-1]
    assert line.closed_at is None

    daemon.post(f"/runs/{run['run_id']}/cancel")

    # Nothing else closes it: the provider says nothing for ever, and the daemon would wait for it for ten minutes.
    until(lambda: line.closed_at is not None)
    assert daemon.finished(run["run_id"])["status"] == "cancelled"
    prove(daemon)


def test_a_call_that_the_callers_own_bound_cuts_off_is_asked_for_once(daemon: Daemon, provider: Played) -> None:
    half = {"index": 0, "id": "call_1", "function": {"name": "paint", "arguments": '{"colour": "re'}}
    provider.instead = stream(piece({"content": "Red", "tool_calls": [half]}) + piece({}, "length"))
    with OpenAI(base_url=f"{daemon.address}/v1", api_key=daemon.token, max_retries=0) as ai:
        answer = ai.chat.completions.create(
            model="acme/tiny",
            messages=[{"role": "user", "content": "Paint!"}],
            tools=[{"type": "function", "function": {"name": "paint"}}],
            max_tokens=8,
        )

    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content, choice.message.tool_calls) == ("length", "Red", None)
    assert len(provider.questions) == 1
    prove(daemon)


def _is(kind: str) -> Callable[[Json], bool]:
    return lambda line: bool(line.kind == kind)
