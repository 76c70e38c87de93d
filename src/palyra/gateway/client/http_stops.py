"""HTTP calls that concern emergency stops: for the caller's own work, and for administrators."""

from palyra.gateway.client.http_calls import HttpCalls
from palyra.gateway.records.stops import (
    OwnStopRequest,
    ResumeRequest,
    ResumeResponse,
    StopPage,
    StopRequest,
    StopResponse,
)

ROOT = "/console/v1/stops"
ADMIN_ROOT = "/admin/v1/stops"


class StopCalls:
    """Calls the operations on stops of one daemon."""

    def __init__(self, http: HttpCalls) -> None:
        self._http = http

    def list(self) -> StopPage:
        """Return the stops that cover the caller's work."""
        return self._http.get(StopPage, ROOT)

    def create(self, *, reason: str) -> StopResponse:
        """Stop the caller's work."""
        return self._http.post(StopResponse, ROOT, OwnStopRequest(reason=reason))

    def resume(self) -> ResumeResponse:
        """Resume the caller's work."""
        return self._http.post(ResumeResponse, f"{ROOT}/resume")

    def admin_create(self, *, principal: str | None, reason: str) -> StopResponse:
        """Stop the work of one principal, or all work if none is named."""
        return self._http.post(StopResponse, ADMIN_ROOT, StopRequest(principal=principal, reason=reason))

    def admin_resume(self, *, principal: str | None, remove_file: bool) -> ResumeResponse:
        """Resume the work of one principal, or all work if none is named."""
        request = ResumeRequest(principal=principal, remove_file=remove_file)
        return self._http.post(ResumeResponse, f"{ADMIN_ROOT}/resume", request)
