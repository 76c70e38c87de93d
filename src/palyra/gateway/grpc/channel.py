"""How a program asks at the gRPC door: one channel for each call, and what its errors mean.

A channel of its own for each call costs a millisecond on the same machine, and saves what a lasting one would need:
a daemon that was restarted answers elsewhere, and a channel that has failed holds back its next attempts.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError, Message

from palyra.core.errors import PalyraError
from palyra.core.version import VERSION
from palyra.gateway.remote import (
    AnswerUnreadable,
    DaemonUnreachable,
    GrpcDoorUnknown,
    RemoteError,
    reason_of,
    refused,
    unreachable,
)
from palyra.gateway.target import Target
from palyra.gateway.tls import context_for

# Read by gRPC when it is loaded. What it has to say is told by our errors; the terminal belongs to the conversation.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# A daemon may be started while a channel is open, by a fork that only executes another program.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc

if TYPE_CHECKING:
    from ssl import SSLSocket

PACKAGE = "palyra.v1"
SERVICE = "GatewayService"
CONNECT_SECONDS = 10.0
KEEPALIVE_SECONDS = 15.0
"""How often a stream that says nothing is tried; the server takes offence below 10 s."""
KEEPALIVE_ANSWER_SECONDS = 10.0
MAX_ANSWER_BYTES = 8 * 1024 * 1024

M = TypeVar("M", bound=Message)

_REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
}

_BREAKS = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
}
"""What gRPC itself says of a connection that fails or breaks; said by the daemon, they come with a code of ours."""


class Streamed:
    """The messages of one stream, over one connection. It may be closed from another thread, or by a signal."""

    def __init__(self, channel: grpc.Channel, method: str, request: Message, target: Target) -> None:
        self._target = target
        self._channel = channel
        invoke: grpc.UnaryStreamMultiCallable[Message, bytes]
        invoke = channel.unary_stream(_path(method), request_serializer=_serialize)
        self._call = invoke(request, metadata=_metadata(target))

    def read(self, kind: type[M]) -> Iterator[M]:
        """Yield what comes, to the clean end of the stream."""
        try:
            for answer in self._call:
                yield _parse(answer, kind)
        except grpc.RpcError as error:
            raise meaning_of(error, self._target) from error
        finally:
            self._channel.close()

    def close(self) -> None:
        """End it; whoever reads meets an error."""
        self._call.cancel()


def ask(target: Target, method: str, request: Message, *, kind: type[M], seconds: float) -> M:
    """Call a method that gives one message; one of another service is named with it, as in `VaultService/SetSecret`."""
    with _opened(target, seconds) as channel:
        invoke: grpc.UnaryUnaryMultiCallable[Message, bytes]
        invoke = channel.unary_unary(_path(method), request_serializer=_serialize)
        try:
            answer = invoke(request, metadata=_metadata(target), timeout=seconds)
        except grpc.RpcError as error:
            raise meaning_of(error, target) from error
        return _parse(answer, kind)


def follow(target: Target, method: str, request: Message, *, keepalive: float = KEEPALIVE_SECONDS) -> Streamed:
    """Call a method that gives messages for as long as there are any. A daemon that is frozen is noticed."""
    return Streamed(_open(target, seconds=CONNECT_SECONDS, keepalive=keepalive), method, request, target)


def meaning_of(error: grpc.RpcError, target: Target) -> PalyraError:
    """Return what an error of gRPC means here: the daemon refused, is of another version, or is not to be reached."""
    status, detail = error.code(), error.details() or ""
    trailing = _trailing(error)
    if (code := trailing.get("palyra-error-code")) is not None:
        wait = trailing.get("retry-after-ms")
        return refused(
            code,
            detail,
            status=_REFUSALS.get(status, 500),
            token_file=target.token_file,
            retry_after=int(wait) / 1000 if wait is not None else None,
        )
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return AnswerUnreadable()
    if status in _BREAKS:
        return unreachable(target.grpc, _words(status, detail))
    # Too large a message is refused by gRPC itself, and is the fault of what was given.
    number = 413 if status is grpc.StatusCode.RESOURCE_EXHAUSTED else 500
    name = status.name.lower()
    return RemoteError(name, f"The daemon answered {name.replace('_', ' ')}: {detail}", status=number)


@contextmanager
def _opened(target: Target, seconds: float) -> Iterator[grpc.Channel]:
    channel = _open(target, seconds=seconds)
    try:
        yield channel
    finally:
        channel.close()


def _open(target: Target, *, seconds: float, keepalive: float = KEEPALIVE_SECONDS) -> grpc.Channel:
    if not target.grpc:
        raise GrpcDoorUnknown
    options: list[tuple[str, str | int]] = [
        ("grpc.primary_user_agent", f"palyra/{VERSION}"),
        ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
        ("grpc.min_reconnect_backoff_ms", int(CONNECT_SECONDS * 1000)),
        ("grpc.keepalive_time_ms", int(keepalive * 1000)),
        # Without both of these gRPC waits a minute for an answer, and tries a silent stream only once a minute.
        ("grpc.http2.ping_timeout_ms", int(min(keepalive, KEEPALIVE_ANSWER_SECONDS) * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        # Another channel's failure would hold this one back; and what is sent again is decided here.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        # The daemon is on this machine, or at the end of a tunnel.
        ("grpc.enable_http_proxy", 0),
    ]
    if not target.tls:
        return grpc.insecure_channel(target.grpc, options)
    name = _name_shown(target, seconds)
    if target.certificate is None:
        return grpc.secure_channel(target.grpc, grpc.ssl_channel_credentials(), options)
    try:
        with open(target.certificate, "rb") as file:
            credentials = grpc.ssl_channel_credentials(file.read())
    except OSError as error:
        raise unreachable(target.grpc, reason_of(error)) from error
    options += [
        ("grpc.ssl_target_name_override", name),
        # The daemon need not serve the name in its certificate, but it serves its own address.
        ("grpc.default_authority", urlsplit(f"//{target.grpc}").hostname or ""),
    ]
    return grpc.secure_channel(target.grpc, credentials, options)


def _name_shown(target: Target, seconds: float) -> str:
    """Return the name in the certificate that the door shows, which must be the one that the home names.

    gRPC has no way to pass over the name, and that of the certificate is the one that other machines use.
    """
    context = context_for(target)
    context.set_alpn_protocols(["h2"])
    place = urlsplit(f"//{target.grpc}")
    try:
        with (
            socket.create_connection((place.hostname or "", place.port or 0), timeout=seconds) as plain,
            context.wrap_socket(plain, server_hostname=place.hostname) as secure,
        ):
            return _name_of(secure)
    except OSError as error:
        raise unreachable(target.grpc, reason_of(error)) from error


def _name_of(secure: "SSLSocket") -> str:
    shown: Any = secure.getpeercert() or {}
    names: list[str] = [value for kind, value in shown.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
    names += [value for part in shown.get("subject", ()) for kind, value in part if kind == "commonName"]
    if not names:
        raise DaemonUnreachable("The daemon's certificate has no name. Make one with a name (subjectAltName).")
    # Any name below it will do for one that stands for many.
    return names[0].replace("*", "palyra", 1)


def _path(method: str) -> str:
    return f"/{PACKAGE}.{method}" if "/" in method else f"/{PACKAGE}.{SERVICE}/{method}"


def _metadata(target: Target) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {target.token}"),)


def _trailing(error: grpc.RpcError) -> dict[str, str]:
    pairs: Any = error.trailing_metadata() or ()
    return {name: str(value) for name, value in pairs}


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _parse(answer: bytes, kind: type[M]) -> M:
    try:
        return kind.FromString(answer)
    except DecodeError as error:
        raise AnswerUnreadable from error


def _words(status: grpc.StatusCode, detail: str) -> str:
    """Return why a connection failed. gRPC tells the whole way there; the end of it is the reason."""
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no answer in time"
    return detail.rpartition(": ")[2] or status.name.lower()
