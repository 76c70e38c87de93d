"""Shadow policies over HTTP: a candidate set beside the one in force, for administrators."""

from palyra.core.ids import PrincipalId
from palyra.core.policy.policy_shadow import ShadowReport
from palyra.gateway.http.declaration import Routes, operation
from palyra.gateway.records.policy_shadow import ShadowPolicyRequest, ShadowPolicyResponse
from palyra.runs.services.policy_shadow import PolicyShadowService


class ShadowRoutes(Routes):
    """The operations that concern the candidate. It sees the calls of all principals, so only administrators use it."""

    def __init__(self, shadows: PolicyShadowService) -> None:
        self._shadows = shadows

    @operation("getShadowPolicy", "GET /admin/v1/policy/shadow", need="admin")
    async def report(self) -> ShadowReport:
        """Show where the shadow policy decides differently."""
        return await self._shadows.report()

    @operation("startShadowPolicy", "PUT /admin/v1/policy/shadow", need="admin")
    async def start(self, principal: PrincipalId, body: ShadowPolicyRequest) -> ShadowPolicyResponse:
        """Let a shadow policy judge beside the policies in force."""
        return ShadowPolicyResponse(shadow=await self._shadows.start(principal, body.files))

    @operation("endShadowPolicy", "POST /admin/v1/policy/shadow/end", need="admin")
    async def stop(self, principal: PrincipalId) -> ShadowPolicyResponse:
        """End the shadow policy; its report stays."""
        return ShadowPolicyResponse(shadow=await self._shadows.stop(principal))
