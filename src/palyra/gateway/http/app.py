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
from palyra.core.stop import EmergencyStop
from palyra.gateway.allowed_hosts import AllowedHosts
from palyra.gateway.auth import Auth
from palyra.gateway.error_status import InternalError, MethodNotAllowed
from palyra.gateway.http.cors import is_preflight, permit, preflight, request_origin
from palyra.gateway.http.messages import json_response, problem_response
from palyra.gateway.http.openai.errors import failure
from palyra.gateway.http.openapi import document
from palyra.gateway.http.operation import Operation
from palyra.gateway.http.protocol import SLOT

V1 = "/v1/"
"""Below this path, errors have the form that OpenAI clients expect."""

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

log = logging.getLogger(__name__)


class RouteNotFound(NotFound):
    """There is nothing at this address."""


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

    async def openapi(request: Request) -> Response:
        # Some types are only imported when they are first described.
        return json_response(await asyncio.to_thread(document, operations))

    return Guard(
        [
            *_health(ready, warning, stopped),
            Route("/openapi.json", openapi, methods=["GET"]),
            *(Route(o.path, _authorised(o, auth), methods=[o.method]) for o in operations),
        ],
        hosts,
    )


def refusing(error: PalyraError, *, hosts: AllowedHosts) -> ASGIApp:
    """Return the application of a daemon that does not serve yet: all requests but health get the error."""

    async def refuse(request: Request) -> Response:
        raise error

    return Guard(
        [*_health(lambda: error.code, lambda: None, lambda: None), Route("/{path:path}", refuse, methods=METHODS)],
        hosts,
    )


def _health(
    ready: Callable[[], str | None], warning: Callable[[], str | None], stopped: Callable[[], EmergencyStop | None]
) -> list[Route]:
    """Return the health routes, which need no token. Other facts about the daemon need one."""

    async def healthz(request: Request) -> Response:
        return json_response({"status": "ok" if stopped() is None else "stopped"})

    async def readyz(request: Request) -> Response:
        if (code := ready()) is None:
            return json_response({"status": "ready"} | ({"warning": code} if (code := warning()) is not None else {}))
        return json_response({"status": "not_ready", "code": code}, status=503)

    return [Route("/healthz", healthz, methods=["GET"]), Route("/readyz", readyz, methods=["GET"])]


def _authorised(operation: Operation, auth: Auth) -> Callable[[Request], Awaitable[ASGIApp]]:
    async def endpoint(request: Request) -> ASGIApp:
        slot = request.scope.get("state", {}).get(SLOT)
        holder = await auth.admit(request.headers.get("authorization"), need=operation.need, slot=slot)
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
            asked = request_origin(scope)
            if self._hosts.check(asked) and asked.origin is not None:
                origin = asked.origin.encode()
                if is_preflight(scope):
                    await preflight(scope)(scope, receive, watched)
                    return
            await self._router(scope, receive, watched)
        except ClientDisconnect:
            pass  # it disconnected during its request: there is no client to respond to
        except Exception as error:
            known = self._known(error, scope)
            if isinstance(known, InternalError):
                log.exception("%s %s failed", scope["method"], scope["path"])
            if begun:
                raise
            shape = failure if scope["path"].startswith(V1) else problem_response
            await shape(known)(scope, receive, watched)

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
