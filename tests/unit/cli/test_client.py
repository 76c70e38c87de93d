"""The client against doors on real sockets, gRPC and HTTP."""

import socket

import grpc
import pytest

from palyra.core.agent import Agent
from palyra.core.events import InputMode
from palyra.core.ids import AgentId, PrincipalId
from palyra.core.limits import Limits
from palyra.core.message import TextInvalid
from palyra.core.session import SessionNameInvalid, SessionRef
from palyra.gateway.client.client import Client
from palyra.gateway.client.errors import DaemonResponseInvalid, DaemonUnreachable, RemoteError
from palyra.gateway.client.target import DaemonTarget, find_target
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.home import Home
from tests.support.builders import AGENT, ANA, RUN, SESSION
from tests.unit.cli.door import CUT, TOKEN, Answer, Door, Refusal, open_grpc, problem
from tests.unit.cli.wire import a_run, a_session, accepted, an_agent, health, resolved, the_run, the_session

SHUT = DaemonTarget(address="http://127.0.0.1:1", grpc="127.0.0.1:1", token=TOKEN)
STOPPING = Refusal(grpc.StatusCode.UNAVAILABLE, "Stopping.", code="journal_closed", retry_after_ms=100)


def test_requests_carry_the_token(client: Client, door: Door) -> None:
    door.tells("GetHealth", health(version="0.1.0"))
    door.says("GET", f"/runs/{RUN}", {"run": a_run()})
    assert client.status().version == "0.1.0"
    assert client.run(RUN).run_id == RUN
    assert [seen.token for seen in door.seen] == [TOKEN, TOKEN]


def test_a_session_is_resolved(client: Client, door: Door) -> None:
    door.tells("ResolveSession", resolved())
    session = client.resolve(SessionRef(key="cli"))
    assert session.title == "Hello"
    assert door.called("ResolveSession")[0].session.key == "cli"


@pytest.mark.parametrize("ref", [SessionRef(key=""), SessionRef(label=""), SessionRef(session_id="")])
def test_an_empty_name_makes_no_session(client: Client, door: Door, ref: SessionRef) -> None:
    with pytest.raises(SessionNameInvalid):
        client.resolve(ref)
    assert door.seen == []


def test_a_name_that_is_no_text_is_not_sent(client: Client, door: Door) -> None:
    with pytest.raises(TextInvalid):
        client.send("Hi", SessionRef(key="\udcff"), mode=InputMode.QUEUE)
    assert door.seen == []


@pytest.mark.parametrize(
    "changes",
    [
        {"key": "k", "label": "l", "archived_at": "2026-01-02T03:04:05.678901Z", "active_run_id": RUN},
        {"agent_id": None, "title": None, "reset_seq": 3, "parent_session_id": SESSION},
    ],
)
def test_both_doors_tell_the_same_session(client: Client, door: Door, changes: dict[str, object]) -> None:
    door.says("GET", f"/sessions/{SESSION}", {"session": a_session(**changes)})
    door.tells("CleanupSession", pb.CleanupSessionResponse(session=the_session(**changes)))
    assert client.cleanup(SESSION) == client.session(SESSION)


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "failed", "reason": "no model", "limit_reached": "tool_calls", "parent_run_id": RUN},
        {"status": "in_progress", "ended_at": None, "cancel_requested": True, "usage": {}},
    ],
)
def test_both_doors_tell_the_same_run(client: Client, door: Door, changes: dict[str, object]) -> None:
    door.says("GET", f"/runs/{RUN}", {"run": a_run(**changes)})
    door.tells("AbortRun", pb.AbortRunResponse(run=the_run(**changes)))
    assert client.cancel(RUN) == client.run(RUN)


def test_an_agent_comes_as_it_was_sent(client: Client, door: Door) -> None:
    wanted = Agent(
        agent_id=AgentId(AGENT),
        principal=PrincipalId(ANA),
        name="reader",
        instructions="Read.",
        tools=(),
        workspace_roots=("/a", "/b"),
        limits=Limits(model_turns=3),
        is_default=True,
    )
    door.tells("UpdateAgent", pb.UpdateAgentResponse(agent=an_agent(**_fields(wanted))))
    assert client.agents.update(wanted) == wanted
    assert door.called("UpdateAgent")[0].agent == an_agent(**_fields(wanted))


def test_a_refusal_keeps_its_code_on_either_door(client: Client, door: Door) -> None:
    door.says("GET", f"/runs/{RUN}", problem("run_not_found", "There is no such run.", status=404))
    refusal = Refusal(grpc.StatusCode.NOT_FOUND, "There is no such run.", code="run_not_found")
    door.tells("AbortRun", refusal)
    for ask in (client.run, client.cancel):
        with pytest.raises(RemoteError) as caught:
            ask(RUN)
        assert (caught.value.code, caught.value.detail, caught.value.status) == (
            "run_not_found",
            "There is no such run.",
            404,
        )
    assert RemoteError.code == "remote_error"


