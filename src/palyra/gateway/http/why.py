"""Why something is as it is, over HTTP."""

import asyncio
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from palyra.core.clock import Clock
from palyra.core.ids import PrincipalId
from palyra.core.message import clean_text
from palyra.core.trace import CAN_BE_ASKED, Trace
from palyra.gateway.http.operation import Operation, Query
from palyra.gateway.http.wire import reply
from palyra.gateway.status import RequestMalformed
from palyra.journal.engine import Engine
from palyra.sandbox.workspace import Workspace

if TYPE_CHECKING:
    from palyra.runs.why import Why

MAX_NAME_CHARS = 4096


class WhyRoutes:
    """The operation that traces things back."""

    def __init__(self, engine: Engine, *, clock: Clock, workspace: Callable[[PrincipalId], Workspace]) -> None:
        self._engine = engine
        self._clock = clock
        self._workspace = workspace

    def operations(self) -> list[Operation]:
        of = Query("of", "string", f"What to explain. {CAN_BE_ASKED}")
        return [
            Operation(
                "GET", "/console/v1/why", self.trace, "Trace something back to its causes.", query=(of,), answer=Trace
            )
        ]

    async def trace(self, request: Request, principal: PrincipalId) -> Response:
        """Trace something back."""
        name = request.query_params.get("of", "")
        if not name or len(name) > MAX_NAME_CHARS:
            raise RequestMalformed(f"Say with `of` what to explain. {CAN_BE_ASKED}")
        clean_text(name, what="name")
        why = await asyncio.to_thread(lambda: self._why)
        return reply(await why.trace(principal, name))

    @cached_property
    def _why(self) -> "Why":
        # Imported when it is first asked for: most daemons live without it, and none should be larger for it.
        from palyra.runs.why import Why

        return Why(self._engine, clock=self._clock, workspace=self._workspace)
