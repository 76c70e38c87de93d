"""The shadow over HTTP: a candidate set of policies beside the one in force, for whoever administers."""

from typing import Annotated

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from palyra.core.ids import PrincipalId
from palyra.core.shadow import PolicyFile, Report, Shadow
from palyra.gateway.http.operation import Operation
from palyra.gateway.http.wire import body, reply
from palyra.runs.shadow import MOST_FILES, Shadows


class CandidateRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy files that stand in the place of the home's own."""

    files: Annotated[tuple[PolicyFile, ...], Meta(min_length=1, max_length=MOST_FILES)]


class ShadowAnswer(Struct, frozen=True, kw_only=True):
    """The candidate that judges, or did last."""

    shadow: Shadow


class ShadowRoutes:
    """The operations that concern the candidate. Its calls are everybody's, so only an administrator sees them."""

    def __init__(self, shadows: Shadows) -> None:
        self._shadows = shadows

    def operations(self) -> list[Operation]:
        at = "/admin/v1/policy/shadow"
        return [
            Operation("GET", at, self.report, "Say where the candidate policies differ.", need="admin", answer=Report),
            Operation(
                "PUT",
                at,
                self.start,
                "Let candidate policies judge beside those in force.",
                need="admin",
                body=CandidateRequest,
                answer=ShadowAnswer,
            ),
            Operation(
                "DELETE", at, self.stop, "Let the candidate policies judge no more.", need="admin", answer=ShadowAnswer
            ),
        ]

    async def report(self, request: Request, principal: PrincipalId) -> Response:
        """Say what was found so far."""
        return reply(await self._shadows.report())

    async def start(self, request: Request, principal: PrincipalId) -> Response:
        """Begin with a candidate, or exchange it."""
        asked = await body(request, CandidateRequest)
        return reply(ShadowAnswer(shadow=await self._shadows.start(principal, asked.files)))

    async def stop(self, request: Request, principal: PrincipalId) -> Response:
        """End it; what it has found stays."""
        return reply(ShadowAnswer(shadow=await self._shadows.stop(principal)))
