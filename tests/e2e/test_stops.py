"""The brake on a real daemon: what sleeps, speaks or delegates ends, however it is pulled."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.gateway.grpc.pb import stops_pb2
from tests.e2e.conftest import NewDaemon
from tests.e2e.proof import prove
from tests.support.command import palyra
from tests.support.daemon import Daemon, NotServing, Refused, until
from tests.support.needs import BUBBLEWRAP, needs

Json = Any

NAP = "sleep 501.7"
"""A length that no other program on this machine sleeps for."""
CALL = {"do": "call", "tool": "shell.run", "arguments": {"command": NAP, "access": "write", "seconds": 590}}
SCRIPT = {
    "rules": [
        {"when": {"contains": "endless"}, "actions": [{"do": "endless", "text": "la ", "delay_ms": 5}]},
        {"when": {"equals": "silent"}, "actions": [{"do": "delay", "ms": 600_000}]},
        {"when": {"equals": "sleep", "tools": True}, "turns": [[CALL], [{"do": "text", "text": "Awake."}]]},
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


def admin(daemon: Daemon, verb: str, body: Json = None) -> Json:
    headers = {"authorization": f"Bearer {daemon.token}"}
    answer = httpx.post(f"{daemon.address}/admin/v1/{verb}", headers=headers, json=body or {}, timeout=60, verify=False)
    assert answer.is_success, answer.text
    return answer.json()


def sleepers() -> list[int]:
    """Return the processes that take our nap."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"501.7" in words:
                found.append(int(folder.name))
    return found


def begun(daemon: Daemon, text: str, *, kind: str, **options: Any) -> Json:
    run = daemon.send(text, **options)
    until(lambda: any(line.kind == kind for line in daemon.tape(f"/runs/{run['run_id']}")))
    return run


def asleep(daemon: Daemon) -> Json:
    """Begin a run whose shell command sleeps for minutes in the strict sandbox."""
    run = daemon.send("sleep")
    question = until(lambda: daemon.get("/approvals", open="true")["approvals"])[0]
    assert "sandbox: strict" in question["effect"]["detail"]
    daemon.post(f"/approvals/{question['approval_id']}/resolve", {"decision": "allow"})
    until(sleepers)
    return run


def assert_stopped(daemon: Daemon, run: Json, *, reason: str) -> None:
    """Wait for the end of a run that would go on for minutes."""
    ended = daemon.finished(run["run_id"])
    assert (ended["status"], ended["reason"]) == ("cancelled", reason)


