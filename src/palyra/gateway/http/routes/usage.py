"""Usage and costs over HTTP: each principal sees their own, an administrator all."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from starlette.requests import Request

from palyra.core.clock import Clock
from palyra.core.ids import PrincipalId
from palyra.core.projection.ledger import period_bounds
from palyra.core.spending.budget import BudgetPeriod
from palyra.core.spending.usage_report import UsageCauses, UsageGrouping, UsageReport
from palyra.gateway.error_status import RequestInvalid
from palyra.gateway.http.declaration import Routes, operation
from palyra.gateway.http.messages import number
from palyra.gateway.http.operation import Parameter, page_limit
from palyra.journal.engines.base import Engine
from palyra.settings import SpendingSettings

if TYPE_CHECKING:
    from palyra.runs.services.usage import UsageService

LIMIT = page_limit(50)

SINCE = Parameter("since", "string", "The start, as a date or a time (ISO 8601, UTC); this month if it is not set.")
OWN_GROUPINGS = tuple(by.value for by in UsageGrouping if by is not UsageGrouping.PRINCIPAL)
BY = Parameter(
    "by", "string", "What the rows are grouped by.", default=UsageGrouping.MODEL.value, choices=OWN_GROUPINGS
)
ADMIN_BY = replace(BY, choices=tuple(by.value for by in UsageGrouping))
RUN = Parameter("run", "string", "Only this run, turn by turn, and its child runs.")


class UsageRoutes(Routes):
    """The operations that report usage."""

    def __init__(self, engine: Engine, settings: Callable[[], SpendingSettings], *, clock: Clock) -> None:
        """`settings` returns the settings in force."""
        self._engine = engine
        self._settings = settings
        self._clock = clock

    @operation("getUsage", "GET /console/v1/usage", query=(BY, SINCE, LIMIT))
    async def own(self, request: Request, principal: PrincipalId) -> UsageReport:
        """Sum up the use of models, and show the budgets."""
        return await self._report(request, principal)

    @operation("getUsageCauses", "GET /console/v1/usage/why", query=(RUN, SINCE))
    async def own_why(self, request: Request, principal: PrincipalId) -> UsageCauses:
        """Show what led to the model turns."""
        return await self._why(request, principal)

    @operation("adminGetUsage", "GET /admin/v1/usage", need="admin", query=(ADMIN_BY, SINCE, LIMIT))
    async def every(self, request: Request) -> UsageReport:
        """Sum up the use of models, and show the budgets, of everyone."""
        return await self._report(request, None)

    @operation("adminGetUsageCauses", "GET /admin/v1/usage/why", need="admin", query=(RUN, SINCE))
    async def every_why(self, request: Request) -> UsageCauses:
        """Show what led to the model turns, of everyone."""
        return await self._why(request, None)

    @cached_property
    def _usage(self) -> "UsageService":
        # Imported on first use: an idle daemon should not be larger for it.
        from palyra.runs.services.usage import UsageService

        return UsageService(self._engine, self._settings, clock=self._clock)

    async def _report(self, request: Request, principal: PrincipalId | None) -> UsageReport:
        by = _by(request, principal)
        limit = number(request, LIMIT)
        since = _since(request) or _usual_since(by, self._clock.now())
        usage = await asyncio.to_thread(lambda: self._usage)
        return await usage.report(principal, by, since=since, limit=limit)

    async def _why(self, request: Request, principal: PrincipalId | None) -> UsageCauses:
        run, since = request.query_params.get("run"), _since(request)
        usage = await asyncio.to_thread(lambda: self._usage)
        if run is not None:
            return await usage.why_run(principal, run)
        return await usage.why(principal, since=since or _usual_since(UsageGrouping.MODEL, self._clock.now()))


def _by(request: Request, principal: PrincipalId | None) -> UsageGrouping:
    names = (ADMIN_BY if principal is None else BY).choices
    text = request.query_params.get(BY.name, UsageGrouping.MODEL.value)
    if text not in names:
        raise RequestInvalid(f"by must be one of {', '.join(names)}, not {text[:40]!r}.")
    return UsageGrouping(text)


def _since(request: Request) -> datetime | None:
    text = request.query_params.get("since")
    if text is None:
        return None
    try:
        since = datetime.fromisoformat(text)
        since = since.replace(tzinfo=UTC) if since.tzinfo is None else since.astimezone(UTC)
    except (ValueError, OverflowError):
        raise RequestInvalid(
            f"since must be a date or a time such as 2026-11-15 or 2026-11-15T08:00:00Z, not {text[:40]!r}."
        ) from None
    return since


def _usual_since(by: UsageGrouping, now: datetime) -> datetime:
    """Return the default start of a usage report: this month, or thirty days ago if it is by day."""
    return now - timedelta(days=30) if by is UsageGrouping.DAY else period_bounds(BudgetPeriod.MONTH, now)[0]
