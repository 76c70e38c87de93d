"""What the HTTP door offers, as data: the routes and the OpenAPI document are made from the same table."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from starlette.requests import Request
from starlette.types import ASGIApp

from palyra.core.ids import PrincipalId


@dataclass(frozen=True, slots=True)
class Later:
    """A type that is loaded when somebody wants to know of it."""

    module: str
    name: str

    def load(self) -> type:
        """Return the type."""
        found: type = getattr(import_module(self.module), self.name)
        return found


Scope = Literal["read", "write", "admin"]
Handler = Callable[[Request, PrincipalId], Awaitable[ASGIApp]]


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter behind the question mark."""

    name: str
    kind: Literal["integer", "string", "boolean"]
    about: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one address."""

    method: Literal["GET", "POST", "PATCH", "PUT", "DELETE"]
    path: str
    handler: Handler
    about: str
    need: Scope = "read"
    """What the caller's token must allow."""
    query: tuple[Query, ...] = ()
    body: type | Later | None = None
    answer: type | Later | None = None
    """What a good answer holds; None if it holds no JSON."""
    status: int = 200
    media: str = "application/json"
    empty: bool = False
    """It may also answer 204: there is nothing."""
    failure: type | Later | None = None
    """What an error holds; None for a problem document."""
    streams: bool = False
    """The answer may also come as server-sent events, if the body asks for it."""


LIMIT = Query("limit", "integer", "How many at the most.")
CURSOR = Query("cursor", "string", "The `next_cursor` of the page before.")
AFTER_SEQ = Query("after_seq", "integer", "The position of the session's tape after which to begin; 0 is its start.")