@needs(BUBBLEWRAP)
def test_a_program_that_sleeps_and_a_model_that_speaks_end_at_once(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(SCRIPT).start()
    runs = [
        begun(daemon, "endless", kind="model_text"),
        begun(daemon, "silent", kind="model_turn_started"),
        asleep(daemon),
    ]
    answer = admin(daemon, "stops", {"reason": "smoke"})
    for run in runs:
        assert_stopped(daemon, run, reason="stopped by user:owner: smoke")
    assert answer["cancelled_runs"] == 3
    until(lambda: not sleepers())

    with pytest.raises(Refused) as refused:
        daemon.send("hello")
    assert (refused.value.status, refused.value.code) == (409, "work_stopped")
    assert "by user:owner: smoke" in refused.value.problem["detail"]
    assert "palyra resume" in refused.value.problem["detail"]
    health = httpx.get(f"{daemon.address}/healthz", verify=False).json()
    assert health["status"] == "stopped"
    assert "smoke" not in json.dumps(health)
    part = next(part for part in daemon.get("/status")["parts"] if part["name"] == "stop")
    assert (part["status"], "smoke" in part["detail"]) == ("stopped", True)

    admin(daemon, "stops/resume")
    assert daemon.finished(daemon.send("hello")["run_id"])["status"] == "done"
    assert httpx.get(f"{daemon.address}/healthz", verify=False).json()["status"] == "ok"
    prove(daemon)


def test_grpc_refuses_with_the_same_code(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    admin(daemon, "stops")
    meta = (("authorization", f"Bearer {daemon.token}"),)
    with grpc.insecure_channel(daemon.get("/status")["grpc"]) as channel:
        route = channel.unary_unary(
            "/palyra.v1.GatewayService/RouteMessage",
            pb.RouteMessageRequest.SerializeToString,
            pb.RouteMessageResponse.FromString,
        )
        with pytest.raises(grpc.RpcError) as refused:
            route(pb.RouteMessageRequest(message=pb.InboundMessage(text="hello")), metadata=meta, timeout=60)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    metadata: Any = refused.value.trailing_metadata()
    assert dict(metadata)["palyra-error-code"] == "work_stopped"


def test_the_brake_is_there_over_grpc_too(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    run = begun(daemon, "endless", kind="model_text")
    meta = (("authorization", f"Bearer {daemon.token}"),)
    with grpc.insecure_channel(daemon.get("/status")["grpc"]) as channel:

        def call(method: str, request: Any, answer: Any) -> Any:
            path = f"/palyra.v1.StopService/{method}"
            return channel.unary_unary(path, type(request).SerializeToString, answer.FromString)(
                request, metadata=meta, timeout=60
            )

        stopped = call("StopAll", stops_pb2.StopAllRequest(reason="smoke"), stops_pb2.StopResponse)
        assert (stopped.stop.by, stopped.stop.reason, stopped.cancelled_runs) == ("user:owner", "smoke", 1)
        assert daemon.finished(run["run_id"])["status"] == "cancelled"
        listed = call("ListStops", stops_pb2.ListStopsRequest(), stops_pb2.ListStopsResponse)
        assert [stop.stop_id for stop in listed.stops] == [stopped.stop.stop_id]
        with pytest.raises(grpc.RpcError) as refused:
            call("ResumeOwn", stops_pb2.ResumeOwnRequest(), stops_pb2.ResumeResponse)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        resumed = call("ResumeAll", stops_pb2.ResumeAllRequest(), stops_pb2.ResumeResponse)
        assert (len(resumed.resumed), len(resumed.stops)) == (1, 0)
        own = call("StopOwn", stops_pb2.StopOwnRequest(), stops_pb2.StopResponse)
        assert own.stop.principal == "user:owner"
        call("ResumeOwn", stops_pb2.ResumeOwnRequest(), stops_pb2.ResumeResponse)
    assert daemon.finished(daemon.send("hello")["run_id"])["status"] == "done"


def test_it_holds_over_a_kill_and_queued_runs_start_when_it_is_over(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(SCRIPT).start()
    session = {"key": "one"}
    active = begun(daemon, "endless", kind="model_text", session=session)
    queued = daemon.send("at last", session=session)
    parent = daemon.send("delegate")
    child = until(lambda: next((run for run in daemon.runs() if run["parent_run_id"]), None))
    until(lambda: daemon.run(child["run_id"])["status"] == "in_progress")
    admin(daemon, "stops", {"reason": "smoke"})
    daemon.kill()
    daemon.start()

    for run in (active, parent, child):
        assert daemon.finished(run["run_id"], seconds=60)["status"] == "cancelled"
    assert [line.kind for line in daemon.tape(f"/runs/{queued['run_id']}")] == ["run_accepted"]
    with pytest.raises(Refused):
        daemon.send("hello")
    admin(daemon, "stops/resume")
    assert daemon.finished(queued["run_id"])["status"] == "done"
    prove(daemon)


@pytest.mark.parametrize("commits", range(4, 10))
def test_a_kill_in_the_middle_of_stopping_leaves_nothing_going(new_sqlite_daemon: NewDaemon, commits: int) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    runs = [begun(daemon, "silent", kind="model_turn_started") for _ in range(3)]
    daemon.kill()
    # The file is heeded from the start on: among the first commits are its row and the ends of the runs.
    daemon.home.stop.write_text("smoke\n")
    with suppress(NotServing):
        daemon.start(crash_after=commits)
        daemon.wait()
    assert not daemon.alive
    daemon.start()
    for run in runs:
        ended = daemon.finished(run["run_id"], seconds=60)
        assert (ended["status"], ended["reason"]) == ("cancelled", "stopped by file:STOP: smoke")
        kinds = [line.kind for line in daemon.tape(f"/runs/{run['run_id']}")]
        assert (kinds.count("run_cancelled"), kinds.count("model_turn_started")) == (1, 1)
    prove(daemon)


def test_the_command_line_stops_and_resumes(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(SCRIPT).start()
    run = begun(daemon, "endless", kind="model_text")
    said = palyra(daemon, "stop", "--reason", "the cat is on the keyboard")
    assert "by user:owner: the cat is on the keyboard. Cancelled 1 active run." in said
    assert daemon.finished(run["run_id"])["status"] == "cancelled"
    assert "the cat is on the keyboard" in palyra(daemon, "status")
    assert "[work_stopped]" in palyra(daemon, "run", "-m", "hello", code=1)
    assert "Resumed all work." in palyra(daemon, "resume")
    assert "You said: hello" in palyra(daemon, "run", "-m", "hello")
    assert "[stop_not_found]" in palyra(daemon, "resume", code=1)
    shown = json.loads(palyra(daemon, "stop", "--principal", "user:owner", "--json"))
    assert (shown["stop"]["principal"], shown["cancelled_runs"]) == ("user:owner", 0)
    assert "[principal_not_found]" in palyra(daemon, "stop", "--principal", "user:nobody", code=1)
    assert "Resumed the work of user:owner." in palyra(daemon, "resume")


def test_a_file_stops_a_daemon_that_runs_and_holds_one_that_starts(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(SCRIPT).start()
    run = begun(daemon, "endless", kind="model_text")
    daemon.home.stop.write_text("nobody can log in\n")
    assert_stopped(daemon, run, reason="stopped by file:STOP: nobody can log in")
    assert "[stop_file_exists]" in palyra(daemon, "resume", code=1)
    assert "Resumed all work." in palyra(daemon, "resume", "--remove-file")
    assert not daemon.home.stop.exists()
    assert daemon.finished(daemon.send("hello")["run_id"])["status"] == "done"

    daemon.stop()
    said = palyra(daemon, "stop", "--reason", "before the holidays")
    assert str(daemon.home.stop) in said
    assert ("Other daemons on the same database" in said) is (daemon.database_url is not None)
    assert "[daemon_required]" in palyra(daemon, "stop", "--principal", "user:owner", code=1)
    daemon.start()
    with pytest.raises(Refused) as refused:
        daemon.send("hello")
    assert "before the holidays" in refused.value.problem["detail"]
    palyra(daemon, "resume", "--remove-file")
    assert daemon.finished(daemon.send("hello")["run_id"])["status"] == "done"


def test_everybody_stops_their_own_and_only_an_administrator_all(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    made = httpx.post(
        f"{daemon.address}/admin/v1/tokens",
        headers={"authorization": f"Bearer {daemon.token}"},
        json={"principal": "user:ana", "name": "ana"},
        verify=False,
    ).json()
    ana = httpx.Client(base_url=daemon.address, headers={"authorization": f"Bearer {made['secret']}"}, verify=False)
    mine = begun(daemon, "endless", kind="model_text")
    hers = ana.post("/console/v1/runs", json={"text": "endless"}).json()

    assert ana.post("/admin/v1/stops", json={}).json()["code"] == "token_scope_missing"
    assert ana.post("/admin/v1/stops/resume", json={}).json()["code"] == "token_scope_missing"
    stopped = ana.post("/console/v1/stops", json={"reason": "tired"}).json()
    assert (stopped["stop"]["principal"], stopped["cancelled_runs"]) == ("user:ana", 1)
    assert until(lambda: ana.get(f"/console/v1/runs/{hers['run_id']}").json()["run"]["ended_at"])
    assert ana.post("/console/v1/runs", json={"text": "hello"}).json()["code"] == "work_stopped"
    assert daemon.run(mine["run_id"])["status"] == "in_progress"
    # Of what others stopped of their own nobody learns, who it was in particular.
    assert daemon.get("/stops")["stops"] == []
    assert "ana" not in json.dumps(daemon.get("/status"))

    admin(daemon, "stops", {"principal": "user:ana", "reason": "too loud"})
    left = ana.post("/console/v1/stops/resume", json={}).json()
    assert [stop["by"] for stop in left["stops"]] == ["user:owner"]
    assert ana.post("/console/v1/stops/resume", json={}).json()["code"] == "stop_not_allowed"
    admin(daemon, "stops/resume", {"principal": "user:ana"})
    assert ana.post("/console/v1/runs", json={"text": "hello"}).status_code == 202
    ana.close()
