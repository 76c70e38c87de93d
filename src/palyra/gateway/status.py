"""From errors to answers: one table for every transport."""

from collections.abc import Iterable
from enum import IntEnum
from typing import TypeVar

from palyra.core.errors import Broken, Conflict, Denied, Invalid, NotFound, PalyraError, Unavailable
from palyra.core.message import MessageTooLong
from palyra.gateway.hosts import HostNotServed
from palyra.gateway.rate import TooManyRequests
from palyra.gateway.streams import TooManyStreams
from palyra.runs.intake import QueueFull

T = TypeVar("T")


class GrpcStatus(IntEnum):
    """How a call ends, by the numbers of gRPC."""

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
    """A valid token is needed. Send it as `Authorization: Bearer …`; it is in the file `token` of the home folder."""


class InternalError(Broken):
    """Palyra itself failed. The log has the details."""


class RequestTooLarge(Invalid):
    """The request is larger than 1 MiB."""


class RequestTimeout(Invalid):
    """The head of the request did not come in time."""


class RequestMalformed(Invalid):
    """The request can not be read."""


class RequestCompressed(Invalid):
    """Messages are not taken compressed. Send them as they are."""


class AnswerTooLarge(Broken):
    """The answer has more than 4 MiB, which gRPC does not carry. Ask for it over HTTP."""


class MethodNotAllowed(Invalid):
    """This address does not take that method."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self.allowed = tuple(sorted(allowed))
        super().__init__(f"This address takes {', '.join(self.allowed)} only.")


HTTP_STATUS: dict[type[PalyraError], int] = {
    Unauthenticated: 401,
    HostNotServed: 421,
    MethodNotAllowed: 405,
    RequestTimeout: 408,
    RequestTooLarge: 413,
    MessageTooLong: 413,
    QueueFull: 429,
    TooManyStreams: 429,
    TooManyRequests: 429,
    Invalid: 400,
    NotFound: 404,
    Conflict: 409,
    Denied: 403,
    Unavailable: 503,
    Broken: 500,
    PalyraError: 500,
}


GRPC_STATUS: dict[type[PalyraError], GrpcStatus] = {
    Unauthenticated: GrpcStatus.UNAUTHENTICATED,
    RequestTooLarge: GrpcStatus.RESOURCE_EXHAUSTED,
    RequestCompressed: GrpcStatus.UNIMPLEMENTED,
    AnswerTooLarge: GrpcStatus.RESOURCE_EXHAUSTED,
    QueueFull: GrpcStatus.RESOURCE_EXHAUSTED,
    TooManyStreams: GrpcStatus.RESOURCE_EXHAUSTED,
    TooManyRequests: GrpcStatus.RESOURCE_EXHAUSTED,
    Invalid: GrpcStatus.INVALID_ARGUMENT,
    NotFound: GrpcStatus.NOT_FOUND,
    Conflict: GrpcStatus.FAILED_PRECONDITION,
    Denied: GrpcStatus.PERMISSION_DENIED,
    Unavailable: GrpcStatus.UNAVAILABLE,
    Broken: GrpcStatus.INTERNAL,
    PalyraError: GrpcStatus.INTERNAL,
}


def nearest(table: dict[type[PalyraError], T], error: PalyraError) -> T:
    """Return what the table has for the error's class, or for the nearest class above it."""
    return next(table[kind] for kind in type(error).__mro__ if kind in table)
