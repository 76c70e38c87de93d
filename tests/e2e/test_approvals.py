"""Questions through the doors of a real daemon: asked, answered elsewhere, and over a kill in between."""

import hashlib
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from palyra.gateway.grpc.pb import approvals_pb2 as pb
from tests.e2e.conftest import NewDaemon
from tests.e2e.test_cli_terminal import terminal
from tests.support.command import palyra
from tests.support.daemon import Daemon, Refused, until
from tests.support.needs import BUBBLEWRAP, needs

Json = Any

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guides" / "approvals.md"

CALL = {"do": "call", "tool": "files.write", "arguments": {"path": "notes.txt", "text": "hello\n"}}
DANGER = {"do": "call", "tool": "files.write", "arguments": {"path": ".bashrc", "text": "hello\n"}}
ODD = {
    "do": "call",
    "tool": "files.write",
    "arguments": {"path": "notes.txt", "text": "a\u2028b\u0085c\x7fd\u202e\U0001f600ä\x0c\n"},
}
SCRIPT = {
    "rules": [
        {"when": {"equals": "odd", "tools": True}, "turns": [[ODD], [{"do": "text", "text": "{result}"}]]},
        {"when": {"contains": "danger", "tools": True}, "turns": [[DANGER], [{"do": "text", "text": "{result}"}]]},
        {"when": {"tools": True}, "turns": [[CALL], [{"do": "text", "text": "{result}"}]]},
    ],
    "default": [{"do": "text", "text": "Nothing to do."}],
}


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
                request, metadata=meta, timeout=60
            )

        def stream(method: str, request: Any, answer: Any) -> Any:
            path = f"/palyra.v1.ApprovalsService/{method}"
            return channel.unary_stream(path, type(request).SerializeToString, answer.FromString)(
                request, metadata=meta, timeout=60
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
    shown = palyra(daemon, "approvals", "show", code)
    assert all(part in shown for part in ("allowed", "user:owner", "session", "go on", "+hello"))
    assert "approval_answered" in palyra(daemon, "approvals", "deny", question["approval_id"], code=1)
    (grant,) = json.loads(palyra(daemon, "approvals", "grants", "--json"))["grants"]
    assert grant["scope"] == "session"
    palyra(daemon, "approvals", "revoke", grant["grant_id"][-6:])
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
        assert "approval_answered" in str(refused.value.trailing_metadata())
        found = call("ListApprovals", pb.ListApprovalsRequest(only_open=True), pb.ListApprovalsResponse)
        assert [one.approval_id for one in found.approvals] == [question.approval_id]


def test_the_export_proves_itself_line_by_line(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    for place in range(3):
        daemon.send("odd" if place == 1 else "Please.", session={"key": str(place)})
    until(lambda: len(daemon.get("/approvals")["approvals"]) == 3)
    *lines, end = palyra(daemon, "approvals", "export").splitlines()
    chain = "0" * 64
    for line in lines:
        content = line.removeprefix('{"approval":').rpartition(',"chain":"')[0]
        chain = hashlib.sha256(chain.encode() + content.encode()).hexdigest()
        assert json.loads(line)["chain"] == chain
    assert json.loads(end) == {"end": True, "count": 3, "chain": chain}
    strange = [
        approval for line in lines if "b\u0085c" in (approval := json.loads(line)["approval"])["arguments"]["text"]
    ]
    assert strange
    assert all("a⟨U+2028⟩b⟨U+0085⟩c⟨DEL⟩d⟨U+202E⟩" in approval["effect"]["detail"] for approval in strange)


def test_the_script_of_the_guide_proves_an_export(new_sqlite_daemon: NewDaemon, tmp_path: Path) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    for place, text in enumerate(("Please.", "odd")):
        daemon.send(text, session={"key": str(place)})
    until(lambda: len(daemon.get("/approvals")["approvals"]) == 2)
    script = GUIDE.read_text().partition("palyra approvals export > approvals.ndjson\n")[2].partition("```")[0]

    def proved() -> int:
        return subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, timeout=60).returncode

    exported = palyra(daemon, "approvals", "export")
    (tmp_path / "approvals.ndjson").write_text(exported)
    assert proved() == 0
    (tmp_path / "approvals.ndjson").write_text(exported.replace("notes.txt", "n0tes.txt", 1))
    assert proved() == 1
    (tmp_path / "approvals.ndjson").write_text("".join(exported.splitlines(keepends=True)[1:]))
    assert proved() == 1


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"decision": "maybe"}, "request_invalid"),
        ({"decision": "allow", "scope": "timeboxed"}, "approval_answer_invalid"),
        ({"decision": "deny", "scope": "always"}, "approval_answer_invalid"),
        ({"decision": "allow", "why": "x"}, "request_invalid"),
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


