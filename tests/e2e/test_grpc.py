"""The gRPC door: found by reflection, followed without a gap, and not to be broken by what it is sent."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import msgspec
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palyra.core.events import decode
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.gateway.grpc.pb import vault_pb2
from tests.e2e.conftest import NewDaemon
from tests.support.daemon import Daemon

SERVICES = [s for file in (pb.DESCRIPTOR, vault_pb2.DESCRIPTOR) for s in file.services_by_name.values()]
METHODS = {method.name: method for service in SERVICES for method in service.methods}
SCRIPT = {
    "rules": [
        {"when": {"contains": "hold on"}, "actions": [{"do": "delay", "ms": 3_600_000}]},
        {"when": {"contains": "for ever"}, "actions": [{"do": "endless", "text": "and on ", "delay_ms": 5}]},
        {
            "when": {"contains": "look"},
            "turns": [
                [{"do": "call", "tool": "files.list", "arguments": {}}],
                [{"do": "delay", "ms": 300}, {"do": "call", "tool": "time.now", "arguments": {}}],
                [{"do": "text", "text": "I looked."}],
            ],
        },
    ],
    "default": [{"do": "text", "text": "You said: {input}"}],
}


class Door:
    """A client that knows no generated stubs: what it calls it finds by name."""

    def __init__(self, daemon: Daemon) -> None:
        self.channel = grpc.insecure_channel(json.loads(daemon.home.daemon.read_text())["grpc"])
        self.metadata = (("authorization", f"Bearer {daemon.token}"),)

    def __call__(self, name: str, request: Any, *, seconds: float = 10, token: bool = True) -> Any:
        method = METHODS[name]
        kind = ("stream" if method.client_streaming else "unary") + ("_stream" if method.server_streaming else "_unary")
        stub = getattr(self.channel, kind)(
            f"/{method.containing_service.full_name}/{name}",
            request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        return stub(request, metadata=self.metadata if token else (), timeout=seconds)

    def route(self, text: str, **session: object) -> Any:
        message = pb.InboundMessage(text=text, session=pb.SessionRef(**session))  # type: ignore[arg-type]
        return self("RouteMessage", pb.RouteMessageRequest(message=message)).accepted


def start(text: str, *, version: int = 1, key: str = "s") -> Any:
    message = pb.InboundMessage(text=text, session=pb.SessionRef(key=key))
    return pb.RunStreamRequest(start=pb.StartRun(protocol_version=version, message=message))


def entries_of(responses: Iterator[Any]) -> list[Any]:
    return [entry for response in responses for entry in response.entries]


def refusal(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    """Return with which status and code a call is refused."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    trailing: dict[str, Any] = dict(caught.value.trailing_metadata() or ())  # type: ignore[arg-type]
    return caught.value.code(), str(trailing.get("palyra-error-code", ""))


@pytest.fixture
def daemon(new_sqlite_daemon: NewDaemon) -> Daemon:
    daemon = new_sqlite_daemon(SCRIPT)
    daemon.start()
    return daemon


@pytest.fixture
def door(daemon: Daemon) -> Iterator[Door]:
    door = Door(daemon)
    yield door
    door.channel.close()


def test_reflection_tells_of_every_service_and_method(door: Door) -> None:
    database = ProtoReflectionDescriptorDatabase(door.channel)
    assert {*(service.full_name for service in SERVICES), "grpc.health.v1.Health"} <= set(database.get_services())
    for service in SERVICES:
        described = database.FindFileContainingSymbol(service.full_name)
        assert {method.name for method in described.service[0].method} == {method.name for method in service.methods}


def test_health_is_told_by_the_standard_service_and_by_our_own(door: Door) -> None:
    stub: Any = health_pb2_grpc.HealthStub(door.channel)
    standard = stub.Check(health_pb2.HealthCheckRequest(service=SERVICES[0].full_name))
    assert standard.status == health_pb2.HealthCheckResponse.SERVING
    assert door("GetHealth", pb.GetHealthRequest(), token=False).status == "ok"
    assert {part.name for part in door("GetHealth", pb.GetHealthRequest(parts=True)).parts} >= {"journal", "worker"}
    assert refusal(lambda: door("GetHealth", pb.GetHealthRequest(parts=True), token=False))[1] == "unauthenticated"


def test_a_run_stream_is_the_tape_of_its_run(daemon: Daemon, door: Door) -> None:
    responses = list(door("RunStream", iter([start("look")])))
    accepted = responses[0].accepted
    entries = entries_of(iter(responses))
    tape = daemon.tape(f"/runs/{accepted.run_id}")
    assert [(entry.tape_seq, entry.run_seq, entry.kind) for entry in entries] == [
        (line.seq, line.run_seq, line.kind) for line in tape
    ]
    assert [json.loads(entry.event) for entry in entries] == [line.event for line in tape]
    assert entries[-1].kind == "run_completed"


def test_attaching_at_any_position_gives_the_rest_and_nothing_twice(door: Door) -> None:
    accepted = door.route("look", key="a")
    whole = entries_of(door("AttachRun", pb.AttachRunRequest(run_id=accepted.run_id)))
    for place in range(len(whole)):
        after = whole[place].tape_seq
        rest = entries_of(door("AttachRun", pb.AttachRunRequest(run_id=accepted.run_id, after_seq=after)))
        assert [entry.tape_seq for entry in rest] == [entry.tape_seq for entry in whole[place + 1 :]]
    beyond = pb.AttachRunRequest(run_id=accepted.run_id, after_seq=whole[-1].tape_seq + 1000)
    assert refusal(lambda: list(door("AttachRun", beyond))) == (grpc.StatusCode.INVALID_ARGUMENT, "offset_beyond_end")


