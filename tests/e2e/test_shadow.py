"""Candidate policies beside those in force, on a real daemon: reported, exchanged, and there again after a kill."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import NewDaemon
from tests.support.command import palyra
from tests.support.daemon import Daemon

SCRIPT = {
    "rules": [
        {
            "when": {"tools": True},
            "turns": [[{"do": "call", "tool": "time.now", "arguments": {}}], [{"do": "text", "text": "Now."}]],
        }
    ],
    "default": [{"do": "text", "text": "Nothing."}],
}
NO_CLOCK = '@id("no-clock") @reason("Time flies.") forbid (principal, action, resource == Tool::"time.now");\n'
ASK_CLOCK = '@id("ask-clock") @reason("Ask first.") forbid (principal, action == Action::"run", resource);\n'


def look_at_the_clock(daemon: Daemon) -> str:
    """Make a call that the policies in force allow, and return its id."""
    sent = daemon.send("Time?")
    assert daemon.finished(sent["run_id"])["status"] == "done"
    entries = daemon.tape(f"/runs/{sent['run_id']}")
    (decided,) = [line.event for line in entries if line.kind == "policy_decided"]
    assert decided["verdict"] == "allow"
    return str(decided["call_id"])


def report(daemon: Daemon) -> Any:
    return json.loads(palyra(daemon, "policy", "shadow", "report", "--json"))


def test_a_candidate_is_tried_on_real_calls_and_survives_a_kill(new_daemon: NewDaemon, tmp_path: Path) -> None:
    daemon = new_daemon(SCRIPT).start()
    assert "shadow_policy_not_found" in palyra(daemon, "policy", "shadow", "report", code=1)
    folder = tmp_path / "candidate"
    folder.mkdir()
    assert "policy_file_not_found" in palyra(daemon, "policy", "shadow", "start", str(folder), code=2)
    (folder / "clock.cedar").write_text(NO_CLOCK)
    palyra(daemon, "policy", "shadow", "start", str(folder))
    first = look_at_the_clock(daemon)
    daemon.kill()
    daemon.start()
    second = look_at_the_clock(daemon)

    found = report(daemon)

    assert (found["shadow"]["flipped"], found["shadow"]["files"]) == (2, [str(folder / "clock.cedar")])
    (clause,) = found["clauses"]
    assert (clause["was"], clause["would"], clause["would_by"], clause["calls"]) == ("allow", "deny", ["no-clock"], 2)
    assert [example["call_id"] for example in clause["examples"]] == [second, first]
    assert clause["examples"][0]["would_reason"] == "Time flies."
    told = palyra(daemon, "policy", "shadow", "report")
    assert "2 calls: allow → deny by no-clock" in told
    assert second in told

    # Its files are read again without being named; a wrong one changes nothing, and the place of the fault is told.
    (folder / "clock.cedar").write_text("// new\n@id('x') permit (principal, action, resource);")
    assert f"{folder / 'clock.cedar'}:2:" in palyra(daemon, "policy", "shadow", "start", code=2)
    assert report(daemon)["shadow"]["hash"] == found["shadow"]["hash"]
    (folder / "clock.cedar").write_text(ASK_CLOCK)
    palyra(daemon, "policy", "shadow", "start")
    look_at_the_clock(daemon)
    (clause,) = report(daemon)["clauses"]
    assert (clause["would"], clause["would_by"][0], clause["calls"]) == ("ask", "ask-clock", 1)

    assert daemon.stop() == 0
    daemon.start()
    assert "judges" in palyra(daemon, "policy", "shadow", "status")
    palyra(daemon, "policy", "shadow", "stop")
    look_at_the_clock(daemon)
    assert report(daemon)["shadow"]["judged"] == 1
    assert "shadow_policy_not_found" in palyra(daemon, "policy", "shadow", "stop", code=1)
    assert "stopped" in palyra(daemon, "policy", "shadow", "status")


def test_what_both_agree_about_is_not_lost_when_the_daemon_is_stopped(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    file = daemon.home.path.parent / "same.cedar"
    file.write_text('@id("mine") permit (principal, action, resource == Tool::"none");')
    palyra(daemon, "policy", "shadow", "start", str(file))
    look_at_the_clock(daemon)
    assert daemon.stop() == 0
    daemon.start()
    assert (report(daemon)["shadow"]["judged"], report(daemon)["clauses"]) == (1, [])


@pytest.mark.parametrize("body", [{}, {"files": []}, {"files": [{"name": "a"}]}, {"files": [], "mood": 1}])
def test_a_candidate_that_makes_no_sense_is_refused(new_sqlite_daemon: NewDaemon, body: Any) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    headers = {"authorization": f"Bearer {daemon.token}"}
    refused = httpx.put(f"{daemon.address}/admin/v1/policy/shadow", json=body, headers=headers, verify=False)
    assert (refused.status_code, refused.json()["code"]) == (400, "request_invalid")
