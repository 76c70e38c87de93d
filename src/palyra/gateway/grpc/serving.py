"""How a method is served: who calls, what becomes of an error, how a tape is written to a stream."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from palyra.core.errors import PalyraError, Unavailable
from palyra.core.ids import PrincipalId
from palyra.gateway.auth import Auth
from palyra.gateway.status import GRPC_STATUS, InternalError, nearest
from palyra.gateway.streams import Streams

log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Request = TypeVar("Request", bound=Message)
Unary = Callable[[Any, PrincipalId], Awaitable[Message]]
Streaming: TypeAlias = "Callable[[Any, Context, PrincipalId], Awaitable[None]]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class ReaderTooSlow(Unavailable):
    """The stream was not read for too long. Attach again after the last entry that you have seen."""


class Refusal(NamedTuple):
    """With what a call ends instead of an answer."""

    status: grpc.StatusCode
    detail: str
    trailing: tuple[tuple[str, str], ...]


class Methods:
    """Makes handlers that know their caller and answer errors with a status and a stable code."""

    def __init__(self, auth: Auth, streams: Streams) -> None:
        self._auth = auth
        self._streams = streams

    def unary(self, method: Unary, request: type[Message], *, need: str = "read") -> Handler:
        """Serve a method that takes one message and gives one."""

        async def serve(asked: Any, context: Context) -> Message | None:
            try:
                return await method(asked, await self._auth.principal(authorization(context), need))
            except Exception as error:
                await fail(context, error)
                return None

        return grpc.unary_unary_rpc_method_handler(
            serve, request_deserializer=request.FromString, response_serializer=serialize
        )

    def stream(self, method: Streaming, request: type[Message], *, need: str = "read") -> Handler:
        """Serve a method that takes one message and writes to its context."""
        return grpc.unary_stream_rpc_method_handler(
            self._streaming(method, need), request_deserializer=request.FromString, response_serializer=serialize
        )

    def exchange(self, method: Streaming, request: type[Message], *, need: str = "read") -> Handler:
        """Serve a method that reads from and writes to its context."""
        return grpc.stream_stream_rpc_method_handler(
            self._streaming(method, need), request_deserializer=request.FromString, response_serializer=serialize
        )

    def _streaming(self, method: Streaming, need: str) -> "Callable[[Any, Context], Awaitable[None]]":
        async def serve(asked: Any, context: Context) -> None:
            # The status of a call comes after all that was written, so a call that nobody reads does not end, and what
            # was last written waits with it. It keeps its place until it is read or dropped: there are only so many.
            with ExitStack() as place:
                try:
                    principal = await self._auth.principal(authorization(context), need)
                    place.enter_context(self._streams.place(principal))
                    await method(asked, context, principal)
                    return
                except Exception as error:
                    refused = refusal(error)
                # Only here, where the error is gone, and with it the frames that hold what was to be written next.
                # A caller that has left by now needs no word, and its leaving is no fault of ours.
                with suppress(grpc.aio.InternalError):
                    await context.abort(*refused)

        return serve


async def send(context: Context, message: Message, *, seconds: float) -> None:
    """Write to a stream; a reader that does not take it in time is cut off, and holds up nobody else."""
    try:
        async with asyncio.timeout(seconds):
            await context.write(message)
    except TimeoutError:
        log.info("a caller was cut off: it did not read what was sent to it")
        raise ReaderTooSlow(retry_after=timedelta(0)) from None


async def fail(context: Context, error: Exception) -> None:
    """End the call with an error that a caller can act on."""
    await context.abort(*refusal(error))


def refusal(error: Exception) -> Refusal:
    """Return what a caller is told of an error."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, PalyraError):
        log.error("a call failed", exc_info=error)
        error = InternalError()
    trailing = [("palyra-error-code", error.code)]
    if isinstance(error, Unavailable):
        trailing.append(("retry-after-ms", str(int(error.retry_after.total_seconds() * 1000))))
    return Refusal(nearest(GRPC_STATUS, error), error.detail, tuple(trailing))


def authorization(context: Context) -> str | None:
    """Return what the caller says of itself."""
    value = dict(context.invocation_metadata() or ()).get("authorization")
    return value if isinstance(value, str) else None


def serialize(message: Message) -> bytes:
    """Return a message as bytes."""
    return message.SerializeToString()
