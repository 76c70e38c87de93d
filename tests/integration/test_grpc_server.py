"""The gRPC server alone: how long it waits for a caller, and how it ends. On both event loops."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from select import select
from typing import Any, TypeVar

import grpc
import pytest
import uvloop
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import BytesValue
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from palyra.gateway.allowed_hosts import AllowedHosts
from palyra.gateway.connections import ConnectionBudget
from palyra.gateway.error_status import GrpcStatus
from palyra.gateway.grpc import connection
from palyra.gateway.grpc import methods as serving
from palyra.gateway.grpc.server import GrpcServer
from palyra.gateway.grpc.server_call import ServerCall
from tests.support.connections import a_budget
from tests.support.eventually import eventually
from tests.support.http2_client import Wire, framed
from tests.support.needs import IPV6, OPENSSL, needs
from tests.support.web_site import certificate

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]
LARGE = b"x" * 4_000_000
EMPTY = framed(b"")


class Service:
    """Methods that do what is hard on a server."""

    def __init__(self) -> None:
        self.begun = 0
        self.under_way = 0

    def handlers(self) -> dict[str, serving.Handler]:
        methods = {"Echo": self.echo, "Large": self.large, "Hang": self.hang, "Fail": self.fail, "Late": self.late}
        return {name: self._counted(method) for name, method in methods.items()}

    def _counted(self, method: serving.Handler) -> serving.Handler:
        async def serve(call: ServerCall) -> None:
            self.begun += 1
            self.under_way += 1
            try:
                await method(call)
            finally:
                self.under_way -= 1

        return serve

    async def echo(self, call: ServerCall) -> None:
        await serving.reply(call, await serving.read(call, BytesValue))

    async def large(self, call: ServerCall) -> None:
        answer: Message = BytesValue(value=LARGE)
        await serving.reply(call, answer)

    async def hang(self, call: ServerCall) -> None:
        await asyncio.Event().wait()

    async def fail(self, call: ServerCall) -> None:
        raise ValueError("of its own")

    async def late(self, call: ServerCall) -> None:
        raise TimeoutError


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run[Any]]:
    """Runs a test on an event loop, with all that goes wrong in it and is not told to anybody."""
    wrong: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=request.param) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: wrong.append(context))
        yield runner.run
    assert wrong == []


@asynccontextmanager
async def serving_at(
    service: Service, *, tls: ssl.SSLContext | None = None, budget: ConnectionBudget | None = None
) -> AsyncIterator[tuple[GrpcServer, str]]:
    server = GrpcServer({"t.T": service.handlers()}, budget or a_budget(), AllowedHosts())
    port = await server.start("127.0.0.1", 0, tls=tls)
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        await server.stop(seconds=0)


def test_who_never_speaks_is_hung_up_on(run: Run[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PING_TIMEOUT_SECONDS", 0.1)

    async def tried() -> None:
        async with serving_at(Service()) as (_, address):
            await asyncio.to_thread(silent, address, b"")
            await asyncio.to_thread(silent, address, b"PRI * HTTP/2.0\r\n")

    def silent(address: str, opening: bytes) -> None:
        with dialled(address) as line:
            line.sendall(opening)
            to_the_end(line)

    run(tried())


def test_who_answers_no_ping_is_hung_up_on_and_who_does_is_not(run: Run[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PING_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(connection, "PING_SECONDS", 0.4)

    def caller(address: str) -> None:
        with Wire(address) as dumb, Wire(address) as wire:

            def hung_up() -> bool:
                """Whether the one that only listens has nobody to listen to any more."""
                ready, _, _ = select([dumb.socket], [], [], 0)
                return bool(ready) and not dumb.socket.recv(1000)

            wire.until(hung_up)
            assert wire.answer(wire.call("/t.T/Echo", EMPTY)).status == 0

    run(against(Service(), caller))


def test_an_answer_that_is_not_taken_is_dropped_in_time(
    run: Run[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "RESPONSE_TIMEOUT_SECONDS", 0.1)

    def caller(address: str) -> None:
        with Wire(address, settings={SettingCodes.INITIAL_WINDOW_SIZE: 1}, reads=False) as wire:
            answer = wire.answer(wire.call("/t.T/Large", EMPTY))
            assert (answer.status, answer.code) == (GrpcStatus.UNAVAILABLE, "stream_reader_timeout")

    run(against(Service(), caller))


def test_a_request_that_does_not_come_is_not_waited_for(run: Run[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "REQUEST_SECONDS", 0.1)

    def caller(address: str) -> None:
        with Wire(address) as wire:
            answer = wire.answer(wire.call("/t.T/Echo", EMPTY[:3], end=False))
            assert (answer.status, answer.code) == (GrpcStatus.INVALID_ARGUMENT, "request_invalid")

    run(against(Service(), caller))


def test_a_method_that_fails_ends_its_call_and_nothing_else(run: Run[Any], caplog: pytest.LogCaptureFixture) -> None:
    def caller(address: str) -> None:
        with Wire(address) as wire:
            answer = wire.answer(wire.call("/t.T/Fail", EMPTY))
            assert (answer.status, answer.code) == (GrpcStatus.INTERNAL, "internal_error")
            assert wire.answer(wire.call("/t.T/Late", EMPTY)).status == GrpcStatus.DEADLINE_EXCEEDED
            assert wire.answer(wire.call("/t.T/Echo", EMPTY)).status == 0

    run(against(Service(), caller))
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == ["a call failed"]


def test_a_caller_that_takes_nothing_at_all_is_cut_off_with_all_that_waits_for_it(
    run: Run[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "PING_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(connection, "PING_SECONDS", 0.6)
    caplog.set_level(logging.INFO)
    service = Service()

    async def tried() -> None:
        async with serving_at(service) as (_, address):
            with await asyncio.to_thread(unread, address) as wire:
                await eventually(lambda: "the client sent nothing" in caplog.text)
                await eventually(lambda: service.under_way == 0)
                await asyncio.to_thread(wire.hung_up)
                assert not all(answer.over for answer in wire.answers.values())

    def unread(address: str) -> Wire:
        """Ask for more than the kernel holds, and take nothing."""
        wire = Wire(address, settings={SettingCodes.INITIAL_WINDOW_SIZE: 2**31 - 1}, reads=False)
        wire.http2.increment_flow_control_window(2**31 - 1 - 65535)
        for _ in range(8):
            wire.call("/t.T/Large", EMPTY)
        return wire

    run(tried())


def test_stopping_ends_what_hangs_and_may_be_done_again(run: Run[Any]) -> None:
    service = Service()

    async def tried() -> None:
        async with serving_at(service) as (server, address):
            with await asyncio.to_thread(Wire, address) as wire, await asyncio.to_thread(Wire, address) as idle:
                hanging = [wire.call("/t.T/Hang", end=False) for _ in range(3)]
                await eventually(lambda: service.under_way == 3)
                await server.stop(seconds=0.05)
                await server.stop(seconds=0)
                for call in hanging:
                    answer = await asyncio.to_thread(wire.answer, call)
                    assert answer.status == GrpcStatus.UNAVAILABLE
                assert await asyncio.to_thread(wire.hung_up) == ErrorCodes.NO_ERROR
                assert await asyncio.to_thread(idle.hung_up) == ErrorCodes.NO_ERROR
                with pytest.raises(ConnectionError):
                    await asyncio.to_thread(Wire, address)

    run(tried())
    assert service.under_way == 0


def test_a_call_that_comes_while_the_server_stops_is_refused_and_may_be_made_elsewhere(run: Run[Any]) -> None:
    service = Service()

    async def tried() -> None:
        async with serving_at(service) as (server, address), asyncio.TaskGroup() as group:
            with await asyncio.to_thread(Wire, address) as wire:
                hanging = wire.call("/t.T/Hang", end=False)
                await eventually(lambda: service.under_way == 1)
                stopping = group.create_task(server.stop(seconds=60))
                await asyncio.to_thread(wire.until, lambda: wire.goodbye == ErrorCodes.NO_ERROR)
                late = await asyncio.to_thread(wire.answer, wire.call("/t.T/Echo", EMPTY))
                assert late.reset == ErrorCodes.REFUSED_STREAM
                assert wire.answers[hanging] == type(late)()
                wire.http2.reset_stream(hanging)
                wire.flush()
                await stopping

    run(tried())
    assert service.begun == 1


def test_the_oldest_caller_without_a_token_makes_room_for_the_next(run: Run[Any]) -> None:
    def caller(address: str) -> None:
        with ExitStack() as stack:
            wires = [stack.enter_context(Wire(address)) for _ in range(2)]
            for _ in range(5):
                wires.append(stack.enter_context(Wire(address)))
                assert wires[-1].answer(wires[-1].call("/t.T/Echo", EMPTY)).status == 0
                wires.pop(0).hung_up()
            assert wires[0].answer(wires[0].call("/t.T/Echo", EMPTY)).status == 0

    run(against(Service(), caller, budget=a_budget(16)))


@needs(OPENSSL)
def test_over_tls_calls_are_served_and_what_is_no_tls_leaves_nothing_behind(run: Run[Any], tmp_path: Path) -> None:
    made, key = certificate(tmp_path, "localhost")
    root = Path(made).read_bytes()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.set_alpn_protocols(["h2"])
    tls.load_cert_chain(made, key)
    service = Service()

    async def tried() -> None:
        async with serving_at(service, tls=tls) as (server, address):
            await asyncio.to_thread(plain, address)
            with await asyncio.to_thread(dialled, address) as half:
                # A handshake that has begun, and does not go on.
                half.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
                await ask(address)
                await server.stop(seconds=0)

    async def ask(address: str) -> None:
        credentials = grpc.ssl_channel_credentials(root)
        options = (("grpc.ssl_target_name_override", "localhost"),)
        async with grpc.aio.secure_channel(address, credentials, options) as channel:
            echo: Any = channel.unary_unary("/t.T/Echo")
            message = BytesValue(value=b"y" * 900_000).SerializeToString()
            assert await echo(message) == message
            large: Any = channel.unary_unary("/t.T/Large")
            assert len(await large(b"")) > len(LARGE)

    def plain(address: str) -> None:
        with dialled(address) as line:
            line.sendall(b"GET / HTTP/1.1\r\n\r\n")
            to_the_end(line)

    run(tried())


@needs(IPV6)
def test_ipv6_is_served(run: Run[Any]) -> None:
    async def tried() -> None:
        server = GrpcServer({"t.T": Service().handlers()}, a_budget(), AllowedHosts())
        port = await server.start("::1", 0)
        with await asyncio.to_thread(Wire, f"[::1]:{port}") as wire:
            answer = await asyncio.to_thread(lambda: wire.answer(wire.call("/t.T/Echo", EMPTY)))
            assert answer.status == 0
        await server.stop(seconds=0)

    run(tried())


def test_a_client_of_the_usual_library_is_served_whatever_it_does(run: Run[Any]) -> None:
    service = Service()

    async def tried() -> None:
        async with serving_at(service) as (_, address):
            async with grpc.aio.insecure_channel(address) as channel:
                echo: Any = channel.unary_unary("/t.T/Echo")
                message = BytesValue(value=b"y" * 500_000).SerializeToString()
                answers: list[bytes] = await asyncio.gather(*(echo(message) for _ in range(50)))
                assert set(answers) == {message}
                hang: Any = channel.unary_unary("/t.T/Hang")
                hanging = [hang(b"") for _ in range(20)]
                await eventually(lambda: service.under_way == 20)
                for call in hanging[:10]:
                    call.cancel()
                await eventually(lambda: service.under_way == 10)
            await eventually(lambda: service.under_way == 0)

    run(tried())


# -- what the tests need


async def against(service: Service, caller: Callable[[str], None], *, budget: ConnectionBudget | None = None) -> None:
    """Have a caller that blocks speak to a server."""
    async with serving_at(service, budget=budget) as (_, address):
        await asyncio.to_thread(caller, address)
    assert service.under_way == 0


def dialled(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def to_the_end(line: socket.socket) -> None:
    """Take what comes until the other side has hung up, which must be soon."""
    try:
        while line.recv(1000):
            pass
    except ConnectionResetError:
        return
