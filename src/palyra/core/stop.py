"""Emergency stops: no agent works, or those of one principal do not, until someone resumes."""

from datetime import datetime

from msgspec import Struct

from palyra.core.ids import PrincipalId

MAX_STOP_REASON_CHARS = 500


class EmergencyStop(Struct, frozen=True, kw_only=True):
    """Who stopped what, when and why."""

    stop_id: str
    principal: PrincipalId | None
    """Whose work is stopped; None if it is everyone's."""
    by: str
    at: datetime
    reason: str = ""

    def covers(self, principal: PrincipalId) -> bool:
        """Return whether it stops the work of a principal."""
        return self.principal is None or self.principal == principal

    @property
    def cause(self) -> str:
        """Why a run ended, as recorded on its tape."""
        return f"stopped by {self.by}" + (f": {self.reason}" if self.reason else "")

    @property
    def description(self) -> str:
        """What is stopped, since when, by whom and why, in one sentence."""
        what = "Everything" if self.principal is None else f"All work of {self.principal}"
        why = f": {self.reason.rstrip('.')}" if self.reason else ""
        return f"{what} has been stopped since {self.at:%Y-%m-%d %H:%M:%S} UTC by {self.by}{why}."
