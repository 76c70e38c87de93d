"""What was spent, over HTTP: everybody sees their own, an administrator all of it."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from palyra.core.budget import Per
from palyra.core.clock import Clock
from palyra.core.ids import PrincipalId
from palyra.core.report import By, Causes, UsageReport
from palyra.core.spending import bounds
from palyra.gateway.http.operation import LIMIT, Operation, Query
from palyra.gateway.http.wire import number, reply
from palyra.gateway.status import RequestMalformed
from palyra.journal.engine import Engine
from palyra.settings import SpendingSettings

if TYPE_CHECKING:
    from palyra.runs.usage import Usage

USUAL_LIMIT = 50
MOST_ROWS = 500

SINCE = Query("since", "string", "From when on, as a date or a time (ISO 8601, UTC); this month if nothing is said.")
BY = Query("by", "string", "`model` (the usual one), `session`, `day`, `agent` or `run`; for an operator `principal`.")
RUN = Query("run", "string", "Only this run, turn by turn, and the runs that worked for it.")


class UsageRoutes:
    """The operations that tell of spending."""

    def __init__(self, engine: Engine, settings: Callable[[], SpendingSettings], *, clock: Clock) -> None:
        """`settings` returns those in force."""
        self._engine = engine
        self._settings = settings
        self._clock = clock

    @cached_property
    def _usage(self) -> "Usage":
        # Imported when it is first asked for: an idle daemon should not be larger for it.
        from palyra.runs.usage import Usage

        return Usage(self._engine, self._settings, clock=self._clock)

    def operations(self) -> list[Operation]:
        added_up, why = "Add up what models were used for, and show the budgets.", "Say what led to the model turns."
        return [
            Operation("GET", "/console/v1/usage", self.own, added_up, query=(BY, SINCE, LIMIT), answer=UsageReport),
            Operation("GET", "/console/v1/usage/why", self.own_why, why, query=(RUN, SINCE), answer=Causes),
            Operation(
                "GET",
                "/admin/v1/usage",
                self.every,
                f"{added_up[:-1]}, of everybody.",
                need="admin",
                query=(BY, SINCE, LIMIT),
                answer=UsageReport,
            ),
            Operation(
                "GET",
                "/admin/v1/usage/why",
                self.every_why,
                f"{why[:-1]}, of everybody.",
                need="admin",
                query=(RUN, SINCE),
                answer=Causes,
            ),
        ]

    async def own(self, request: Request, principal: PrincipalId) -> Response:
        return await self._report(request, principal)

    async def every(self, request: Request, principal: PrincipalId) -> Response:
        return await self._report(request, None)

    async def own_why(self, request: Request, principal: PrincipalId) -> Response:
        return await self._why(request, principal)

    async def every_why(self, request: Request, principal: PrincipalId) -> Response:
        return await self._why(request, None)

    async def _report(self, request: Request, principal: PrincipalId | None) -> Response:
        by = _by(request, principal)
        limit = number(request, "limit", default=USUAL_LIMIT, most=MOST_ROWS)
        since = _since(request) or _usual_since(by, self._clock.now())
        usage = await asyncio.to_thread(lambda: self._usage)
        return reply(await usage.report(principal, by, since=since, limit=limit))

    async def _why(self, request: Request, principal: PrincipalId | None) -> Response:
        run, since = request.query_params.get("run"), _since(request)
        usage = await asyncio.to_thread(lambda: self._usage)
        if run is not None:
            return reply(await usage.why_run(principal, run))
        return reply(await usage.why(principal, since=since or _usual_since(By.MODEL, self._clock.now())))


def _by(request: Request, principal: PrincipalId | None) -> By:
    known = [by for by in By if by is not By.PRINCIPAL or principal is None]
    text = request.query_params.get("by", By.MODEL)
    if text not in known:
        raise RequestMalformed(f"by is one of {', '.join(known)}, not {text[:40]!r}.")
    return By(text)


def _since(request: Request) -> datetime | None:
    text = request.query_params.get("since")
    if text is None:
        return None
    try:
        since = datetime.fromisoformat(text)
        since = since.replace(tzinfo=UTC) if since.tzinfo is None else since.astimezone(UTC)
    except (ValueError, OverflowError):
        raise RequestMalformed(
            f"since must be a date or a time such as 2026-11-15 or 2026-11-15T08:00:00Z, not {text[:40]!r}."
        ) from None
    return since


def _usual_since(by: By, now: datetime) -> datetime:
    """Return from when on usage is told if nobody says: this month, or thirty days if it is by day."""
    return now - timedelta(days=30) if by is By.DAY else bounds(Per.MONTH, now)[0]
