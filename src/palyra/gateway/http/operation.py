"""The operations of the HTTP API as data: the routes and the OpenAPI document are made from the same table."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, cast

from starlette.requests import Request
from starlette.types import ASGIApp

from palyra.core.ids import PrincipalId

MAX_PAGE = 500
"""The maximum length of a page, unless an operation has another."""


@dataclass(frozen=True, slots=True)
class LazyType:
    """A type that is imported when it is first needed."""

    module: str
    name: str

    def load(self) -> type:
        """Import the type."""
        return cast(type, getattr(import_module(self.module), self.name))


Scope = Literal["read", "write", "admin"]
Handler = Callable[[Request, PrincipalId], Awaitable[ASGIApp]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query or a header."""

    name: str
    kind: Literal["integer", "string", "boolean"]
    about: str
    location: Literal["query", "header"] = "query"
    required: bool = False
    default: str | int | bool | None = None
    choices: tuple[str, ...] = ()
    maximum: int | None = None
    """A larger number counts as this one."""


JSON = ("application/json",)
EVENTS = ("text/event-stream",)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    name: str
    """The operation id: a verb and a noun; `admin` is in front if callers have the same for what is theirs."""
    method: Literal["GET", "POST", "PATCH", "PUT", "DELETE"]
    path: str
    handler: Handler
    about: str
    need: Scope | None = "read"
    """The scope that the caller's token must have; None if no token is needed."""
    query: tuple[Parameter, ...] = ()
    body: type | LazyType | None = None
    answer: type | LazyType | None = None
    """The type of a successful response, or of the data of its server-sent events; None if it is not JSON."""
    status: int = 200
    media: tuple[str, ...] = JSON
    """The types of a successful response."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers of a successful response, each with its meaning."""
    empty: bool = False
    """It may also respond with 204: there is nothing."""
    unready: type | None = None
    """The type of a response with 503, if it is not an error."""
    failure: type | LazyType | None = None
    """The type of an error; None for a problem document."""
    streams: tuple[type | LazyType, ...] = ()
    """The types of the data of server-sent events, if the body can request those instead."""


CURSOR = Parameter("cursor", "string", "The `next_cursor` of the previous page.")
AFTER_SEQ = Parameter(
    "after_seq", "integer", "The position of the session's tape after which to begin; 0 is its start.", default=0
)
LAST_EVENT_ID = Parameter(
    "Last-Event-ID", "integer", "The last position that was received; it counts instead of `after_seq`.", "header"
)


def page_limit(default: int, maximum: int = MAX_PAGE) -> Parameter:
    """Return the parameter for the length of a page."""
    return Parameter("limit", "integer", "The maximum number of items.", default=default, maximum=maximum)
