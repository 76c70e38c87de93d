"""Emergency stops, as the HTTP API takes and returns them."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from palyra.core.stop import MAX_STOP_REASON_CHARS, EmergencyStop

Reason = Annotated[str, Meta(max_length=MAX_STOP_REASON_CHARS)]


class OwnStopRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Why the caller's own work is to stop."""

    reason: Reason = ""


class StopRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Whose work is to stop, and why."""

    principal: str | None = None
    """Everyone's if none is named."""
    reason: Reason = ""


class ResumeRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is to be resumed."""

    principal: str | None = None
    """The stop of one principal; if none is named, the stop of everything, and the caller's own."""
    remove_file: bool = False
    """Remove the file STOP from the home folder first, if it exists."""


class StopPage(Struct, frozen=True, kw_only=True):
    """The stops in force, the first one first."""

    stops: Sequence[EmergencyStop]
    next_cursor: str | None = None


class StopResponse(Struct, frozen=True, kw_only=True):
    """The stop in force now, and how many active runs it cancelled."""

    stop: EmergencyStop
    cancelled_runs: int


class ResumeResponse(Struct, frozen=True, kw_only=True):
    """What was resumed, and what is still stopped."""

    resumed: Sequence[EmergencyStop]
    stops: Sequence[EmergencyStop]
