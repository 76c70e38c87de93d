"""Why something is as it is, over HTTP."""

from starlette.requests import Request
from starlette.responses import Response

from palyra.core.ids import PrincipalId
from palyra.core.message import clean_text
from palyra.gateway.http.operation import Operation, Query
from palyra.gateway.http.wire import reply
from palyra.gateway.status import RequestMalformed
from palyra.runs.why import CAN_BE_ASKED, Trace, Why

MAX_NAME_CHARS = 4096


class WhyRoutes:
    """The operation that traces things back."""

    def __init__(self, why: Why) -> None:
        self._why = why

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
        return reply(await self._why.trace(principal, clean_text(name, what="name")))
