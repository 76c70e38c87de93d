"""One call, on a line that takes down what it is told."""

import asyncio
import struct

import pytest

from palyra.gateway.error_status import GrpcStatus, RequestCompressionUnsupported, RequestInvalid, RequestTooLarge
from palyra.gateway.grpc.server_call import GRANT_BYTES, MAX_REQUEST_BYTES, CallGone, Headers, ServerCall
from tests.support.connections import a_slot


class Line:
    """A line with so much room for what is sent."""

    def __init__(self, room: int = 1024 * 1024) -> None:
        self.slot = a_slot()
        self.room = room
        self.sent = b""
        self.heads: list[dict[str, str]] = []
        self.granted = 0
        self.over = False

    def send_headers(self, stream_id: int, headers: Headers, *, end: bool) -> None:
        self.heads.append(dict(headers))
        self.over = end

    def send_data(self, stream_id: int, data: memoryview) -> int:
        taken = data[: self.room]
        self.room -= len(taken)
        self.sent += taken
        return len(taken)

    def grant(self, stream_id: int, size: int) -> None:
        self.granted += size

    def ended(self, stream_id: int) -> None:
        assert self.over


def a_call(line: Line) -> ServerCall:
    return ServerCall(line, 1, {":path": "/a/b"})


def framed(message: bytes, *, compressed: int = 0) -> bytes:
    return struct.pack(">BI", compressed, len(message)) + message


def feed(call: ServerCall, data: bytes) -> None:
    call.feed(data, len(data))


async def test_messages_are_read_however_they_are_cut() -> None:
    call = a_call(Line())
    messages = [b"one", b"", b"three" * 100]
    for byte in b"".join(map(framed, messages)):
        feed(call, bytes([byte]))
    call.feed_end()
    assert [await call.read() for _ in messages] == messages
    assert await call.read() is None


async def test_a_message_that_is_cut_off_is_malformed() -> None:
    call = a_call(Line())
    feed(call, framed(b"whole") + framed(b"cut off")[:-1])
    call.feed_end()
    assert await call.read() == b"whole"
    with pytest.raises(RequestInvalid):
        await call.read()


async def test_a_compressed_message_is_refused() -> None:
    call = a_call(Line())
    feed(call, framed(b"x", compressed=1))
    with pytest.raises(RequestCompressionUnsupported):
        await call.read()


async def test_a_message_that_is_too_large_is_refused_before_it_has_come() -> None:
    call = a_call(Line())
    feed(call, struct.pack(">BI", 0, MAX_REQUEST_BYTES + 1))
    with pytest.raises(RequestTooLarge):
        await call.read()
    call = a_call(Line())
    feed(call, struct.pack(">BI", 0, 101))
    with pytest.raises(RequestTooLarge):
        await call.read(100)


async def test_only_who_reads_lets_the_caller_send_more() -> None:
    line = Line()
    call = a_call(line)
    half = framed(b"x" * GRANT_BYTES * 2)[:GRANT_BYTES]
    feed(call, half)
    assert line.granted == 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await call.read()
    assert line.granted == len(half)


async def test_padding_counts_for_what_the_caller_may_send() -> None:
    line = Line()
    call = a_call(line)
    call.feed(b"", GRANT_BYTES)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await call.read()
    assert line.granted == GRANT_BYTES


async def test_a_status_follows_what_was_written_before_it() -> None:
    line = Line(room=2)
    call = a_call(line)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await call.write(b"four")
    async with asyncio.TaskGroup() as group:
        finishing = group.create_task(call.finish(GrpcStatus.OK))
        await asyncio.sleep(0)
        assert (line.sent, line.over) == (framed(b"four")[:2], False)
        line.room = 100
        call.pump()
        await finishing
    assert line.sent == framed(b"four")
    assert [head.get("grpc-status") for head in line.heads] == [None, "0"]


async def test_who_leaves_says_so_at_once_and_holds_nothing() -> None:
    line = Line(room=2)
    call = a_call(line)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await call.write(b"four")
    call.leave(GrpcStatus.UNAVAILABLE, "over", (("palyra-error-code", "x"),))
    assert not call.waiting
    assert line.heads[-1] == {"grpc-status": "14", "grpc-message": "over", "palyra-error-code": "x"}
    call.leave(GrpcStatus.INTERNAL, "again")
    assert len(line.heads) == 2


async def test_a_dropped_call_takes_no_more_and_ends_its_task() -> None:
    line = Line(room=0)
    call = a_call(line)

    async def serve() -> None:
        await call.write(b"never read")

    call.task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    call.drop()
    with pytest.raises(asyncio.CancelledError):
        await call.task
    with pytest.raises(CallGone):
        await call.write(b"more")
    await call.finish(GrpcStatus.OK)
    assert line.heads[-1].get("grpc-status") is None


async def test_what_comes_after_the_status_is_not_kept() -> None:
    line = Line()
    call = a_call(line)
    await call.finish(GrpcStatus.OK)
    feed(call, framed(b"late"))
    call.feed_end()
    assert await call.read() is None


@pytest.mark.parametrize(
    ("detail", "shown"),
    [
        ("plain, 100%", "plain, 100%25"),
        ("Straße\n", "Stra%C3%9Fe%0A"),
        ("\ud800", "?"),
        ("x" * 50_000, "x" * 1_000),
    ],
)
async def test_a_detail_is_written_so_that_every_caller_takes_it(detail: str, shown: str) -> None:
    line = Line()
    await a_call(line).finish(GrpcStatus.INTERNAL, detail)
    assert line.heads[-1]["grpc-message"] == shown
    assert line.heads[-1][":status"] == "200"
