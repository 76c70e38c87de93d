"""HTTP calls that concern approvals and grants."""

from palyra.core.message import AcceptedMessage
from palyra.core.policy.approval import Approval, Grant
from palyra.gateway.client.http_calls import HttpCalls, segment
from palyra.gateway.records.approvals import (
    ApprovalAnswerRequest,
    ApprovalPage,
    ApprovalResponse,
    GrantPage,
    GrantResponse,
)

ROOT = "/console/v1/approvals"
GRANTS = "/console/v1/grants"


class ApprovalCalls:
    """Calls the operations on approvals and grants of one daemon."""

    def __init__(self, http: HttpCalls) -> None:
        self._http = http

    def list(self, *, only_open: bool, limit: int) -> ApprovalPage:
        """Return a page of the approvals, the latest first."""
        return self._http.get(ApprovalPage, ROOT, {"open": only_open, "limit": limit})

    def get(self, approval_id: str) -> Approval:
        """Return the approval with this id, or with this end of an id if it is open."""
        return self._http.get(ApprovalResponse, f"{ROOT}/{segment(approval_id)}").approval

    def reveal(self, approval_id: str) -> Approval:
        """Return the approval with values in place of markers of sealed secrets."""
        return self._http.post(ApprovalResponse, f"{ROOT}/{segment(approval_id)}/reveal").approval

    def resolve(self, approval_id: str, answer: ApprovalAnswerRequest) -> Approval:
        """Answer an approval request; the first answer counts."""
        return self._http.post(ApprovalResponse, f"{ROOT}/{segment(approval_id)}/resolve", answer).approval

    def reissue(self, approval_id: str) -> AcceptedMessage:
        """Start a run that proposes the call of an expired approval request again."""
        return self._http.post(AcceptedMessage, f"{ROOT}/{segment(approval_id)}/reissue")

    def export(self) -> bytes:
        """Return all approvals as lines of JSON, each chained to the one before it."""
        return self._http.download(f"{ROOT}/export")

    def grants(self, *, limit: int, cursor: str | None = None) -> GrantPage:
        """Return a page of the grants, the latest first."""
        return self._http.get(GrantPage, GRANTS, {"limit": limit, "cursor": cursor})

    def revoke_grant(self, grant_id: str) -> Grant:
        """Revoke a grant."""
        return self._http.post(GrantResponse, f"{GRANTS}/{segment(grant_id)}/revoke").grant
