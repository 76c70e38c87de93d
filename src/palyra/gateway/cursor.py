"""Pages of lists: where one ended, as a string that a client sends back unread.

Each query reads one row more than the page holds, so that `next_cursor` is None exactly if nothing follows.
"""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from palyra.core.clock import to_ms
from palyra.core.policy.approval import Approval, Grant
from palyra.core.run.record import RunRecord
from palyra.core.secret import SealedRecord
from palyra.core.session import Session
from palyra.gateway.error_status import RequestInvalid

T = TypeVar("T")

# Sixteen digits are more than any timestamp or tape has, and fewer than the databases' integers hold.
_NUMBER = re.compile(r"[0-9]{1,16}", re.ASCII)
_ID = re.compile(r"[0-9A-Za-z]{1,26}", re.ASCII)


def page(rows: Sequence[T], limit: int, cursor: Callable[[T], str]) -> tuple[Sequence[T], str | None]:
    """Return at most `limit` of the rows, and the cursor of the last one if there are more."""
    return (rows[:limit], cursor(rows[limit - 1])) if len(rows) > limit else (rows, None)


def from_session(session: Session) -> str:
    """Return the cursor of a session in the list of sessions."""
    return f"{to_ms(session.updated_at)}-{session.session_id}"


def from_run(run: RunRecord) -> str:
    """Return the cursor of a run in the list of runs."""
    return f"{to_ms(run.accepted_at)}-{run.run_id}"


def from_approval(approval: Approval) -> str:
    """Return the cursor of an approval in the list of approvals."""
    return f"{to_ms(approval.requested_at)}-{approval.approval_id}"


def from_grant(grant: Grant) -> str:
    """Return the cursor of a grant in the list of grants."""
    return f"{to_ms(grant.granted_at)}-{grant.grant_id}"


def from_sealed(sealed: SealedRecord) -> str:
    """Return the cursor of a sealed value in the list of sealed values."""
    return f"{to_ms(sealed.created_at)}-{sealed.sealed_id}"


def to_position(text: str) -> tuple[int, str]:
    """Decode a cursor of a time and an id."""
    number, _, item_id = text.partition("-")
    return to_number(number), to_id(item_id)


def to_number(text: str) -> int:
    """Decode a cursor that is a number."""
    if not _NUMBER.fullmatch(text):
        raise _invalid()
    return int(text)


def to_id(text: str) -> str:
    """Decode a cursor that is an id."""
    if not _ID.fullmatch(text):
        raise _invalid()
    return text


def _invalid() -> RequestInvalid:
    return RequestInvalid("The cursor is not valid. Send the next_cursor of the page before.")
