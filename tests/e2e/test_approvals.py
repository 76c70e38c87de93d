"""Questions through the doors of a real daemon: asked, answered elsewhere, and over a kill in between."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from palyra.gateway.grpc.pb import approvals_pb2 as pb
from tests.e2e.conftest import NewDaemon
from tests.support.daemon import Daemon, Refused, until

Json = Any

CALL = {"do": "call", "tool": "files.write", "arguments": {"path": "notes.txt", "text": "hello\n"}}
DANGER = {"do": "call", "tool": "files.write", "arguments": {"path": ".bashrc", "text": "hello\n"}}
SCRIPT = {
    "rules": [
        {"when": {"contains": "danger", "tools": True}, "turns": [[DANGER], [{"do": "text", "text": "{result}"}]]},
        {"when": {"tools": True}, "turns": [[CALL], [{"do": "text", "text": "{result}"}]]},
    ],
    "default": [{"do": "text", "text": "Nothing to do."}],
}


def palyra(daemon: Daemon, *args: str, code: int = 0) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PALYRA_")}
    done = subprocess.run(
        [sys.executable, "-m", "palyra", "--home", str(daemon.home.path), *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        env=environ,
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def asked(daemon: Daemon) -> Json:
    return until(lambda: daemon.get("/approvals", open="true")["approvals"])[0]


@contextmanager
def service(daemon: Daemon) -> Iterator[Any]:
    """Call the methods of the service by name."""
    with grpc.insecure_channel(daemon.get("/status")["grpc"]) as channel:
        meta = (("authorization", f"Bearer {daemon.token}"),)

        def call(method: str, request: Any, answer: Any) -> Any:
            path = f"/palyra.v1.ApprovalsService/{method}"
            return channel.unary_unary(path, type(request).SerializeToString, answer.FromString)(
                request, metadata=meta, timeout=10
            )

        def stream(method: str, request: Any, answer: Any) -> Any:
            path = f"/palyra.v1.ApprovalsService/{method}"
            return channel.unary_stream(path, type(request).SerializeToString, answer.FromString)(
                request, metadata=meta, timeout=20
            )

        yield call, stream


def test_the_command_line_answers_what_was_asked_before_a_kill(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(SCRIPT).start()
    sent = daemon.send("Please.")
    question = asked(daemon)
    code = question["approval_id"][-6:]
    assert "notes.txt" in palyra(daemon, "approvals")
    assert "+hello" in palyra(daemon, "approvals", "show", code)
    daemon.kill()
    daemon.start()

    palyra(daemon, "approvals", "allow", code, "--for", "session", "--reason", "go on")

    assert daemon.finished(sent["run_id"])["status"] == "done"
    assert (daemon.home.workspace / "notes.txt").read_text() == "hello\n"
    assert "approval_not_found" in palyra(daemon, "approvals", "deny", code, code=1)
    assert "already_answered" in palyra(daemon, "approvals", "deny", question["approval_id"], code=1)
    (grant,) = json.loads(palyra(daemon, "approvals", "grants", "--json"))["grants"]
    assert grant["scope"] == "session"
    palyra(daemon, "approvals", "revoke", grant["grant_id"])
    assert "revoked" in palyra(daemon, "approvals", "grants")


def test_a_denial_is_told_to_the_agent(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    sent = daemon.send("Please.")
    palyra(daemon, "approvals", "deny", asked(daemon)["approval_id"], "--reason", "not today")
    daemon.finished(sent["run_id"])
    assert not (daemon.home.workspace / "notes.txt").exists()
    answer = [line.event["text"] for line in daemon.tape(f"/runs/{sent['run_id']}") if "text" in line.event]
    assert "[denied] not today" in answer[-1]


def test_what_is_dangerous_is_denied_at_once_while_nobody_can_be_asked(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    sent = daemon.send("danger")
    assert daemon.finished(sent["run_id"])["status"] == "done"
    assert any("no_approval_channel" in str(line.event) for line in daemon.tape(f"/runs/{sent['run_id']}"))
    assert not (daemon.home.workspace / ".bashrc").exists()


def test_whoever_watches_over_grpc_is_asked_and_answers(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    with service(daemon) as (call, stream):
        news = stream("WatchApprovals", pb.WatchApprovalsRequest(), pb.WatchApprovalsResponse)
        # The first question proves that the watch has begun; only then is a dangerous one sure to be asked.
        first = daemon.send("Please.", session={"key": "one"})
        (question,) = next(news).approvals
        assert (question.run_id, question.decision) == (first["run_id"], "")
        sent = daemon.send("danger", session={"key": "two"})
        (danger,) = next(news).approvals
        assert danger.effect.risk == "high"
        request = pb.ResolveApprovalRequest(approval_id=danger.approval_id, allow=True)
        assert call("ResolveApproval", request, pb.ResolveApprovalResponse).approval.decision == "allowed"
        assert [one.decision for one in next(news).approvals] == ["allowed"]
        news.cancel()
        daemon.finished(sent["run_id"])
        assert (daemon.home.workspace / ".bashrc").read_text() == "hello\n"
        request = pb.ResolveApprovalRequest(approval_id=danger.approval_id, allow=False)
        with pytest.raises(grpc.RpcError) as refused:
            call("ResolveApproval", request, pb.ResolveApprovalResponse)
        assert "already_answered" in str(refused.value.trailing_metadata())
        found = call("ListApprovals", pb.ListApprovalsRequest(only_open=True), pb.ListApprovalsResponse)
        assert [one.approval_id for one in found.approvals] == [question.approval_id]


def test_the_export_proves_itself_line_by_line(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    for place in range(3):
        daemon.send("Please.", session={"key": str(place)})
    until(lambda: len(daemon.get("/approvals")["approvals"]) == 3)
    *lines, end = palyra(daemon, "approvals", "export").splitlines()
    chain = "0" * 64
    for line in lines:
        content = line.removeprefix('{"approval":').rpartition(',"chain":"')[0]
        chain = hashlib.sha256(chain.encode() + content.encode()).hexdigest()
        assert json.loads(line)["chain"] == chain
    assert json.loads(end) == {"end": True, "count": 3, "chain": chain}


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"decision": "maybe"}, "request_malformed"),
        ({"decision": "allow", "scope": "timeboxed"}, "answer_malformed"),
        ({"decision": "deny", "scope": "always"}, "answer_malformed"),
        ({"decision": "allow", "why": "x"}, "request_malformed"),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused_and_the_question_stays(
    new_sqlite_daemon: NewDaemon, answer: Json, code: str
) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    daemon.send("Please.")
    question = asked(daemon)
    with pytest.raises(Refused) as refused:
        daemon.post(f"/approvals/{question['approval_id']}/resolve", answer)
    assert refused.value.code == code
    assert asked(daemon)["approval_id"] == question["approval_id"]
