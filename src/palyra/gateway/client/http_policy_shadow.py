"""HTTP calls that concern the shadow policy."""

from collections.abc import Sequence

from palyra.core.policy.policy_shadow import PolicyFile, ShadowPolicy, ShadowReport
from palyra.gateway.client.http_calls import HttpCalls
from palyra.gateway.records.policy_shadow import ShadowPolicyRequest, ShadowPolicyResponse

ROOT = "/admin/v1/policy/shadow"


class PolicyShadowCalls:
    """Calls the operations on the shadow policy of one daemon."""

    def __init__(self, http: HttpCalls) -> None:
        self._http = http

    def report(self) -> ShadowReport:
        """Return where the shadow policy decides differently."""
        return self._http.get(ShadowReport, ROOT)

    def start(self, files: Sequence[PolicyFile]) -> ShadowPolicy:
        """Let a shadow policy judge from now on."""
        return self._http.put(ShadowPolicyResponse, ROOT, ShadowPolicyRequest(files=tuple(files))).shadow

    def end(self) -> ShadowPolicy:
        """End the shadow policy; its report stays."""
        return self._http.post(ShadowPolicyResponse, f"{ROOT}/end").shadow
