"""Cursors: where a page of a list ended, as a string that a client sends back."""

from palyra.core.clock import to_ms
from palyra.core.policy.approval import Approval
from palyra.core.run.record import RunRecord
from palyra.core.session import Session
from palyra.gateway.error_status import RequestInvalid


def from_session(session: Session) -> str:
    """Return the cursor of a session in the list of sessions."""
    return f"{to_ms(session.updated_at)}-{session.session_id}"


def from_run(run: RunRecord) -> str:
    """Return the cursor of a run in the list of runs."""
    return f"{to_ms(run.accepted_at)}-{run.run_id}"


def from_approval(approval: Approval) -> str:
    """Return the cursor of an approval in the list of approvals."""
    return f"{to_ms(approval.asked_at)}-{approval.approval_id}"


def to_position(text: str) -> tuple[int, str]:
    """Decode a cursor."""
    ms, _, item_id = text.partition("-")
    # Sixteen digits are more than any timestamp has, and fewer than the databases' integers hold.
    if not ms.isascii() or not ms.isdigit() or len(ms) > 16 or not item_id.isalnum() or len(item_id) > 26:
        raise RequestInvalid("That is no cursor. Use the next_cursor of the page before.")
    return int(ms), item_id
