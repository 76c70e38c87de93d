"""How a method is served: who calls, what becomes of an error, how a tape is written to a stream."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from palyra.core.errors import PalyraError, Unavailable
from palyra.core.ids import PrincipalId
from palyra.gateway.auth import Auth
from palyra.gateway.status import GRPC_STATUS, InternalError, nearest

SLOW_READER_SECONDS = 30.0

log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Request = TypeVar("Request", bound=Message)
Unary = Callable[[Any, PrincipalId], Awaitable[Message]]
Streaming: TypeAlias = "Callable[[Any, Context, PrincipalId], Awaitable[None]]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class ReaderTooSlow(Unavailable):
    """The stream was not read for too long. Attach again after the last entry that you have seen."""


class Methods:
    """Makes handlers that know their caller and answer errors with a status and a stable code."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth

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

        async def serve(asked: Any, context: Context) -> None:
            try:
                await method(asked, context, await self._auth.principal(authorization(context), need))
            except Exception as error:
                await fail(context, error)

        return grpc.unary_stream_rpc_method_handler(
            serve, request_deserializer=request.FromString, response_serializer=serialize
        )

    def exchange(self, method: Streaming, request: type[Message], *, need: str = "read") -> Handler:
        """Serve a method that reads from and writes to its context."""

        async def serve(asked: Any, context: Context) -> None:
            try:
                await method(asked, context, await self._auth.principal(authorization(context), need))
            except Exception as error:
                await fail(context, error)

        return grpc.stream_stream_rpc_method_handler(
            serve, request_deserializer=request.FromString, response_serializer=serialize
        )


async def send(context: Context, message: Message) -> None:
    """Write to a stream; a reader that does not read is cut off, and holds up nobody else."""
    try:
        async with asyncio.timeout(SLOW_READER_SECONDS):
            await context.write(message)
    except TimeoutError:
        raise ReaderTooSlow(retry_after=timedelta(0)) from None


async def fail(context: Context, error: Exception) -> None:
    """End the call with an error that a caller can act on."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, PalyraError):
        log.error("a call failed", exc_info=error)
        error = InternalError()
    trailing = [("palyra-error-code", error.code)]
    if isinstance(error, Unavailable):
        trailing.append(("retry-after-ms", str(int(error.retry_after.total_seconds() * 1000))))
    await context.abort(nearest(GRPC_STATUS, error), error.detail, tuple(trailing))


def authorization(context: Context) -> str | None:
    """Return what the caller says of itself."""
    value = dict(context.invocation_metadata() or ()).get("authorization")
    return value if isinstance(value, str) else None


def serialize(message: Message) -> bytes:
    """Return a message as bytes."""
    return message.SerializeToString()
