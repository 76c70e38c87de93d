"""Shadow policies over HTTP: a candidate set beside the one in force, for administrators."""

from starlette.requests import Request
from starlette.responses import Response

from palyra.core.ids import PrincipalId
from palyra.core.policy.policy_shadow import ShadowReport
from palyra.gateway.http.messages import json_response, read_body
from palyra.gateway.http.operation import Operation
from palyra.gateway.records.policy_shadow import ShadowPolicyRequest, ShadowPolicyResponse
from palyra.runs.services.policy_shadow import PolicyShadowService


class ShadowRoutes:
    """The operations that concern the candidate. It sees the calls of all principals, so only administrators use it."""

    def __init__(self, shadows: PolicyShadowService) -> None:
        self._shadows = shadows

    def operations(self) -> list[Operation]:
        at = "/admin/v1/policy/shadow"
        return [
            Operation(
                "getShadowPolicy",
                "GET",
                at,
                self.report,
                "Show where the shadow policy decides differently.",
                need="admin",
                answer=ShadowReport,
            ),
            Operation(
                "startShadowPolicy",
                "PUT",
                at,
                self.start,
                "Let a shadow policy judge beside the policies in force.",
                need="admin",
                body=ShadowPolicyRequest,
                answer=ShadowPolicyResponse,
            ),
            Operation(
                "endShadowPolicy",
                "POST",
                f"{at}/end",
                self.stop,
                "End the shadow policy; its report stays.",
                need="admin",
                answer=ShadowPolicyResponse,
            ),
        ]

    async def report(self, request: Request, principal: PrincipalId) -> Response:
        """Return the report so far."""
        return json_response(await self._shadows.report())

    async def start(self, request: Request, principal: PrincipalId) -> Response:
        """Start with a candidate, or replace it."""
        requested_request = await read_body(request, ShadowPolicyRequest)
        return json_response(ShadowPolicyResponse(shadow=await self._shadows.start(principal, requested_request.files)))

    async def stop(self, request: Request, principal: PrincipalId) -> Response:
        """Stop it; its report stays."""
        return json_response(ShadowPolicyResponse(shadow=await self._shadows.stop(principal)))
