"""How a client calls gRPC methods: one channel for each call, and what gRPC errors mean.

A separate channel for each call costs a millisecond on the same machine, and avoids two problems of a long-lived one: a
restarted daemon may use another address, and a channel that has failed delays its next attempts.
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
from palyra.gateway.client.errors import (
    DaemonResponseInvalid,
    DaemonUnreachable,
    GrpcEndpointUnknown,
    RemoteError,
    reason_of,
    refused,
    unreachable,
)
from palyra.gateway.client.target import DaemonTarget
from palyra.gateway.client.tls import context_for

# gRPC reads this when it is imported. Our errors report what it would log; the terminal is for the conversation.
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
"""How often a silent stream is pinged; the server disconnects clients that ping more often than every 10 s."""
KEEPALIVE_ANSWER_SECONDS = 10.0
MAX_RESPONSE_BYTES = 8 * 1024 * 1024

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
"""What gRPC itself reports for a connection that fails or breaks; from the daemon, these have one of our codes."""


class GrpcStream:
    """The messages of one stream, over one connection. It may be closed from another thread, or by a signal."""

    def __init__(self, channel: grpc.Channel, method: str, request: Message, target: DaemonTarget) -> None:
        self._target = target
        self._channel = channel
        invoke: grpc.UnaryStreamMultiCallable[Message, bytes]
        invoke = channel.unary_stream(_path(method), request_serializer=_serialize)
        self._call = invoke(request, metadata=_metadata(target))

    def read(self, kind: type[M]) -> Iterator[M]:
        """Yield messages until the stream ends cleanly."""
        try:
            for answer in self._call:
                yield _parse(answer, kind)
        except grpc.RpcError as error:
            raise translate_error(error, self._target) from error
        finally:
            self._channel.close()

    def close(self) -> None:
        """Close the stream; its reader gets an error."""
        self._call.cancel()


def call_unary(target: DaemonTarget, method: str, request: Message, *, kind: type[M], seconds: float) -> M:
    """Call a unary method; one of another service is written with it, as in `VaultService/SetSecret`."""
    with _opened(target, seconds) as channel:
        invoke: grpc.UnaryUnaryMultiCallable[Message, bytes]
        invoke = channel.unary_unary(_path(method), request_serializer=_serialize)
        try:
            answer = invoke(request, metadata=_metadata(target), timeout=seconds)
        except grpc.RpcError as error:
            raise translate_error(error, target) from error
        return _parse(answer, kind)


def call_streaming(
    target: DaemonTarget, method: str, request: Message, *, keepalive: float = KEEPALIVE_SECONDS
) -> GrpcStream:
    """Call a server-streaming method. A daemon that is frozen is detected."""
    return GrpcStream(_open(target, seconds=CONNECT_SECONDS, keepalive=keepalive), method, request, target)


def translate_error(error: grpc.RpcError, target: DaemonTarget) -> PalyraError:
    """Return our error for a gRPC error: the daemon refused, has another version, or is unreachable."""
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
        return DaemonResponseInvalid()
    if status in _BREAKS:
        return unreachable(target.grpc, _failure_text(status, detail))
    # gRPC itself refuses a message that is too large; the caller's input is the cause.
    number = 413 if status is grpc.StatusCode.RESOURCE_EXHAUSTED else 500
    name = status.name.lower()
    return RemoteError(name, f"The daemon answered {name.replace('_', ' ')}: {detail}", status=number)


@contextmanager
def _opened(target: DaemonTarget, seconds: float) -> Iterator[grpc.Channel]:
    channel = _open(target, seconds=seconds)
    try:
        yield channel
    finally:
        channel.close()


def _open(target: DaemonTarget, *, seconds: float, keepalive: float = KEEPALIVE_SECONDS) -> grpc.Channel:
    if not target.grpc:
        raise GrpcEndpointUnknown
    options: list[tuple[str, str | int]] = [
        ("grpc.primary_user_agent", f"palyra/{VERSION}"),
        ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
        ("grpc.min_reconnect_backoff_ms", int(CONNECT_SECONDS * 1000)),
        ("grpc.keepalive_time_ms", int(keepalive * 1000)),
        # Without both of these gRPC waits a minute for an answer, and pings a silent stream only once a minute.
        ("grpc.http2.ping_timeout_ms", int(min(keepalive, KEEPALIVE_ANSWER_SECONDS) * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        # Another channel's failure would delay this one; and retries are decided here.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        # The daemon is on this machine, or at the end of a tunnel.
        ("grpc.enable_http_proxy", 0),
    ]
    if not target.tls:
        return grpc.insecure_channel(target.grpc, options)
    name = _certificate_name(target, seconds)
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


def _certificate_name(target: DaemonTarget, seconds: float) -> str:
    """Return the name in the server's certificate, which must be the certificate that the home names.

    gRPC cannot skip the name check, and the certificate holds the name that other machines use.
    """
    context = context_for(target)
    context.set_alpn_protocols(["h2"])
    parts = urlsplit(f"//{target.grpc}")
    try:
        with (
            socket.create_connection((parts.hostname or "", parts.port or 0), timeout=seconds) as plain,
            context.wrap_socket(plain, server_hostname=parts.hostname) as secure,
        ):
            return _name_of(secure)
    except OSError as error:
        raise unreachable(target.grpc, reason_of(error)) from error


def _name_of(secure: "SSLSocket") -> str:
    rows: Any = secure.getpeercert() or {}
    names: list[str] = [value for kind, value in rows.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
    names += [value for part in rows.get("subject", ()) for kind, value in part if kind == "commonName"]
    if not names:
        raise DaemonUnreachable("The daemon's certificate has no name. Create one with a name (subjectAltName).")
    # For a wildcard name, any name below it will do.
    return names[0].replace("*", "palyra", 1)


def _path(method: str) -> str:
    return f"/{PACKAGE}.{method}" if "/" in method else f"/{PACKAGE}.{SERVICE}/{method}"


def _metadata(target: DaemonTarget) -> tuple[tuple[str, str], ...]:
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
        raise DaemonResponseInvalid from error


def _failure_text(status: grpc.StatusCode, detail: str) -> str:
    """Return why a connection failed. gRPC reports the whole chain; its end is the reason."""
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no answer in time"
    return detail.rpartition(": ")[2] or status.name.lower()
