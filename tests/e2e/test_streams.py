"""Streams: clients come and go, the daemon stops and starts, and each sees the tape from where it stood."""

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from palyra.core.ids import SessionId
from palyra.gateway.http import event_stream
from palyra.gateway.http.event_stream import EventStream
from palyra.journal import migrate
from palyra.journal.engines.sqlite_engine import SqliteEngine
from palyra.journal.tail import Tail
from tests.e2e.conftest import NewDaemon
from tests.e2e.proof import answer_of, prove
from tests.support.daemon import FINAL, Daemon, Line, Watcher, until

STREAMS_PER_TOKEN = 64
SLOWLY = {"default": [{"do": "text", "text": "one two three four five", "chunk": 4, "delay_ms": 100}]}
ENDLESSLY = {"default": [{"do": "endless", "text": "la ", "delay_ms": 20}]}
AT_ONCE = {"default": [{"do": "text", "text": "Done."}]}


def test_a_stop_ends_streams_cleanly_and_the_run_goes_on_afterwards(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(ENDLESSLY).start()
    run = daemon.send("go")
    watcher = Watcher(daemon, run["session_id"])
    watcher.follow(lambda line: line.kind == "model_text")
    endings: list[BaseException] = []
    follower = Thread(target=follow_to_the_end, args=(watcher, endings))
    follower.start()
    until(lambda: watcher.connections == 2 and watcher.lines[-1].run_seq > 8)

    assert daemon.stop() == 0
    follower.join(60)

    # The message is that of a clean end: a stream that is cut off says something else.
    assert [str(ending) for ending in endings] == ["the daemon ended the stream"]
    assert not daemon.home.daemon.exists()
    teach(daemon, AT_ONCE)
    daemon.start()
    watcher.follow(lambda line: line.kind in FINAL)
    kept = prove(daemon)
    [carried] = kept.runs
    lines = kept.tape_of(carried)
    assert [line.kind for line in lines].count("run_resumed") == 1
    assert answer_of(lines) == "Done."
    assert [line.text for line in watcher.lines] == [line.text for line in kept.tapes[run["session_id"]]][
        : watcher.last
    ]
    assert [line for line in daemon.log() if line["level"] in ("error", "warning")] == []


def test_a_run_that_is_nearly_done_is_finished_before_the_stop(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(SLOWLY).start()
    with closing(daemon.chat("go", key="once")) as shown:
        lines = [*take_until("model_text", shown)]
        daemon.signal(signal.SIGTERM)
        lines += shown
    assert daemon.wait() == 0
    assert answer_of(lines) == "one two three four five"
    assert lines[-1].kind == "run_completed"


def test_an_idle_stream_does_not_hold_up_a_stop(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(AT_ONCE).start()
    run = daemon.send("go")
    daemon.finished(run["run_id"])
    with closing(daemon.events(f"/sessions/{run['session_id']}")) as shown:
        next(shown)
        daemon.signal(signal.SIGINT)
        assert [line.kind for line in shown if line.kind in FINAL] == ["run_completed"]
    assert daemon.wait() == 0
    # A stream that holds it up is cut off in the end, and that is logged.
    assert [line for line in daemon.log() if line["level"] in ("error", "warning")] == []


def test_a_second_signal_ends_the_daemon_at_once_and_loses_nothing(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(ENDLESSLY).start()
    run = daemon.send("go")
    Watcher(daemon, run["session_id"]).follow(lambda line: line.kind == "model_text")
    daemon.signal(signal.SIGTERM)
    until(lambda: "stopping" in daemon.home.log.read_text())
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 1

    teach(daemon, AT_ONCE)
    daemon.start()
    assert daemon.finished(run["run_id"])["status"] == "done"
    prove(daemon)


def test_a_client_that_goes_away_changes_nothing(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(SLOWLY).start()
    with closing(daemon.chat("go", key="once")) as shown:
        run_id = next(line.run_id for line in shown if line.kind == "model_text")
    assert run_id is not None
    for _ in range(3):
        with closing(daemon.events(f"/runs/{run_id}")) as shown:
            next(shown)

    assert daemon.finished(run_id)["status"] == "done"
    kept = prove(daemon)
    assert answer_of(kept.tape_of(kept.runs[0])) == "one two three four five"
    assert [line for line in daemon.log() if line["level"] in ("error", "warning")] == []


def test_every_position_is_a_good_one_to_come_back_to(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(AT_ONCE).start()
    first, second = (daemon.send(text, session={"key": "one"}) for text in ("one", "two"))
    for run in (first, second):
        daemon.finished(run["run_id"])
    session = f"/sessions/{first['session_id']}"
    until(lambda: daemon.get(session)["session"]["title"])
    tape = daemon.tape(session)

    for after in range(len(tape) + 1):
        rest = [line.text for line in tape[after:]]
        with closing(daemon.events(session, after=after)) as shown:
            assert [next(shown).text for _ in rest] == rest
        for run in (first, second):
            mine = [line.text for line in tape[after:] if line.run_id == run["run_id"]]
            assert [line.text for line in daemon.events(f"/runs/{run['run_id']}", after=after)] == mine


def test_nothing_is_left_to_stream_after_the_end(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(AT_ONCE).start()
    run_id = daemon.send("go")["run_id"]
    last = daemon.finished(run_id)["last_seq"]

    for headers, query in (({"last-event-id": str(last)}, {}), ({}, {"after_seq": last})):
        answer = daemon.ask("GET", f"/runs/{run_id}/events", headers=headers, query=query)
        assert (answer.status_code, answer.content) == (204, b"")
    # An EventSource sends both when it comes back: what it has seen counts, not what its address says.
    answer = daemon.ask("GET", f"/runs/{run_id}/events", headers={"last-event-id": str(last)}, query={"after_seq": 0})
    assert answer.status_code == 204


def test_a_stream_says_who_and_what_it_is(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(AT_ONCE).start()
    answer = daemon.ask("POST", "/chat", body={"text": "go"})

    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    run = daemon.run(answer.headers["x-palyra-run-id"])
    assert run["session_id"] == answer.headers["x-palyra-session-id"]
    assert run["accepted_seq"] == int(answer.headers["x-palyra-after-seq"]) + 1


def test_streams_are_bounded_and_give_their_places_back(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(AT_ONCE).start()
    run = daemon.send("go")
    last = daemon.finished(run["run_id"])["last_seq"]
    session = f"/sessions/{run['session_id']}"
    # None of these is a stream that stays.
    for _ in range(STREAMS_PER_TOKEN):
        assert daemon.ask("GET", f"{session}/events", query={"after_seq": 1000}).status_code == 400
        assert daemon.ask("HEAD", f"{session}/events").status_code == 200
        assert daemon.ask("GET", f"/runs/{run['run_id']}/events", query={"after_seq": last}).status_code == 204
        assert daemon.ask("GET", f"/runs/{run['run_id']}/events").status_code == 200
        assert daemon.ask("POST", "/chat", body={"text": ""}).status_code == 400
    with ExitStack() as stack:
        for _ in range(STREAMS_PER_TOKEN):
            next(stack.enter_context(closing(daemon.events(session))))
        before = len(daemon.runs())
        for refused in (
            daemon.ask("GET", f"{session}/events"),
            daemon.ask("GET", f"/runs/{run['run_id']}/events"),
            daemon.ask("POST", "/chat", body={"text": "one more"}),
        ):
            assert (refused.status_code, refused.json()["code"]) == (429, "stream_limit_reached")
            assert int(refused.headers["retry-after"]) >= 1
        # Whoever may not follow is not heard either; whoever only sends and asks is.
        assert len(daemon.runs()) == before
        assert daemon.finished(daemon.send("go")["run_id"])["status"] == "done"

    def come_back() -> Line:
        with closing(daemon.events(session)) as shown:
            return next(shown)

    assert daemon.surely(come_back).seq == 1


async def test_a_silent_stream_is_kept_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "KEEP_ALIVE_SECONDS", 0.02)
    engine = SqliteEngine(tmp_path / "journal.db")
    await engine.write(lambda conn: migrate.migrate(conn, now_ms=0))
    follower = Tail(engine).follow(SessionId("01ARZ3NDEKTSV4RRFFQ69G5FAV"), after_seq=0)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == 4:
            follower.close()

    async def receive() -> Any:
        await asyncio.sleep(60)

    answer = EventStream(follower, stack=ExitStack(), headers={}, ends_with_run=False)
    await answer({"type": "http", "method": "GET"}, receive, send)
    await engine.close()

    head, *bodies, end = sent
    assert head["status"] == 200
    assert {body["body"] for body in bodies} == {b": still here\n\n"}
    assert end == {"type": "http.response.body", "body": b"", "more_body": False}


def take_until(kind: str, shown: Iterator[Line]) -> Iterator[Line]:
    for line in shown:
        yield line
        if line.kind == kind:
            return


def follow_to_the_end(watcher: Watcher, endings: list[BaseException]) -> None:
    try:
        watcher.follow(lambda line: False)
    except httpx.TransportError as ending:
        endings.append(ending)


def teach(daemon: Daemon, script: object) -> None:
    """Have the model say something else from the next start on."""
    daemon.script.write_text(json.dumps(script))
