"""The operations of the HTTP API as data: the routes and the OpenAPI document are made from the same table."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from starlette.requests import Request
from starlette.types import ASGIApp

from palyra.core.ids import PrincipalId


@dataclass(frozen=True, slots=True)
class LazyType:
    """A type that is imported when it is first needed."""

    load: Callable[[], type]
    """Imports the type and returns it."""


Scope = Literal["read", "write", "admin"]
Handler = Callable[[Request, PrincipalId], Awaitable[ASGIApp]]


@dataclass(frozen=True, slots=True)
class QueryParameter:
    """A query parameter."""

    name: str
    kind: Literal["integer", "string", "boolean"]
    about: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    method: Literal["GET", "POST", "PATCH", "PUT", "DELETE"]
    path: str
    handler: Handler
    about: str
    need: Scope = "read"
    """The scope that the caller's token must have."""
    query: tuple[QueryParameter, ...] = ()
    body: type | LazyType | None = None
    answer: type | LazyType | None = None
    """The type of a successful response; None if it is not JSON."""
    status: int = 200
    media: str = "application/json"
    empty: bool = False
    """It may also respond with 204: there is nothing."""
    failure: type | LazyType | None = None
    """The type of an error; None for a problem document."""
    streams: bool = False
    """The response may also be server-sent events, if the body requests it."""


LIMIT = QueryParameter("limit", "integer", "How many at the most.")
CURSOR = QueryParameter("cursor", "string", "The `next_cursor` of the page before.")
AFTER_SEQ = QueryParameter(
    "after_seq", "integer", "The position of the session's tape after which to begin; 0 is its start."
)
