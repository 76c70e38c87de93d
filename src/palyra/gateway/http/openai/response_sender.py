"""Sends an answer: complete when its run is over, or piece by piece as it is generated."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from palyra.core.events import RunCancelled, RunFailed
from palyra.gateway.http.event_stream import PIECE_BYTES
from palyra.gateway.http.messages import json_response
from palyra.gateway.http.openai.errors import V1Error, run_error, v1_error
from palyra.gateway.http.openai.run_answer import (
    AnswerDelta,
    AnswerEnded,
    AttemptDiscardedPiece,
    Piece,
    ReasoningPiece,
    RunAnswer,
)
from palyra.gateway.http.openai.run_follower import RunFollower

STOPPING = v1_error(503, "daemon_stopping", "The daemon is stopping. The run continues when it is started again.")
STREAM_ABORTED = "The answer was interrupted ({why}). Discard the part that you received; {then}."
GOES_ON = "the run continues in its session"
ENDS = "the run ends, because no session was named in which the rest could be found. Send the request again"


class AnswerFormat(Protocol):
    """How an answer is encoded: either complete or piece by piece."""

    def complete(self, answer: RunAnswer) -> object:
        """Return the complete answer, to be sent as JSON."""
        ...

    def begin(self) -> bytes:
        """Return what is sent before the first piece."""
        ...

    def piece(self, piece: AnswerDelta | ReasoningPiece) -> bytes:
        """Return an encoded piece."""
        ...

    def end(self, answer: RunAnswer) -> bytes:
        """Return what is sent after the last piece."""
        ...

    def fail(self, fault: V1Error) -> bytes:
        """Return what is sent instead of the rest of an answer that cannot be completed."""
        ...


class BufferedSender:
    """Responds when the run has ended, or waits for an approval."""

    def __init__(self, call: RunFollower, shape: AnswerFormat) -> None:
        self._call = call
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: Response = STOPPING.answer()

        async def tell() -> None:
            nonlocal answer
            async with aclosing(self._call.pieces()) as lines:
                async for pieces in lines:
                    if any(isinstance(piece, AnswerEnded) for piece in pieces):
                        answer = self._answer()

        await while_connected(self._call, receive, tell)
        answer.headers.update(self._call.headers)
        await answer(scope, receive, send)

    def _answer(self) -> Response:
        answer = self._call.telling
        failed = failed_by(answer)
        return failed.answer() if failed is not None else json_response(self._shape.complete(answer))


class StreamingSender:
    """Streams the answer. If a turn is discarded after some of it was sent, the answer ends: two attempts never mix."""

    def __init__(self, call: RunFollower, shape: AnswerFormat) -> None:
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
            await self._stream(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        await while_connected(self._call, receive, tell)

    async def _stream(self, send: Send) -> None:
        async with aclosing(self._call.pieces()) as lines:
            async for pieces in lines:
                written, over = self._written(pieces)
                await _send(send, written)
                if over:
                    return
        await _send(send, self._shape.fail(STOPPING))

    def _written(self, pieces: list[Piece]) -> tuple[bytes, bool]:
        """Return the encoded pieces, and whether they are the last."""
        written = b"" if pieces else b": still here\n\n"
        for piece in pieces:
            match piece:
                case AttemptDiscardedPiece(reason=reason):
                    # The run may have ended with it; then its error is the better one.
                    then = GOES_ON if self._call.tear() else ENDS
                    torn = v1_error(502, "answer_broke_off", STREAM_ABORTED.format(why=reason.rstrip("."), then=then))
                    return written + self._shape.fail(failed_by(self._call.telling) or torn), True
                case AnswerEnded():
                    failed = failed_by(self._call.telling)
                    end = self._shape.fail(failed) if failed is not None else self._shape.end(self._call.telling)
                    return written + end, True
                case _:
                    written += self._shape.piece(piece)
        return written, False


async def while_connected(call: RunFollower, receive: Receive, tell: Callable[[], Awaitable[None]]) -> None:
    """Send the answer for as long as the client is connected."""
    try:
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(call.watch(receive))
            await tell()
            watcher.cancel()
    except BaseExceptionGroup as errors:
        # A task group wraps what its tasks raise; only the error itself is of interest.
        error: BaseException = errors
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
    finally:
        await call.close()


def failed_by(answer: RunAnswer) -> V1Error | None:
    """Return the error of a run that failed or was cancelled; None if it has an answer."""
    return run_error(answer.end) if isinstance(answer.end, RunFailed | RunCancelled) else None


async def _send(send: Send, data: bytes) -> None:
    # In small pieces, so that little is buffered for a slow reader.
    for start in range(0, len(data), PIECE_BYTES):
        await send({"type": "http.response.body", "body": data[start : start + PIECE_BYTES], "more_body": True})
