"""From errors to answers: one table for every transport."""

from collections.abc import Iterable
from typing import TypeVar

import grpc

from palyra.core.errors import Broken, Conflict, Denied, Invalid, NotFound, PalyraError, Unavailable
from palyra.core.message import MessageTooLong
from palyra.gateway.rate import TooManyRequests
from palyra.gateway.streams import TooManyStreams
from palyra.runs.intake import QueueFull

T = TypeVar("T")


class Unauthenticated(Denied):
    """A valid token is needed. Send it as `Authorization: Bearer …`; it is in the file `token` of the home folder."""


class InternalError(Broken):
    """Palyra itself failed. The log has the details."""


class RequestTooLarge(Invalid):
    """The request is larger than 1 MiB."""


class RequestMalformed(Invalid):
    """The request can not be read."""


class MethodNotAllowed(Invalid):
    """This address does not take that method."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self.allowed = tuple(sorted(allowed))
        super().__init__(f"This address takes {', '.join(self.allowed)} only.")


HTTP_STATUS: dict[type[PalyraError], int] = {
    Unauthenticated: 401,
    MethodNotAllowed: 405,
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


GRPC_STATUS: dict[type[PalyraError], grpc.StatusCode] = {
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    QueueFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TooManyStreams: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TooManyRequests: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Invalid: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Conflict: grpc.StatusCode.FAILED_PRECONDITION,
    Denied: grpc.StatusCode.PERMISSION_DENIED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    Broken: grpc.StatusCode.INTERNAL,
    PalyraError: grpc.StatusCode.INTERNAL,
}


def nearest(table: dict[type[PalyraError], T], error: PalyraError) -> T:
    """Return what the table has for the error's class, or for the nearest class above it."""
    return next(table[kind] for kind in type(error).__mro__ if kind in table)
