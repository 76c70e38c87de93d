"""Declares the operations of the HTTP API: `@operation` on a method, whose types and first line describe it.

A method gets what its parameters name: `request`, `principal`, parameters of the path, and `body`, decoded. It returns
a record, which is sent as JSON; None if there is nothing to send; or a response of its own.
"""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar, cast, get_args

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from palyra.core.ids import PrincipalId
from palyra.gateway.http.messages import json_response, read_body
from palyra.gateway.http.operation import JSON, Handler, Operation, Parameter, Scope

Answer = Struct | ASGIApp | None
Method = TypeVar("Method", bound=Callable[..., Awaitable[Answer]])


def operation(
    name: str,
    address: str,
    *,
    need: Scope | None = None,
    query: tuple[Parameter, ...] = (),
    answer: type | None = None,
    status: int = 200,
    media: tuple[str, ...] = JSON,
    headers: tuple[tuple[str, str], ...] = (),
) -> Callable[[Method], Method]:
    """Declare a method as the operation of an address, such as `GET /healthz`.

    Without `need`, GET needs the scope `read`, and every other method `write`. `answer` is only for a method that
    returns a response of its own.
    """

    def declare(method: Method) -> Method:
        verb, _, path = address.partition(" ")
        signature = inspect.signature(method)
        returned = signature.return_annotation
        declared = Operation(
            name,
            cast(Any, verb),
            path,
            _undefined,
            inspect.getdoc(method) or "",
            need=need or ("read" if verb == "GET" else "write"),
            query=query,
            body=signature.parameters["body"].annotation if "body" in signature.parameters else None,
            answer=returned if isinstance(returned, type) and issubclass(returned, Struct) else answer,
            status=204 if returned is None else status,
            media=media,
            headers=headers,
            empty=type(None) in get_args(returned),
        )
        # The decorator that is written first is applied last.
        vars(method)["operations"] = [declared, *vars(method).get("operations", ())]
        return method

    return declare


class Routes:
    """A class whose methods are operations."""

    def operations(self) -> list[Operation]:
        """Return the operations in the order of their methods."""
        return [
            replace(declared, handler=_handler(getattr(self, name), declared))
            for name, method in vars(type(self)).items()
            for declared in getattr(method, "operations", ())
        ]


def _handler(method: Callable[..., Awaitable[Answer]], declared: Operation) -> Handler:
    named = inspect.signature(method).parameters

    async def handle(request: Request, principal: PrincipalId) -> ASGIApp:
        known = {"request": request, "principal": principal, **request.path_params}
        if declared.body is not None:
            known["body"] = await read_body(request, cast(type, declared.body))
        answer = await method(**{name: known[name] for name in named})
        if answer is None:
            return Response(status_code=204)
        return json_response(answer, status=declared.status) if isinstance(answer, Struct) else answer

    return handle


async def _undefined(request: Request, principal: PrincipalId) -> ASGIApp:
    raise AssertionError("an operation is bound to an instance before it is called")
