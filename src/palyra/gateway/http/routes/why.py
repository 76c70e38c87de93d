"""Traces over HTTP: why something is as it is."""

import asyncio
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from starlette.requests import Request

from palyra.core.clock import Clock
from palyra.core.ids import PrincipalId
from palyra.core.message import clean_text
from palyra.core.trace.tree import TRACE_SUBJECTS_HELP, Trace
from palyra.gateway.error_status import RequestInvalid
from palyra.gateway.http.declaration import Routes, operation
from palyra.gateway.http.operation import Parameter
from palyra.journal.engines.base import Engine
from palyra.sandbox.files.workspace import Workspace

if TYPE_CHECKING:
    from palyra.runs.services.why import TraceService

MAX_NAME_CHARS = 4096
SUBJECT = Parameter("of", "string", f"What to explain. {TRACE_SUBJECTS_HELP}", required=True)


class WhyRoutes(Routes):
    """The operation that traces things back to their cause."""

    def __init__(self, engine: Engine, *, clock: Clock, workspace: Callable[[PrincipalId], Workspace]) -> None:
        self._engine = engine
        self._clock = clock
        self._workspace = workspace

    @operation("getTrace", "GET /console/v1/why", query=(SUBJECT,))
    async def trace(self, request: Request, principal: PrincipalId) -> Trace:
        """Trace something back to its causes."""
        name = request.query_params.get("of", "")
        if not name or len(name) > MAX_NAME_CHARS:
            raise RequestInvalid(f"Use `of` to say what to explain. {TRACE_SUBJECTS_HELP}")
        clean_text(name, what="name")
        why = await asyncio.to_thread(lambda: self._why)
        return await why.trace(principal, name)

    @cached_property
    def _why(self) -> "TraceService":
        # Imported on first use: most daemons never need it, and none should be larger for it.
        from palyra.runs.services.why import TraceService

        return TraceService(self._engine, clock=self._clock, workspace=self._workspace)
