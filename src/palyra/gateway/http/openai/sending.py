"""How an answer goes out: whole when its run is over, or piece by piece as it is told."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from palyra.core.events import RunCancelled, RunFailed
from palyra.gateway.http.openai.call import Call
from palyra.gateway.http.openai.errors import Fault, fault, fault_of
from palyra.gateway.http.openai.telling import Over, Piece, Said, Telling, Thought, Torn
from palyra.gateway.http.stream import PIECE_BYTES
from palyra.gateway.http.wire import reply

STOPPING = fault(503, "daemon_stopping", "The daemon is stopping. The run goes on when it is started again.")
BROKE_OFF = "The answer broke off ({why}). What you have of it does not count; {then}."
GOES_ON = "the run goes on in its session"
ENDS = "the run ends, since no session is named in which the rest could be found. Send it again"


class Shape(Protocol):
    """How an answer is written. It is told either whole or piece by piece."""

    def whole(self, telling: Telling) -> object:
        """Return the whole answer, to be sent as JSON."""
        ...

    def begin(self) -> bytes:
        """Return what stands before the first piece."""
        ...

    def piece(self, piece: Said | Thought) -> bytes:
        """Return a piece."""
        ...

    def end(self, telling: Telling) -> bytes:
        """Return what stands behind the last piece."""
        ...

    def fail(self, fault: Fault) -> bytes:
        """Return what is sent instead of the rest of an answer that can not be completed."""
        ...


class Whole:
    """Answers when the run has come to its end, or waits for a person."""

    def __init__(self, call: Call, shape: Shape) -> None:
        self._call = call
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: Response = STOPPING.answer()

        async def tell() -> None:
            nonlocal answer
            async with aclosing(self._call.pieces()) as told:
                async for pieces in told:
                    if any(isinstance(piece, Over) for piece in pieces):
                        answer = self._answer()

        await attended(self._call, receive, tell)
        answer.headers.update(self._call.headers)
        await answer(scope, receive, send)

    def _answer(self) -> Response:
        telling = self._call.telling
        failed = failed_by(telling)
        return failed.answer() if failed is not None else reply(self._shape.whole(telling))


class Streamed:
    """Answers piece by piece. What was told and does not count any more ends the answer: two halves are never one."""

    def __init__(self, call: Call, shape: Shape) -> None:
        self._call = call
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-store",
            "x-accel-buffering": "no",
            **self._call.headers,
        }

        async def tell() -> None:
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": 200, "headers": raw})
            await _send(send, self._shape.begin())
            await self._tell(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        await attended(self._call, receive, tell)

    async def _tell(self, send: Send) -> None:
        async with aclosing(self._call.pieces()) as told:
            async for pieces in told:
                written, over = self._written(pieces)
                await _send(send, written)
                if over:
                    return
        await _send(send, self._shape.fail(STOPPING))

    def _written(self, pieces: list[Piece]) -> tuple[bytes, bool]:
        """Return pieces as they are sent, and whether they are the last."""
        written = b"" if pieces else b": still here\n\n"
        for piece in pieces:
            match piece:
                case Torn(reason=reason):
                    # The run may have ended with it; then there is more to say than that.
                    then = GOES_ON if self._call.tear() else ENDS
                    torn = fault(502, "answer_broke_off", BROKE_OFF.format(why=reason.rstrip("."), then=then))
                    return written + self._shape.fail(failed_by(self._call.telling) or torn), True
                case Over():
                    failed = failed_by(self._call.telling)
                    end = self._shape.fail(failed) if failed is not None else self._shape.end(self._call.telling)
                    return written + end, True
                case _:
                    written += self._shape.piece(piece)
        return written, False


async def attended(call: Call, receive: Receive, tell: Callable[[], Awaitable[None]]) -> None:
    """Tell the answer for as long as the caller is there."""
    try:
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(call.watch(receive))
            await tell()
            watcher.cancel()
    except BaseExceptionGroup as errors:
        # A task group wraps what its tasks raise; what there is to say about it is in the error itself.
        error: BaseException = errors
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
    finally:
        await call.close()


def failed_by(telling: Telling) -> Fault | None:
    """Return what an answer ends with that the run has none for."""
    return fault_of(telling.end) if isinstance(telling.end, RunFailed | RunCancelled) else None


async def _send(send: Send, data: bytes) -> None:
    # Piece by piece, so that little waits for a reader that is slow.
    for start in range(0, len(data), PIECE_BYTES):
        await send({"type": "http.response.body", "body": data[start : start + PIECE_BYTES], "more_body": True})