def test_attaching_to_a_session_goes_on_with_what_comes(door: Door) -> None:
    accepted = door.route("one", key="live")
    call = door("AttachSession", pb.AttachSessionRequest(session_id=accepted.session_id))
    seen: list[int] = []
    second = ""
    for batch in call:
        seen += [entry.tape_seq for entry in batch.entries]
        if not second and any(entry.kind == "run_completed" for entry in batch.entries):
            second = door.route("two", session_id=accepted.session_id).run_id
        if any(entry.kind == "run_completed" and entry.run_id == second for entry in batch.entries):
            break
    call.cancel()
    assert seen == list(range(1, len(seen) + 1))


def test_a_stream_can_steer_its_run(daemon: Daemon, door: Door) -> None:
    def requests() -> Iterator[Any]:
        yield start("look")
        yield pb.RunStreamRequest(steer=pb.SteerRun(text="and be quick"))

    entries = entries_of(door("RunStream", requests()))
    assert any(entry.kind == "input_steered" for entry in entries)
    assert entries[-1].kind == "run_completed"


def test_a_stream_can_cancel_its_run(door: Door) -> None:
    def requests() -> Iterator[Any]:
        yield start("for ever")
        yield pb.RunStreamRequest(cancel=pb.CancelRun(reason="enough"))

    assert entries_of(door("RunStream", requests()))[-1].kind == "run_cancelled"


def test_whoever_detaches_leaves_the_run_alone(daemon: Daemon, door: Door) -> None:
    def requests() -> Iterator[Any]:
        yield start("look")
        yield pb.RunStreamRequest(detach=pb.Detach())

    responses = list(door("RunStream", requests()))
    run_id = responses[0].accepted.run_id
    assert daemon.finished(run_id)["status"] == "done"


def test_a_run_can_be_aborted(daemon: Daemon, door: Door) -> None:
    accepted = door.route("for ever", key="abort")
    door("AbortRun", pb.AbortRunRequest(run_id=accepted.run_id, reason="no more"))
    assert daemon.finished(accepted.run_id)["status"] == "cancelled"


def test_wrong_requests_are_refused_with_their_codes(door: Door) -> None:
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    assert refusal(lambda: list(door("RunStream", iter([start("hi", version=2)])))) == (
        invalid,
        "protocol_version_unsupported",
    )
    assert refusal(lambda: list(door("RunStream", iter([pb.RunStreamRequest()])))) == (invalid, "request_invalid")
    assert refusal(lambda: list(door("RunStream", iter([])))) == (invalid, "request_invalid")
    assert refusal(lambda: door.route("")) == (invalid, "message_empty")
    assert refusal(lambda: door.route("a" * 300_000)) == (invalid, "message_too_large")
    assert refusal(lambda: door.route("x", session_id="nonsense")) == (invalid, "id_invalid")
    missing = pb.AttachRunRequest(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV")
    assert refusal(lambda: list(door("AttachRun", missing))) == (grpc.StatusCode.NOT_FOUND, "run_not_found")
    assert refusal(lambda: door("ListSessions", pb.ListSessionsRequest(), token=False)) == (
        grpc.StatusCode.UNAUTHENTICATED,
        "unauthenticated",
    )
    huge = pb.RouteMessageRequest(message=pb.InboundMessage(text="a" * 2_000_000))
    assert refusal(lambda: door("RouteMessage", huge))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_deadline_ends_the_stream_and_not_the_run(daemon: Daemon, door: Door) -> None:
    call = door("RunStream", iter([start("hold on", key="late")]), seconds=5)
    run_id = next(iter(call)).accepted.run_id
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert daemon.run(run_id)["ended_at"] is None
    door("AbortRun", pb.AbortRunRequest(run_id=run_id, reason="it went on"))
    assert daemon.finished(run_id)["reason"] == "it went on"


def test_garbage_never_breaks_the_door(daemon: Daemon, door: Door) -> None:
    # Bytes that are no message at all are answered by gRPC itself, which calls that internal.
    undecodable = {grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED}

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(name=st.sampled_from(sorted(METHODS)), data=st.binary(max_size=200))
    def throw(name: str, data: bytes) -> None:
        method = METHODS[name]
        try:
            answer = door(name, iter([data]) if method.client_streaming else data, seconds=2)
            if method.server_streaming:
                for _ in zip(range(3), answer, strict=False):
                    pass
                answer.cancel()
            code = grpc.StatusCode.OK
        except grpc.RpcError as error:
            code = error.code()
        assert code not in undecodable or not _is_message(method, data), f"{name} {data!r}"

    throw()
    assert [line for line in daemon.log() if line["level"] == "error" and "grpc" not in line["logger"]] == []
    assert door("GetHealth", pb.GetHealthRequest(), token=False).status == "ok"


def _is_message(method: MethodDescriptor, data: bytes) -> bool:
    try:
        GetMessageClass(method.input_type).FromString(data)
    except DecodeError:
        return False
    return True


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.text(), st.binary().map(lambda data: data.decode("latin-1")), st.from_type(dict).map(repr)))
def test_what_is_no_event_is_never_taken_for_one(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(text)
