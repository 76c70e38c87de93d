"""Approvals as rows: the approval requests and their outcomes. A projection of the tape."""

import msgspec

from palyra.core.events import ApprovalResolved, decode
from palyra.core.ids import PrincipalId, RunId, SessionId
from palyra.core.policy.approval import Approval, ApprovalScope
from palyra.journal.engines.base import Connection, Row
from palyra.journal.row_mapping import RowMapping

FIRST_SCHEMA = 19
"""The first schema whose rows have these columns; earlier ones are compared once they are migrated."""
ALLOWED = "allowed"

_ROWS = RowMapping(Approval, "approvals", without=("edited_arguments", "pattern"))
"""What the tape alone knows of an answer has no column."""

as_stored = _ROWS.as_stored


def insert(conn: Connection, approval: Approval) -> None:
    """Insert an approval request."""
    conn.execute(_ROWS.insert, _ROWS.write(approval))


def remove(conn: Connection, approval_id: str) -> None:
    """Delete an approval request that is on no tape."""
    conn.execute("DELETE FROM approvals WHERE approval_id = :approval_id", {"approval_id": approval_id})


def settle(
    conn: Connection, approval_id: str, *, decision: str, scope: ApprovalScope | None, by: str, answer: str, at_ms: int
) -> None:
    """Record the outcome of an approval request."""
    conn.execute(
        "UPDATE approvals SET decision = :decision, scope = :scope, answered_ms = :at_ms, answered_by = :by,"
        " answer = :answer WHERE approval_id = :approval_id AND decision IS NULL",
        {
            "approval_id": approval_id,
            "decision": decision,
            "scope": scope.value if scope is not None else None,
            "at_ms": at_ms,
            "by": by,
            "answer": answer,
        },
    )


def note_reissue(conn: Connection, approval_id: str, run_id: RunId) -> None:
    """Record which run proposes the call of an approval request again."""
    conn.execute(
        "UPDATE approvals SET reissued_as = :run_id WHERE approval_id = :approval_id",
        {"approval_id": approval_id, "run_id": run_id},
    )


def get(conn: Connection, approval_id: str, principal: PrincipalId) -> Approval | None:
    """Return the principal's approval of that id."""
    row = conn.fetch_one(
        f"{_ROWS.select} WHERE approval_id = :approval_id AND principal = :principal",
        {"approval_id": approval_id, "principal": principal},
    )
    return _ROWS.read(row) if row else None


def ending_in(conn: Connection, ending: str, principal: PrincipalId, *, overdue: bool = False) -> list[Approval]:
    """Return the principal's open approvals whose id ends with these characters, as a person types them.

    With `overdue`, also those that expired without an answer.
    """
    state = "(decision IS NULL OR decision = 'timed_out')" if overdue else "decision IS NULL"
    rows = conn.fetch(
        f"{_ROWS.select} WHERE principal = :principal AND {state}"
        " AND SUBSTR(approval_id, 27 - :length) = :ending ORDER BY requested_ms, approval_id LIMIT 2",
        {"principal": principal, "length": len(ending), "ending": ending},
    )
    return [_ROWS.read(row) for row in rows]


def page(
    conn: Connection, principal: PrincipalId, *, only_open: bool, before: tuple[int, str] | None, limit: int
) -> list[Approval]:
    """Return the principal's approvals, the latest first."""
    params: dict[str, object] = {"principal": principal, "limit": limit}
    location = " AND decision IS NULL" if only_open else ""
    if before is not None:
        location += " AND (requested_ms, approval_id) < (:before_ms, :before_id)"
        params |= {"before_ms": before[0], "before_id": before[1]}
    rows = conn.fetch(
        f"{_ROWS.select} WHERE principal = :principal{location}"
        " ORDER BY requested_ms DESC, approval_id DESC LIMIT :limit",
        params,
    )
    return [_ROWS.read(row) for row in rows]


def with_arguments(conn: Connection, approvals: list[Approval]) -> list[Approval]:
    """Return the approvals with the parts of their answers that only the tape has: changed arguments, and a pattern."""
    runs = {
        f"r{index}": run_id for index, run_id in enumerate({one.run_id for one in approvals if one.decision == ALLOWED})
    }
    if not runs:
        return approvals
    rows = conn.fetch(
        f"SELECT content FROM tape WHERE run_id IN ({', '.join(f':{name}' for name in runs)})"
        " AND kind = 'approval_resolved'",
        runs,
    )
    answers = {
        event.approval_id: event
        for (content,) in rows
        if isinstance(event := decode(content), ApprovalResolved) and (event.arguments is not None or event.pattern)
    }
    return [
        msgspec.structs.replace(one, edited_arguments=answer.arguments, pattern=answer.pattern)
        if (answer := answers.get(one.approval_id))
        else one
        for one in approvals
    ]


def of_session(conn: Connection, session_id: SessionId) -> dict[str, Approval | None]:
    """Return the approval requests of a session by their ids; None for one that cannot be read."""
    rows = conn.fetch(f"{_ROWS.select} WHERE session_id = :session_id", {"session_id": session_id})
    return {row[0]: _approval_or_none(row) for row in rows}


def _approval_or_none(row: Row) -> Approval | None:
    try:
        return _ROWS.read(row)
    except (msgspec.DecodeError, ValueError, TypeError, AttributeError, OverflowError):
        return None
