"""The HTTP application: its routes, and how errors become responses."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palyra.core.errors import Invalid, NotFound, PalyraError
from palyra.core.ids import PrincipalId
from palyra.core.stop import EmergencyStop
from palyra.gateway.allowed_hosts import AllowedHosts
from palyra.gateway.auth import Auth
from palyra.gateway.error_status import InternalError, MethodNotAllowed
from palyra.gateway.http.cors import is_preflight, permit, preflight, request_origin
from palyra.gateway.http.messages import json_response, problem_response
from palyra.gateway.http.openai.errors import failure
from palyra.gateway.http.openapi import document
from palyra.gateway.http.operation import Operation
from palyra.gateway.http.operation import Scope as TokenNeed
from palyra.gateway.http.protocol import SLOT
from palyra.gateway.records.daemon import HealthResponse, ReadinessResponse

V1 = "/v1/"
"""Below this path, errors have the form that OpenAI clients expect."""

ANYONE = PrincipalId("")
"""Who calls an operation that needs no token."""

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

log = logging.getLogger(__name__)


class RouteNotFound(NotFound):
    """There is nothing at this URL."""


def build(
    operations: Sequence[Operation],
    *,
    auth: Auth,
    hosts: AllowedHosts,
    ready: Callable[[], str | None],
    warning: Callable[[], str | None] = lambda: None,
    stopped: Callable[[], EmergencyStop | None] = lambda: None,
) -> ASGIApp:
    """Build the application.

    `ready` returns the code of a problem that blocks the daemon, `warning` that of one that does not, `stopped` the
    stop of everything; each returns None if there is none.
    """

    async def openapi(request: Request, principal: PrincipalId) -> Response:
        # Some types are only imported when they are first described.
        return json_response(await asyncio.to_thread(document, every))

    described = Operation("getOpenApi", "GET", "/openapi.json", openapi, "This API as an OpenAPI document.", need=None)
    every = [*_health(ready, warning, stopped), described, *operations]
    return Guard([Route(one.path, _endpoint(one, auth), methods=[one.method]) for one in every], hosts)


def refusing(error: PalyraError, *, hosts: AllowedHosts) -> ASGIApp:
    """Return the application of a daemon that does not serve yet: all requests but health get the error."""

    async def refuse(request: Request) -> Response:
        raise error

    health = _health(lambda: error.code, lambda: None, lambda: None)
    routes = [Route(one.path, _public(one), methods=[one.method]) for one in health]
    return Guard([*routes, Route("/{path:path}", refuse, methods=METHODS)], hosts)


def _health(
    ready: Callable[[], str | None], warning: Callable[[], str | None], stopped: Callable[[], EmergencyStop | None]
) -> list[Operation]:
    """Return the health operations, which need no token. Other facts about the daemon need one."""

    async def healthz(request: Request, principal: PrincipalId) -> Response:
        return json_response(HealthResponse(status="ok" if stopped() is None else "stopped"))

    async def readyz(request: Request, principal: PrincipalId) -> Response:
        if (code := ready()) is None:
            return json_response(ReadinessResponse(status="ready", warning=warning()))
        return json_response(ReadinessResponse(status="not_ready", code=code), status=503)

    return [
        Operation(
            "getHealth",
            "GET",
            "/healthz",
            healthz,
            "Show whether the process lives.",
            need=None,
            answer=HealthResponse,
        ),
        Operation(
            "getReadiness",
            "GET",
            "/readyz",
            readyz,
            "Show whether the daemon can work.",
            need=None,
            answer=ReadinessResponse,
            unready=ReadinessResponse,
        ),
    ]


def _endpoint(operation: Operation, auth: Auth) -> Callable[[Request], Awaitable[ASGIApp]]:
    return _public(operation) if operation.need is None else _authorised(operation, operation.need, auth)


def _public(operation: Operation) -> Callable[[Request], Awaitable[ASGIApp]]:
    async def endpoint(request: Request) -> ASGIApp:
        return await operation.handler(request, ANYONE)

    return endpoint


def _authorised(operation: Operation, need: TokenNeed, auth: Auth) -> Callable[[Request], Awaitable[ASGIApp]]:
    async def endpoint(request: Request) -> ASGIApp:
        slot = request.scope.get("state", {}).get(SLOT)
        holder = await auth.admit(request.headers.get("authorization"), need=need, slot=slot)
        with auth.concealing(holder):
            return await operation.handler(request, holder.principal)

    return endpoint


class Guard:
    """Passes requests to their routes, and turns exceptions into problem documents.

    A response that has begun cannot be replaced any more.
    """

    def __init__(self, routes: list[Route], hosts: AllowedHosts) -> None:
        self._routes = routes
        self._hosts = hosts
        self._router = Router(routes, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        # Starlette raises instead of responding itself when it finds an application here.
        scope["app"] = self
        begun = False
        origin: bytes | None = None

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message if origin is None else permit(message, origin))

        try:
            requested_request_origin = request_origin(scope)
            if self._hosts.check(requested_request_origin) and requested_request_origin.origin is not None:
                origin = requested_request_origin.origin.encode()
                if is_preflight(scope):
                    await preflight(scope)(scope, receive, watched)
                    return
            await self._router(scope, receive, watched)
        except ClientDisconnect:
            pass  # it disconnected during its request: there is no client to respond to
        except Exception as error:
            cached_error = self._known(error, scope)
            if isinstance(cached_error, InternalError):
                log.exception("%s %s failed", scope["method"], scope["path"])
            if begun:
                raise
            shape = failure if scope["path"].startswith(V1) else problem_response
            await shape(cached_error)(scope, receive, watched)

    def _known(self, error: Exception, scope: Scope) -> PalyraError:
        match error:
            case PalyraError():
                return error
            case HTTPException(status_code=404):
                return RouteNotFound()
            case HTTPException(status_code=405):
                return MethodNotAllowed(self._methods(scope))
            case HTTPException(detail=detail):
                return Invalid(str(detail))
            case _:
                return InternalError()

    def _methods(self, scope: Scope) -> set[str]:
        """Return the methods of a path: it may have one route for each method."""
        fitting = (route.methods or set() for route in self._routes if route.matches(scope)[0] is not Match.NONE)
        return set().union(*fitting)
