"""How a method is served: who calls, what becomes of an error, how a tape is written to a stream."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from palyra.core.errors import PalyraError, Unavailable
from palyra.core.ids import PrincipalId
from palyra.gateway.auth import Auth
from palyra.gateway.grpc.call import MAX_REQUEST_BYTES, Call, CallGone
from palyra.gateway.status import GRPC_STATUS, AnswerTooLarge, GrpcStatus, InternalError, RequestMalformed, nearest
from palyra.gateway.streams import Streams

MAX_ANSWER_BYTES = 4 * 1024 * 1024
REQUEST_SECONDS = 30.0
ANSWER_SECONDS = 60.0
ANYBODYS_CALLS = 256
"""So many calls of one method that needs no token may be under way: nobody else counts them."""
ANYBODYS_BYTES = 16 * 1024
"""As much may a message to such a method have."""
_ANYBODY = PrincipalId("")

log = logging.getLogger(__name__)

Request = TypeVar("Request", bound=Message)
Unary = Callable[[Any, PrincipalId], Awaitable[Message]]
Streaming = Callable[[Any, Call, PrincipalId], Awaitable[None]]
Handler = Callable[[Call], Awaitable[None]]


class ReaderTooSlow(Unavailable):
    """The stream was not read for too long. Attach again after the last entry that you have seen."""


class Refusal(NamedTuple):
    """With what a call ends instead of an answer."""

    status: GrpcStatus
    detail: str
    trailing: tuple[tuple[str, str], ...]


class Methods:
    """Makes handlers that know their caller and answer errors with a status and a stable code."""

    def __init__(self, auth: Auth, streams: Streams) -> None:
        self._auth = auth
        self._streams = streams

    def unary(self, method: Unary, request: type[Message], *, need: str = "read") -> Handler:
        """Serve a method that takes one message and gives one."""

        async def serve(call: Call) -> None:
            holder = await self._auth.admit(authorization(call), need, slot=call.slot)
            with self._auth.concealing(holder):
                await reply(call, await method(await read(call, request), holder.principal))

        return serve

    def stream(self, method: Streaming, request: type[Message], *, need: str = "read") -> Handler:
        """Serve a method that takes one message and writes to its call."""

        async def serve(call: Call, principal: PrincipalId) -> None:
            await method(await read(call, request), call, principal)

        return self._streaming(serve, need)

    def exchange(self, method: Streaming, *, need: str = "read") -> Handler:
        """Serve a method that reads from and writes to its call."""

        async def serve(call: Call, principal: PrincipalId) -> None:
            await method(None, call, principal)

        return self._streaming(serve, need)

    def _streaming(self, method: Callable[[Call, PrincipalId], Awaitable[None]], need: str) -> Handler:
        async def serve(call: Call) -> None:
            # The status of a call comes after all that was written, so a call that nobody reads does not end, and what
            # was last written waits with it. It keeps its place until it is read or dropped: there are only so many.
            with ExitStack() as place:
                try:
                    holder = await self._auth.admit(authorization(call), need, slot=call.slot)
                    place.enter_context(self._streams.place(holder.principal))
                    with self._auth.concealing(holder):
                        await method(call, holder.principal)
                    ending = Refusal(GrpcStatus.OK, "", ())
                except Exception as error:
                    ending = refusal(error)
                # Only here, where the error is gone, and with it the frames that hold what was to be written next.
                await call.finish(*ending)

        return serve


def open_to_anybody(serve: Handler) -> Handler:
    """Serve a method that needs no token, so many calls of it at once."""
    streams = Streams(lambda: (ANYBODYS_CALLS, ANYBODYS_CALLS))

    async def counted(call: Call) -> None:
        with streams.place(_ANYBODY):
            await serve(call)

    return counted


async def read(call: Call, kind: type[Request], *, most: int = MAX_REQUEST_BYTES) -> Request:
    """Read the request of a call, which does not wait for it for ever."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            return decode(kind, await call.read(most))
    except TimeoutError:
        raise RequestMalformed(f"No message has come for {REQUEST_SECONDS:g} seconds. Call again with one.") from None


async def reply(call: Call, message: Message) -> None:
    """Give the one answer of a call; a caller that does not take it in time goes without, and nothing waits for it."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await call.write(serialize(message))
            await call.finish(GrpcStatus.OK)
    except TimeoutError:
        log.info("a caller was cut off: it did not take its answer")
        raise ReaderTooSlow(retry_after=timedelta(0)) from None


async def send(call: Call, message: Message, *, seconds: float) -> None:
    """Write to a stream; a reader that does not take it in time is cut off, and holds up nobody else."""
    if call.put(serialize(message)):
        return
    try:
        async with asyncio.timeout(seconds):
            await call.emptied()
    except TimeoutError:
        log.info("a caller was cut off: it did not read what was sent to it")
        raise ReaderTooSlow(retry_after=timedelta(0)) from None


def refusal(error: Exception) -> Refusal:
    """Return what a caller is told of an error."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, CallGone):
        return Refusal(GrpcStatus.CANCELLED, "", ())
    if not isinstance(error, PalyraError):
        log.error("a call failed", exc_info=error)
        error = InternalError()
    trailing = [("palyra-error-code", error.code)]
    if isinstance(error, Unavailable):
        trailing.append(("retry-after-ms", str(int(error.retry_after.total_seconds() * 1000))))
    return Refusal(nearest(GRPC_STATUS, error), error.detail, tuple(trailing))


def authorization(call: Call) -> str | None:
    """Return what the caller says of itself."""
    return call.metadata.get("authorization")


def decode(kind: type[Request], message: bytes | None) -> Request:
    """Read a request."""
    if message is None:
        raise RequestMalformed("The call holds no message.")
    try:
        return kind.FromString(message)
    except DecodeError:
        raise RequestMalformed(f"The message is no {kind.DESCRIPTOR.name}.") from None


def serialize(message: Message) -> bytes:
    """Return a message as bytes."""
    data = message.SerializeToString()
    if len(data) > MAX_ANSWER_BYTES:
        raise AnswerTooLarge
    return data
