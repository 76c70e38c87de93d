"""`palyra why` on a real daemon: from a file back to who said what, who allowed it, and who read it since."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import NewDaemon
from tests.support.command import palyra
from tests.support.daemon import Daemon, Refused, until

Json = Any

WRITE = {"do": "call", "tool": "files.write", "arguments": {"path": "notes.txt", "text": "the milk is sour\n"}}
READ = {"do": "call", "tool": "files.read", "arguments": {"path": "notes.txt"}}
DELEGATE = {"do": "call", "tool": "agent.delegate", "arguments": {"task": "write it down"}}
SCRIPT = {
    "rules": [
        {"when": {"contains": "write", "tools": True}, "turns": [[WRITE], [{"do": "text", "text": "Written."}]]},
        {"when": {"contains": "read", "tools": True}, "turns": [[READ], [{"do": "text", "text": "{result}"}]]},
        {"when": {"contains": "pass on", "tools": True}, "turns": [[DELEGATE], [{"do": "text", "text": "Passed on."}]]},
    ],
    "default": [{"do": "text", "text": "You said: {input}"}],
}


def ask(daemon: Daemon, of: str) -> Json:
    return daemon.get("/why", of=of)


def links(tree: Json) -> Iterator[Json]:
    yield tree
    for link in tree.get("then", ()):
        yield from links(link)


def one(tree: Json, kind: str) -> Json:
    (found,) = [link for link in links(tree) if link["kind"] == kind]
    return found


def path_to(tree: Json, subject: Json) -> list[str]:
    """Return the kinds from the root down to a link."""
    if tree == subject:
        return [tree["kind"]]
    for link in tree.get("then", ()):
        if below := path_to(link, subject):
            return [tree["kind"], *below]
    return []


def written(daemon: Daemon, text: str = "write it down") -> tuple[Json, Json]:
    """Have the note written, with a yes; return the run and the question."""
    run = daemon.send(text)
    question = until(lambda: daemon.get("/approvals", open="true")["approvals"])[0]
    daemon.post(f"/approvals/{question['approval_id']}/resolve", {"decision": "allow", "reason": "go ahead"})
    assert daemon.finished(run["run_id"])["status"] == "done"
    return run, question


def test_a_file_is_traced_back_to_its_input_and_its_approver(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(SCRIPT).start()
    run, question = written(daemon)
    daemon.finished(daemon.send("read it to me")["run_id"])

    trace = ask(daemon, "notes.txt")
    (subject,) = [link for link in links(trace["tree"]) if link.get("subject")]
    assert (trace["kind"], path_to(trace["tree"], subject)) == ("file", ["input", "turn", "call", "file"])
    said, turn, call = (one(trace["tree"], kind) for kind in ("input", "turn", "call"))
    assert (said["by"], said["facts"]["text"], said["run_id"]) == ("user:owner", "write it down", run["run_id"])
    assert turn["facts"]["provider"] == "scripted"
    assert turn["facts"]["input_tokens"] > 0
    assert (call["labels"], call["facts"]["arguments"]) == (["owner"], WRITE["arguments"])
    policy, approval, execution = (one(trace["tree"], kind) for kind in ("policy", "approval", "execution"))
    assert policy["facts"]["verdict"] == "ask"
    assert policy["facts"]["policies"] == question["policies"]
    assert policy["facts"]["policy_hash"] == question["policy_hash"]
    assert (approval["by"], approval["facts"]["approval_id"]) == ("user:owner", question["approval_id"])
    assert (approval["facts"]["scope"], approval["facts"]["reason"]) == ("once", "go ahead")
    assert (execution["facts"]["outcome"], execution["facts"]["attempts"]) == ("ok", 1)
    assert subject["facts"]["path"].endswith("/notes.txt")
    assert [(link["kind"], link["facts"]["tool"]) for link in trace["later"]] == [("call", "files.read")]

    for name in (call["facts"]["call_id"], question["approval_id"], subject["facts"]["checkpoint_id"]):
        other = ask(daemon, name)
        assert one(other["tree"], "call")["facts"]["call_id"] == call["facts"]["call_id"]
    assert ask(daemon, f"{run['session_id']}:{execution['tape_seq']}")["tree"]["run_id"] == run["run_id"]


def test_a_file_that_was_brought_back_says_so_and_what_was_taken_back(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    run, _ = written(daemon)
    checkpoint = daemon.get("/files/checkpoints")["checkpoints"][0]["checkpoint_id"]
    daemon.post(f"/files/checkpoints/{checkpoint}/restore", {})

    trace = ask(daemon, "notes.txt")
    assert (trace["tree"]["kind"], trace["tree"]["by"], trace["tree"]["subject"]) == ("restore", "user:owner", True)
    assert one(trace["tree"], "input")["run_id"] == run["run_id"]
    assert [link["kind"] for link in ask(daemon, checkpoint)["later"]] == ["restore"]


def test_what_a_child_did_is_traced_up_to_the_person(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(SCRIPT).start()
    parent, _ = written(daemon, "pass on")
    (child,) = [run for run in daemon.runs() if run["parent_run_id"]]

    trace = ask(daemon, "notes.txt")
    (subject,) = [link for link in links(trace["tree"]) if link.get("subject")]
    kinds = ["input", "turn", "call", "child", "input", "turn", "call", "file"]
    assert path_to(trace["tree"], subject) == kinds
    assert trace["tree"]["run_id"] == parent["run_id"]
    assert subject["run_id"] == child["run_id"]


def test_the_command_line_prints_a_tree(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    assert "You have no run yet" in palyra(daemon, "why", "last", code=1)
    run, question = written(daemon)
    for name in ("last", run["run_id"], run["run_id"][-6:], "notes.txt", question["approval_id"]):
        lines = palyra(daemon, "why", name).splitlines()
        assert "input: “write it down” by user:owner" in lines[0]
        for part in ("turn: 1, scripted", "call: files.write", "policy: ask", "allowed by user:owner, once: go ahead"):
            assert any(part in line for line in lines), (name, part)
        assert any("notes.txt" in line and "file: made" in line for line in lines)
    assert json.loads(palyra(daemon, "why", "last", "--json"))["kind"] == "run"
    unknown = palyra(daemon, "why", "nothing-like-this.txt", code=1)
    assert "SESSION:SEQ" in unknown
    assert "[trace_subject_not_found]" in unknown


def test_nobody_learns_why_of_what_is_not_theirs(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    run, question = written(daemon)
    trace = ask(daemon, "notes.txt")
    call_id = one(trace["tree"], "call")["facts"]["call_id"]
    checkpoint = one(trace["tree"], "file")["facts"]
    made = httpx.post(
        f"{daemon.address}/admin/v1/tokens",
        headers={"authorization": f"Bearer {daemon.token}"},
        json={"principal": "user:ben", "name": "ben"},
        verify=False,
    ).json()
    headers = {"authorization": f"Bearer {made['secret']}"}
    names = (
        "last",
        run["run_id"],
        run["session_id"],
        f"{run['session_id']}:1",
        call_id,
        question["approval_id"],
        checkpoint["checkpoint_id"],
        checkpoint["path"],
        "notes.txt",
    )
    for name in names:
        answer = httpx.get(f"{daemon.address}/console/v1/why", params={"of": name}, headers=headers, verify=False)
        assert (answer.status_code, answer.json()["code"]) == (404, "trace_subject_not_found"), name
        assert "milk" not in answer.text


@pytest.mark.parametrize("of", ["", "\0", "x" * 5000, "01ARZ3NDEKTSV4RRFFQ69G5FAV:99999999999999999999", "../../etc"])
def test_names_that_make_no_sense_are_refused(new_sqlite_daemon: NewDaemon, of: str) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    with pytest.raises(Refused) as refused:
        ask(daemon, of)
    assert refused.value.status in (400, 404)
