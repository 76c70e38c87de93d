"""Compares approval requests and grants, as the tapes add them up, with their rows.

The revocation of a grant is on the tape that has the answer, and its row must show it. It is on no tape if the grant
was revoked before such entries existed, or after that tape was moved to the archive: a row that is otherwise right
keeps it. A row that has to be created again is revoked, since it is not known whether it had been: calls that it
allowed need an approval again. A rebuild never restores a permission that a person may have revoked.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from palyra.core.clock import from_ms, to_ms
from palyra.core.errors import PalyraError
from palyra.core.events import ApprovalResolved, decode
from palyra.core.ids import SessionId
from palyra.core.policy.approval import Approval, Grant
from palyra.core.projection.session_rows import SessionRows, Unreplayable
from palyra.journal import migrate
from palyra.journal.engines.base import Connection
from palyra.journal.proof.export_proof import entries_in
from palyra.journal.stores import approvals, grants, rotated_tapes

SLICE = 500


def has_rows(conn: Connection) -> bool:
    """Return whether the journal has these rows; an early schema does not."""
    return migrate.current(conn) >= approvals.FIRST_SCHEMA


def wrong_approvals(conn: Connection, rows: SessionRows) -> Iterator[tuple[str, Approval | None]]:
    """Yield the approval requests whose rows are missing, wrong or superfluous, each with its right value."""
    stored = approvals.of_session(conn, rows.session_id)
    for approval_id, approval in rows.approvals.items():
        if approval.call_id and not approval.tool and approval_id not in stored:
            continue  # requested before there were rows
        if stored.pop(approval_id, None) != approvals.as_stored(approval):
            yield approval_id, approval
    for approval_id in stored:
        yield approval_id, None


def wrong_grants(conn: Connection, rows: SessionRows) -> Iterator[Grant]:
    """Yield the grants from the session's answers whose rows are missing or wrong, each with its right value."""
    for grant_id, grant in rows.grants.items():
        matching_grant, stored = grants.stored(conn, grant_id), grants.as_stored(grant)
        if (
            matching_grant is None
            or replace(matching_grant, revoked_at=stored.revoked_at) != stored
            or stored.revoked_at not in (None, matching_grant.revoked_at)
        ):
            yield grant


def orphaned_approvals(conn: Connection) -> list[tuple[str, SessionId]]:
    """Return approval requests of sessions that do not exist."""
    rows = conn.fetch(
        "SELECT approval_id, session_id FROM approvals a"
        " WHERE NOT EXISTS (SELECT 1 FROM heads h WHERE h.session_id = a.session_id) ORDER BY approval_id"
    )
    return [(row[0], SessionId(row[1])) for row in rows]


def orphaned_grants(conn: Connection, folder: Path) -> set[str]:
    """Return grants without an answer on any tape; none if a tape of the archive, below the folder, cannot be read."""
    left = grants.ids(conn)
    left -= _granted_ids(conn) if left else set()
    for archived in archived_rows(conn, folder) if left else ():
        if archived is None:
            return set()
        left -= archived.grants.keys()
    return left


def _granted_ids(conn: Connection) -> set[str]:
    """Return the ids of the grants from answers on the tapes."""
    names: set[str] = set()
    position: tuple[str, int] = "", 0
    while rows := conn.fetch(
        "SELECT session_id, tape_seq, content FROM tape WHERE kind = 'approval_resolved'"
        " AND (session_id, tape_seq) > (:session_id, :tape_seq) ORDER BY session_id, tape_seq LIMIT :slice",
        {"session_id": position[0], "tape_seq": position[1], "slice": SLICE},
    ):
        for row in rows:
            event = decode(row[2])
            if isinstance(event, ApprovalResolved) and event.grant_id is not None:
                names.add(event.grant_id)
        position = rows[-1][0], rows[-1][1]
    return names


def session_of_grant(conn: Connection, grant: Grant) -> SessionId | None:
    """Return the session whose tape has the answer for a grant; None if that tape was moved to the archive."""
    rows = conn.fetch(
        "SELECT t.session_id, t.content FROM approvals a JOIN tape t ON t.run_id = a.run_id"
        " WHERE a.principal = :principal AND a.tool = :tool AND a.answered_ms = :granted_ms"
        " AND t.kind = 'approval_resolved'",
        {"principal": grant.principal, "tool": grant.tool, "granted_ms": to_ms(grant.granted_at)},
    )
    for row in rows:
        event = decode(row[1])
        if isinstance(event, ApprovalResolved) and event.grant_id == grant.grant_id:
            return SessionId(row[0])
    return None


def repair(conn: Connection, rows: SessionRows, *, now_ms: int) -> tuple[int, int]:
    """Correct the rows of one session; return how many approval requests and grants were wrong."""
    questions, supplied_grants = list(wrong_approvals(conn, rows)), list(wrong_grants(conn, rows))
    for approval_id, approval in questions:
        approvals.remove(conn, approval_id)
        if approval is not None:
            approvals.insert(conn, approval)
    for grant in supplied_grants:
        matching_grant = grants.stored(conn, grant.grant_id)
        ended = grant.revoked_at or (matching_grant.revoked_at if matching_grant is not None else None)
        grants.remove(conn, grant.grant_id)
        grants.insert(conn, replace(grant, revoked_at=ended or from_ms(now_ms)))
    return len(questions), len(supplied_grants)


def archived_rows(conn: Connection, folder: Path) -> Iterator[SessionRows | None]:
    """Yield the rows of the tapes that were moved below the folder; None for one that cannot be read."""
    for session_id, record in rotated_tapes.all_of(conn).items():
        path = folder / record.file
        try:
            with path.open("rb") as file:
                complete = hashlib.file_digest(file, "sha256").hexdigest() == record.sha256
            with entries_in(path) as (_, entries):
                yield SessionRows(session_id).fold_all(entries) if complete else None
        except (OSError, PalyraError, Unreplayable):
            yield None
