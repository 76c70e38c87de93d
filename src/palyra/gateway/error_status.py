"""From errors to HTTP and gRPC statuses: one table for every transport."""

from collections.abc import Iterable
from enum import IntEnum
from typing import TypeVar

from palyra.core.errors import Conflict, Denied, Internal, Invalid, NotFound, PalyraError, Unavailable
from palyra.core.message import MessageTooLarge
from palyra.gateway.allowed_hosts import RequestHostNotAllowed
from palyra.gateway.rate_limit import RequestRateExceeded
from palyra.gateway.stream_limit import StreamLimitReached
from palyra.runs.services.intake import RunQueueFull

T = TypeVar("T")


class GrpcStatus(IntEnum):
    """gRPC status codes."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class Unauthenticated(Denied):
    """A valid token is required. Send it as `Authorization: Bearer …`; it is in the file `token` of the home folder."""


class InternalError(Internal):
    """Palyra itself failed. The log has the details."""


class RequestTooLarge(Invalid):
    """The request is larger than 1 MiB."""


class RequestTimeout(Invalid):
    """The head of the request did not arrive in time."""


class RequestInvalid(Invalid):
    """The request is not valid."""


class RequestCompressionUnsupported(Invalid):
    """Compressed messages are not supported. Send them uncompressed."""


class ResponseTooLarge(Internal):
    """The response is larger than 4 MiB, the limit of gRPC. Request it over HTTP."""


class MethodNotAllowed(Invalid):
    """This URL does not support the method."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self.allowed = tuple(sorted(allowed))
        super().__init__(f"This URL supports only {', '.join(self.allowed)}.")


HTTP_STATUS: dict[type[PalyraError], int] = {
    Unauthenticated: 401,
    RequestHostNotAllowed: 421,
    MethodNotAllowed: 405,
    RequestTimeout: 408,
    RequestTooLarge: 413,
    MessageTooLarge: 413,
    RunQueueFull: 429,
    StreamLimitReached: 429,
    RequestRateExceeded: 429,
    Invalid: 400,
    NotFound: 404,
    Conflict: 409,
    Denied: 403,
    Unavailable: 503,
    Internal: 500,
    PalyraError: 500,
}


GRPC_STATUS: dict[type[PalyraError], GrpcStatus] = {
    Unauthenticated: GrpcStatus.UNAUTHENTICATED,
    RequestTooLarge: GrpcStatus.RESOURCE_EXHAUSTED,
    RequestCompressionUnsupported: GrpcStatus.UNIMPLEMENTED,
    ResponseTooLarge: GrpcStatus.RESOURCE_EXHAUSTED,
    RunQueueFull: GrpcStatus.RESOURCE_EXHAUSTED,
    StreamLimitReached: GrpcStatus.RESOURCE_EXHAUSTED,
    RequestRateExceeded: GrpcStatus.RESOURCE_EXHAUSTED,
    Invalid: GrpcStatus.INVALID_ARGUMENT,
    NotFound: GrpcStatus.NOT_FOUND,
    Conflict: GrpcStatus.FAILED_PRECONDITION,
    Denied: GrpcStatus.PERMISSION_DENIED,
    Unavailable: GrpcStatus.UNAVAILABLE,
    Internal: GrpcStatus.INTERNAL,
    PalyraError: GrpcStatus.INTERNAL,
}


def nearest(table: dict[type[PalyraError], T], error: PalyraError) -> T:
    """Return the table's value for the error's class, or for its nearest base class."""
    return next(table[kind] for kind in type(error).__mro__ if kind in table)
