"""An entry that cannot be read parks its run, and nothing else."""

import json
import sqlite3

import httpx
import pytest

from tests.e2e.conftest import NewDaemon
from tests.support.daemon import Daemon, Refused, until

SCRIPT = {
    "rules": [
        {"when": {"contains": "hang"}, "actions": [{"do": "text", "text": "Well"}, {"do": "delay", "ms": 60000}]}
    ],
    "default": [{"do": "text", "text": "You said: {input}"}],
}
CONTENTS = {
    "unknown kind": ("hologram_projected", b'{"kind":"hologram_projected","at":"2026-11-15T22:56:05Z"}'),
    "no JSON": ("model_text", b"{"),
    "not text": ("model_text", b"\xff\xfe{}"),
    "another event": ("run_completed", b'{"kind":"run_completed","at":"2026-11-15T22:56:05Z"}'),
}


def damage(daemon: Daemon, run_id: str, *, kind: str, content: bytes, last: bool = True) -> None:
    order = "DESC" if last else "ASC"
    with sqlite3.connect(daemon.home.journal) as db:
        db.execute(
            "UPDATE tape SET kind = ?, content = CAST(? AS TEXT) WHERE rowid ="
            f" (SELECT rowid FROM tape WHERE run_id = ? ORDER BY tape_seq {order} LIMIT 1)",
            (kind, content, run_id),
        )


@pytest.mark.parametrize("what", CONTENTS)
def test_a_run_with_an_entry_that_cannot_be_read_is_parked_and_no_other(
    new_sqlite_daemon: NewDaemon, what: str
) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    hanging = daemon.send("hang", session={"key": "damaged"})["run_id"]
    other = daemon.send("hang too", session={"key": "whole"})["run_id"]
    for run_id in (hanging, other):
        until(lambda run_id=run_id: any(line.kind == "model_text" for line in daemon.tape(f"/runs/{run_id}")))  # type: ignore[misc]
    daemon.kill()
    kind, content = CONTENTS[what]
    damage(daemon, hanging, kind=kind, content=content)
    daemon.start()
    parked = until(lambda: run if (run := daemon.run(hanging))["reason"] else None)
    assert parked["reason"].startswith("parked: ")
    assert parked["ended_at"] is None
    until(lambda: daemon.run(other)["turns"] == 2)
    answer = daemon.send("hello", session={"key": "new"})
    assert daemon.finished(answer["run_id"])["status"] == "done"
    status = httpx.get(
        f"{daemon.address}/admin/v1/status", headers={"authorization": f"Bearer {daemon.token}"}, verify=False
    ).json()
    (worker,) = [part for part in status["parts"] if part["name"] == "worker"]
    assert worker["status"] == "runs_parked"
    with pytest.raises(Refused) as refused:
        daemon.send("hello?", session={"key": "damaged"})
    assert refused.value.code == "tape_entry_invalid"
    daemon.post("/stops", {"reason": "enough"})
    until(lambda: daemon.run(other)["ended_at"])


def test_a_run_whose_entry_is_whole_again_goes_on_at_the_next_start(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    run_id = daemon.send("hang", session={"key": "main"})["run_id"]
    line = until(lambda: next((one for one in daemon.tape(f"/runs/{run_id}") if one.kind == "model_text"), None))
    daemon.kill()
    damage(daemon, run_id, kind="model_text", content=b"{")
    daemon.start()
    until(lambda: daemon.run(run_id)["reason"])
    daemon.kill()
    damage(daemon, run_id, kind="model_text", content=json.dumps(line.event, separators=(",", ":")).encode())
    daemon.start()
    until(lambda: daemon.run(run_id)["turns"] == 2)
    assert daemon.run(run_id)["reason"] is None


def test_a_damaged_run_in_the_queue_lets_the_others_have_their_turn(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    first = daemon.send("hang", session={"key": "main"})["run_id"]
    second = daemon.send("two", session={"key": "main"})["run_id"]
    third = daemon.send("three", session={"key": "main"})["run_id"]
    daemon.kill()
    damage(daemon, second, kind="run_accepted", content=b"{", last=False)
    daemon.start()
    until(lambda: daemon.run(first)["turns"] == 2)
    daemon.post(f"/runs/{first}/cancel")
    assert daemon.finished(third)["status"] == "done"
    assert daemon.run(second)["reason"].startswith("parked: ")
    later = daemon.send("four", session={"key": "main"})["run_id"]
    assert daemon.finished(later)["status"] == "done"