# -- asked once more


def test_what_nobody_answered_is_asked_once_more_through_every_door_and_over_a_kill(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(SCRIPT).start(approvals_timeout_seconds=10, approvals_inbox=True)
    sent = [daemon.send(text, session={"key": text}) for text in ("Please.", "danger", "And here.")]
    for one in sent:
        assert daemon.finished(one["run_id"], seconds=60)["status"] == "done"
    late = {one["run_id"]: one for one in daemon.get("/approvals")["approvals"]}
    assert {one["decision"] for one in late.values()} == {"timed_out"}
    plain, danger, here = (late[one["run_id"]] for one in sent)
    daemon.kill()
    daemon.start()

    told = palyra(daemon, "approvals", "reissue", plain["approval_id"][-6:])

    question = asked(daemon)
    assert question["approval_id"][-6:] in told
    for name in ("tool", "arguments", "session_id", "agent_id"):
        assert question[name] == plain[name]
    with service(daemon) as (call, _):
        # Over gRPC: the same run, since it is open; and what is open itself is not asked once more.
        request = pb.ReissueApprovalRequest(approval_id=plain["approval_id"])
        known = call("ReissueApproval", request, pb.ReissueApprovalResponse)
        assert (known.run_id, known.session_id, known.repeated) == (question["run_id"], plain["session_id"], True)
        shown = call("GetApproval", pb.GetApprovalRequest(approval_id=plain["approval_id"]), pb.GetApprovalResponse)
        assert shown.approval.reissued_as == question["run_id"]
        request = pb.ReissueApprovalRequest(approval_id=question["approval_id"])
        with pytest.raises(grpc.RpcError) as refused:
            call("ReissueApproval", request, pb.ReissueApprovalResponse)
        assert "approval_open" in str(refused.value.trailing_metadata())
    assert f"run {question['run_id']}" in palyra(daemon, "approvals", "show", plain["approval_id"])
    daemon.kill()
    daemon.start()
    palyra(daemon, "approvals", "allow", question["approval_id"])
    assert daemon.finished(question["run_id"])["status"] == "done"
    assert (daemon.home.workspace / "notes.txt").read_text() == "hello\n"
    assert plain["approval_id"] in palyra(daemon, "why", question["run_id"], "--json")

    # The command that waits for the question is somebody who can be asked: there is no inbox any more.
    again = json.loads(palyra(daemon, "approvals", "reissue", danger["approval_id"], "--json"))
    assert (again["approval"]["effect"]["risk"], again["run"]["repeated"]) == ("high", False)
    palyra(daemon, "approvals", "deny", again["approval"]["approval_id"])
    assert "approval_answered" in palyra(daemon, "approvals", "reissue", again["approval"]["approval_id"], code=1)
    daemon.finished(again["run"]["run_id"])
    assert not (daemon.home.workspace / ".bashrc").exists()

    # At a terminal one is asked right there, and sees what becomes of it.
    (daemon.home.workspace / "notes.txt").unlink()
    with terminal(daemon.home.path, "approvals", "reissue", here["approval_id"]) as screen:
        screen.wait_for("Ask me again about this")
        screen.wait_for("yes, no, session")
        screen.type("yes\n")
        screen.wait_for("notes.txt")
        assert screen.end() == 0
    assert (daemon.home.workspace / "notes.txt").read_text() == "hello\n"
    assert daemon.verify().ok


# -- a program


@needs(BUBBLEWRAP)
def test_a_command_runs_in_the_strict_sandbox_once_it_is_allowed(new_sqlite_daemon: NewDaemon) -> None:
    line = "echo from inside > made.txt; cat made.txt; ls /home /root 2>/dev/null; cat /proc/1/comm; exit 3"
    call = {"do": "call", "tool": "shell.run", "arguments": {"command": line, "access": "write"}}
    turns = [[call], [{"do": "text", "text": "{result}"}]]
    daemon = new_sqlite_daemon({"rules": [{"when": {"tools": True}, "turns": turns}]}).start(sandbox_tier="strict")
    (daemon.home.path / "private.txt").write_text("mine")
    sent = daemon.send("Please.")
    question = asked(daemon)
    assert "sandbox: strict" in question["effect"]["detail"]
    assert line in question["effect"]["detail"]
    assert not (daemon.home.workspace / "made.txt").exists()
    daemon.kill()
    daemon.start(sandbox_tier="strict")

    palyra(daemon, "approvals", "allow", question["approval_id"])

    assert daemon.finished(sent["run_id"])["status"] == "done"
    assert (daemon.home.workspace / "made.txt").read_text() == "from inside\n"
    (finished,) = [line.event for line in daemon.tape(f"/runs/{sent['run_id']}") if line.kind == "tool_finished"]
    stated = json.loads(finished["attestation"]["statement"])
    assert (stated["approval_id"], stated["tool"]) == (question["approval_id"], "shell.run")
    (ran,) = stated["ran"]
    assert (ran["tier"], ran["exit_code"]) == ("strict", 3)
    assert "from inside" in finished["text"]
    assert "systemd" not in finished["text"]


def run_command(command: str) -> Json:
    return {"do": "call", "tool": "shell.run", "arguments": {"command": command, "access": "write"}}


@needs(BUBBLEWRAP)
@pytest.mark.parametrize("answering", ["cli", "http", "grpc"])
def test_a_pattern_covers_what_the_person_wrote_and_nothing_else(new_sqlite_daemon: NewDaemon, answering: str) -> None:
    script = {
        "rules": [
            {
                "when": {"contains": text, "tools": True},
                "turns": [[run_command(command)], [{"do": "text", "text": "."}]],
            }
            for text, command in (("first", "touch a-1"), ("second", "touch a-2"), ("third", "touch -r a-1 a-3"))
        ]
    }
    daemon = new_sqlite_daemon(script, approvals_inbox=True).start()
    sent = daemon.send("first", session={"key": "1"})
    question = asked(daemon)["approval_id"]
    refused = {"decision": "allow", "scope": "always", "pattern": "* **"}
    assert daemon.ask("POST", f"/approvals/{question}/resolve", body=refused).status_code == 400
    pattern = "touch a-*"
    if answering == "cli":
        shown = palyra(daemon, "approvals", "allow", question, "--for", "always", "--pattern", pattern)
        assert pattern in shown
    elif answering == "http":
        body = {"decision": "allow", "scope": "always", "pattern": pattern}
        assert daemon.post(f"/approvals/{question}/resolve", body)["approval"]["pattern"] == pattern
    else:
        with service(daemon) as (call, _):
            request = pb.ResolveApprovalRequest(approval_id=question, allow=True, scope="always", pattern=pattern)
            answered = call("ResolveApproval", request, pb.ResolveApprovalResponse).approval
            assert (answered.pattern, answered.effect.access) == (pattern, "write")
    daemon.finished(sent["run_id"])
    daemon.finished(daemon.send("second", session={"key": "2"})["run_id"])
    assert sorted(path.name for path in daemon.home.workspace.glob("a-*")) == ["a-1", "a-2"]
    listed = palyra(daemon, "approvals", "grants")
    assert pattern in listed
    third = daemon.send("third", session={"key": "3"})
    assert asked(daemon)["run_id"] == third["run_id"]
    (grant,) = daemon.get("/grants")["grants"]
    daemon.ask("POST", f"/grants/{grant['grant_id']}/revoke")
    fourth = daemon.send("second", session={"key": "4"})
    until(
        lambda: [one for one in daemon.get("/approvals", open="true")["approvals"] if one["run_id"] == fourth["run_id"]]
    )
    assert daemon.verify().ok


def test_what_is_dictated_is_in_the_file_to_the_letter_and_last_names_the_only_question(
    new_sqlite_daemon: NewDaemon,
) -> None:
    daemon = new_sqlite_daemon().start(model_provider="embedded")
    text = 'Hello, world.\n\tGrüße: "quoted" … \n'
    first = daemon.send(f'write "{text}" to notes.txt')
    asked(daemon)
    palyra(daemon, "approvals", "show", "last")
    palyra(daemon, "approvals", "allow", "last")
    assert daemon.finished(first["run_id"])["status"] == "done"
    assert (daemon.home.workspace / "notes.txt").read_bytes() == text.encode()
    daemon.send("add one to a.txt", session={"key": "one"})
    daemon.send("add two to b.txt", session={"key": "two"})
    until(lambda: len(daemon.get("/approvals", open="true")["approvals"]) == 2)
    # Which of them the person has seen, nobody knows.
    assert "[approval_ambiguous]" in palyra(daemon, "approvals", "allow", "last", code=2)
