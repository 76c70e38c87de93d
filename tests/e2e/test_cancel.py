"""Cancelling over HTTP: what streams for ever ends at once, and nobody else is touched."""

import pytest

from tests.e2e.conftest import NewDaemon
from tests.e2e.proof import prove
from tests.support.daemon import FINAL, Daemon, Json, Line, Watcher, until

SCRIPT = {
    "rules": [
        {"when": {"contains": "endless"}, "actions": [{"do": "endless", "text": "la ", "delay_ms": 5}]},
        {"when": {"equals": "silent"}, "actions": [{"do": "delay", "ms": 600_000}]},
        {
            "when": {"equals": "delegate"},
            "turns": [
                [{"do": "call", "tool": "agent.delegate", "arguments": {"task": "endless work"}}],
                [{"do": "text", "text": "Never said."}],
            ],
        },
    ],
    "default": [{"do": "text", "text": "You said: {input}"}],
}
MAX_ENTRIES_AFTER = 5
"""How much of a model that speaks every 5 ms may still be recorded behind the wish: what was on its way."""


@pytest.mark.parametrize("text", ["endless", "silent"])
def test_a_run_that_would_never_end_is_cancelled_at_once(new_daemon: NewDaemon, text: str) -> None:
    daemon = new_daemon(SCRIPT).start()
    run = daemon.send(text)
    watcher = Watcher(daemon, run["session_id"])
    watcher.follow(lambda line: line.kind == ("model_text" if text == "endless" else "model_turn_started"))

    answer = daemon.post(f"/runs/{run['run_id']}/cancel", {"reason": "enough"})
    watcher.follow(lambda line: line.kind in FINAL)

    assert answer["run"]["cancel_requested"]
    assert watcher.lines[-1].kind == "run_cancelled"
    assert watcher.lines[-1].event["reason"] == "enough"
    check_end(watcher.lines)
    assert daemon.run(run["run_id"])["status"] == "cancelled"
    prove(daemon)


def test_one_of_many_is_cancelled_at_once_and_the_others_go_on(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(SCRIPT).start()
    runs = [daemon.send("endless") for _ in range(10)]
    for run in runs:
        until(lambda run=run: len(daemon.tape(f"/runs/{run['run_id']}")) > 5)  # type: ignore[misc]

    chosen, *others = runs
    cancel(daemon, chosen)
    assert {daemon.run(run["run_id"])["status"] for run in others} == {"in_progress"}

    for run in others:
        cancel(daemon, run)
    prove(daemon)


def test_a_run_in_the_queue_is_cancelled_where_it_stands(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(SCRIPT).start()
    active, second, third = (
        daemon.send(text, session={"key": "one"}) for text in ("endless", "never begun", "at last")
    )

    ended = daemon.post(f"/runs/{second['run_id']}/cancel")["run"]
    assert ended["status"] == "cancelled"
    assert [line.kind for line in daemon.tape(f"/runs/{second['run_id']}")] == [
        "run_accepted",
        "cancel_requested",
        "run_cancelled",
    ]
    assert daemon.run(active["run_id"])["status"] in ("accepted", "in_progress")

    cancel(daemon, active)
    assert daemon.finished(third["run_id"])["status"] == "done"
    prove(daemon)


def test_a_run_that_has_ended_stays_as_it_is(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(SCRIPT).start()
    run = daemon.send("hello")
    before = daemon.finished(run["run_id"])

    assert daemon.post(f"/runs/{run['run_id']}/cancel")["run"] == before


def test_cancelling_a_run_cancels_its_child(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(SCRIPT).start()
    parent = daemon.send("delegate")
    child = until(lambda: next((run for run in daemon.runs() if run["parent_run_id"]), None))
    until(lambda: daemon.run(parent["run_id"])["status"] == "waiting")
    until(lambda: daemon.run(child["run_id"])["status"] == "in_progress")

    assert daemon.post(f"/runs/{parent['run_id']}/cancel")["run"]["status"] == "cancelled"
    assert daemon.finished(child["run_id"])["status"] == "cancelled"
    prove(daemon)


def test_a_cancelled_run_stays_cancelled_over_a_kill(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(SCRIPT).start()
    run = daemon.send("endless")
    until(lambda: daemon.run(run["run_id"])["status"] == "in_progress")
    daemon.post(f"/runs/{run['run_id']}/cancel")
    daemon.kill()
    daemon.start()

    assert daemon.finished(run["run_id"])["status"] == "cancelled"
    prove(daemon)


def cancel(daemon: Daemon, run: Json) -> None:
    daemon.post(f"/runs/{run['run_id']}/cancel")
    assert daemon.finished(run["run_id"])["status"] == "cancelled"
    check_end(daemon.tape(f"/runs/{run['run_id']}"))


def check_end(lines: list[Line]) -> None:
    """Look whether the end came right behind the wish, and not after the model had gone on."""
    kinds = [line.kind for line in lines]
    assert kinds.count("cancel_requested") == 1
    assert len(kinds) - kinds.index("cancel_requested") - 1 <= MAX_ENTRIES_AFTER, kinds[-20:]
