"""How a method is served: authentication, error statuses, and writing a tape to a stream."""

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
from palyra.gateway.error_status import (
    GRPC_STATUS,
    GrpcStatus,
    InternalError,
    RequestInvalid,
    ResponseTooLarge,
    nearest,
)
from palyra.gateway.grpc.server_call import MAX_REQUEST_BYTES, CallGone, ServerCall
from palyra.gateway.stream_limit import StreamLimiter

MAX_RESPONSE_BYTES = 4 * 1024 * 1024
REQUEST_SECONDS = 30.0
RESPONSE_TIMEOUT_SECONDS = 60.0
ANYBODYS_CALLS = 256
"""How many calls of one method that needs no token may run at once: no other limit counts them."""
ANYBODYS_BYTES = 16 * 1024
"""The maximum size of a message to such a method."""
_ANYBODY = PrincipalId("")

log = logging.getLogger(__name__)

Request = TypeVar("Request", bound=Message)
Unary = Callable[[Any, PrincipalId], Awaitable[Message]]
Streaming = Callable[[Any, ServerCall, PrincipalId], Awaitable[None]]
Handler = Callable[[ServerCall], Awaitable[None]]


class StreamReaderTimeout(Unavailable):
    """The stream was not read for too long. Attach again after the last entry that you received."""


class GrpcError(NamedTuple):
    """The error that ends a call."""

    status: GrpcStatus
    detail: str
    trailing: tuple[tuple[str, str], ...]


class Methods:
    """Makes handlers that authenticate the caller and answer errors with a status and a stable code."""

    def __init__(self, auth: Auth, streams: StreamLimiter) -> None:
        self._auth = auth
        self._streams = streams

    def unary(self, method: Unary, request: type[Message], *, need: str = "read") -> Handler:
        """Serve a unary method."""

        async def serve(call: ServerCall) -> None:
            holder = await self._auth.admit(authorization(call), need, slot=call.slot)
            with self._auth.concealing(holder):
                await reply(call, await method(await read(call, request), holder.principal))

        return serve

    def stream(self, method: Streaming, request: type[Message], *, need: str = "read") -> Handler:
        """Serve a server-streaming method."""

        async def serve(call: ServerCall, principal: PrincipalId) -> None:
            await method(await read(call, request), call, principal)

        return self._streaming(serve, need)

    def exchange(self, method: Streaming, *, need: str = "read") -> Handler:
        """Serve a bidirectional method, which reads from and writes to its call."""

        async def serve(call: ServerCall, principal: PrincipalId) -> None:
            await method(None, call, principal)

        return self._streaming(serve, need)

    def _streaming(self, method: Callable[[ServerCall, PrincipalId], Awaitable[None]], need: str) -> Handler:
        async def serve(call: ServerCall) -> None:
            # The status of a call is sent after all that was written, so a call that is not read does not end, and what
            # was last written waits with it. It keeps its slot until it is read or dropped: slots are limited.
            with ExitStack() as position:
                try:
                    holder = await self._auth.admit(authorization(call), need, slot=call.slot)
                    position.enter_context(self._streams.slot(holder.principal))
                    with self._auth.concealing(holder):
                        await method(call, holder.principal)
                    ending = GrpcError(GrpcStatus.OK, "", ())
                except Exception as error:
                    ending = grpc_error(error)
                # Only here, where the error is released, and with it the frames that hold what was to be written next.
                await call.finish(*ending)

        return serve


def public_method(serve: Handler) -> Handler:
    """Serve a method that needs no token, with a limit on concurrent calls."""
    streams = StreamLimiter(lambda: (ANYBODYS_CALLS, ANYBODYS_CALLS))

    async def counted(call: ServerCall) -> None:
        with streams.slot(_ANYBODY):
            await serve(call)

    return counted


async def read(call: ServerCall, kind: type[Request], *, maximum: int = MAX_REQUEST_BYTES) -> Request:
    """Read the request of a call, with a timeout."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            return decode(kind, await call.read(maximum))
    except TimeoutError:
        raise RequestInvalid(f"No message arrived for {REQUEST_SECONDS:g} seconds. Call again with one.") from None


async def reply(call: ServerCall, message: Message) -> None:
    """Send the one response of a call; if the client does not read it in time, it is dropped."""
    try:
        async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
            await call.write(serialize(message))
            await call.finish(GrpcStatus.OK)
    except TimeoutError:
        log.info("a call was ended: the client did not read its response")
        raise StreamReaderTimeout(retry_after=timedelta(0)) from None


async def send(call: ServerCall, message: Message, *, seconds: float) -> None:
    """Write to a stream; a client that does not read in time is disconnected and delays no other."""
    if call.put(serialize(message)):
        return
    try:
        async with asyncio.timeout(seconds):
            await call.emptied()
    except TimeoutError:
        log.info("a call was ended: the client did not read its stream")
        raise StreamReaderTimeout(retry_after=timedelta(0)) from None


def grpc_error(error: Exception) -> GrpcError:
    """Return the status, code and message that a caller gets for an error."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, CallGone):
        return GrpcError(GrpcStatus.CANCELLED, "", ())
    if not isinstance(error, PalyraError):
        log.error("a call failed", exc_info=error)
        error = InternalError()
    trailing = [("palyra-error-code", error.code)]
    if isinstance(error, Unavailable):
        trailing.append(("retry-after-ms", str(int(error.retry_after.total_seconds() * 1000))))
    return GrpcError(nearest(GRPC_STATUS, error), error.detail, tuple(trailing))


def authorization(call: ServerCall) -> str | None:
    """Return the caller's authorization header."""
    return call.metadata.get("authorization")


def decode(kind: type[Request], message: bytes | None) -> Request:
    """Decode a request."""
    if message is None:
        raise RequestInvalid("The call has no message.")
    try:
        return kind.FromString(message)
    except DecodeError:
        raise RequestInvalid(f"The message is not a {kind.DESCRIPTOR.name}.") from None


def serialize(message: Message) -> bytes:
    """Encode a message."""
    data = message.SerializeToString()
    if len(data) > MAX_RESPONSE_BYTES:
        raise ResponseTooLarge
    return data