@pytest.mark.parametrize(
    ("status", "number"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, 400),
        (grpc.StatusCode.UNAUTHENTICATED, 401),
        (grpc.StatusCode.PERMISSION_DENIED, 403),
        (grpc.StatusCode.FAILED_PRECONDITION, 409),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 429),
        (grpc.StatusCode.UNAVAILABLE, 503),
        (grpc.StatusCode.INTERNAL, 500),
    ],
)
def test_every_kind_of_refusal_has_its_number(
    client: Client, door: Door, *, status: grpc.StatusCode, number: int
) -> None:
    door.tells("GetHealth", Refusal(status, "No.", code="no"))
    with pytest.raises(RemoteError) as caught:
        client.status()
    assert (caught.value.code, caught.value.status, caught.value.retry_after) == ("no", number, None)


def test_a_refusal_may_say_when_to_come_again(client: Client, door: Door) -> None:
    door.tells("RouteMessage", Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "Full.", "run_queue_full", 2000))
    door.says("GET", "/runs", problem("storage_full", "Full.", status=503, retry_after=2.0))
    for ask in (lambda: client.send("Hi", SessionRef(), mode=InputMode.QUEUE), client.runs):
        with pytest.raises(RemoteError) as caught:
            ask()
        assert caught.value.retry_after == 2.0


def test_a_refusal_without_a_document_is_still_an_error(client: Client, door: Door) -> None:
    door.says("GET", "/runs", Answer(b"<html>", 502, "text/html"))
    with pytest.raises(RemoteError, match="502"):
        client.runs()


def test_a_refusal_without_a_code_is_still_an_error(client: Client, door: Door) -> None:
    door.tells("GetHealth", Refusal(grpc.StatusCode.UNKNOWN, "Oh no."))
    with pytest.raises(RemoteError, match=r"unknown: Oh no\."):
        client.status()


def test_what_is_too_large_for_grpc_is_bad_input(client: Client, door: Door) -> None:
    door.tells("RouteMessage", Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max"))
    with pytest.raises(RemoteError, match="larger than max") as caught:
        client.send("Hi", SessionRef(), mode=InputMode.QUEUE)
    assert caught.value.status == 413


def test_an_answer_that_makes_no_sense_is_told(client: Client, door: Door) -> None:
    door.says("GET", f"/runs/{RUN}", {"run": {"surprise": 1}})
    with pytest.raises(DaemonResponseInvalid):
        client.run(RUN)


def test_a_message_that_makes_no_sense_is_told(client: Client, door: Door) -> None:
    door.tells("GetHealth", b"\xff")
    with pytest.raises(DaemonResponseInvalid):
        client.status()


def test_a_daemon_that_lacks_the_method_is_of_another_version(client: Client, door: Door) -> None:
    door.tells("ListAgents", Refusal(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"))
    with pytest.raises(DaemonResponseInvalid, match="another version"):
        client.agents.all()


def test_a_door_that_is_shut_is_unreachable() -> None:
    client = Client(lambda: SHUT, answer_seconds=1)
    for ask in (client.status, client.runs):
        with pytest.raises(DaemonUnreachable, match="refused"):
            ask()


def test_a_daemon_that_hangs_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        client = Client(lambda: DaemonTarget(address=f"http://{at}", grpc=at, token=TOKEN), answer_seconds=0.2)
        for ask in (client.status, client.runs):
            with pytest.raises(DaemonUnreachable, match="no answer in time"):
                ask()


def test_a_proxy_of_the_environment_is_passed_by(client: Client, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:1")
    door.tells("GetHealth", health())
    assert client.status().storage == "ok"


def test_a_message_whose_answer_is_lost_is_sent_again_under_one_key(client: Client, door: Door) -> None:
    door.tells("RouteMessage", CUT, accepted())
    taken = client.send("Hi", SessionRef(key="cli"), mode=InputMode.STEER)
    assert taken.run_id == RUN
    first, second = door.called("RouteMessage")
    assert first == second
    assert first.message.idempotency_key
    assert first.message.mode == pb.MODE_STEER


def test_patience_has_an_end() -> None:
    client = Client(lambda: SHUT, answer_seconds=1)
    with pytest.raises(DaemonUnreachable):
        client.send("Hi", SessionRef(), mode=InputMode.QUEUE, timeout=0.1)


def test_a_patient_client_waits_for_the_daemon(inhabited: Home, door: Door) -> None:
    door.tells("GetHealth", CUT, STOPPING, health(version="1"))
    door.says("GET", "/runs", Answer(b"{", cut=True), problem("journal_closed", "Stopping.", status=503), {"runs": []})
    patient = Client(lambda: find_target(inhabited), answer_seconds=5, timeout=5)
    assert patient.status().version == "1"
    assert list(patient.runs().runs) == []
    assert len(door.seen) == 6


def test_a_daemon_that_comes_back_elsewhere_is_found_there(door: Door) -> None:
    door.tells("GetHealth", CUT, health(version="1"))
    looked: list[str] = []

    def find() -> DaemonTarget:
        # The first place is left before the second attempt.
        looked.append(door.grpc if looked else SHUT.grpc)
        return DaemonTarget(address=door.address, grpc=looked[-1], token=TOKEN)

    with open_grpc(door):
        assert Client(find, timeout=5).status().version == "1"
    assert looked == [SHUT.grpc, door.grpc, door.grpc]


def _fields(agent: Agent) -> dict[str, object]:
    return {name: getattr(agent, name) for name in agent.__struct_fields__}
