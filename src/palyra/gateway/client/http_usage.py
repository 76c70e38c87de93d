"""HTTP calls that concern usage and costs: the caller's own, or everyone's for administrators."""

from palyra.core.spending.usage_report import UsageCauses, UsageGrouping, UsageReport
from palyra.gateway.client.http_calls import HttpCalls

ROOT = "/console/v1/usage"
ADMIN_ROOT = "/admin/v1/usage"


class UsageCalls:
    """Calls the operations on usage of one daemon; `everyone` needs the scope `admin`."""

    def __init__(self, http: HttpCalls) -> None:
        self._http = http

    def report(
        self,
        *,
        by: UsageGrouping = UsageGrouping.MODEL,
        since: str | None = None,
        limit: int,
        everyone: bool = False,
    ) -> UsageReport:
        """Return the usage since a time, and the budgets."""
        return self._http.get(UsageReport, _root(everyone), {"by": by.value, "since": since, "limit": limit})

    def causes(self, *, run_id: str | None = None, since: str | None = None, everyone: bool = False) -> UsageCauses:
        """Return what led to the model turns since a time, or to those of one run."""
        return self._http.get(UsageCauses, f"{_root(everyone)}/why", {"run": run_id, "since": since})


def _root(everyone: bool) -> str:
    return ADMIN_ROOT if everyone else ROOT
