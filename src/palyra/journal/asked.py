"""Questions and grants as the tapes add them up, held against their rows.

That a grant was taken back is on the tape that has the answer, and its row must say so. It is on none if it was done
before such entries were written, or after that tape was moved to the archive: a row that is right otherwise keeps it.
One that has to be made anew comes back as taken back, since nobody knows whether it had been: what was allowed with it
is asked about again. A rebuild never gives a right that somebody may have ended.
"""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from palyra.core.approval import Approval, Grant
from palyra.core.clock import from_ms, to_ms
from palyra.core.errors import PalyraError
from palyra.core.events import (
    ApprovalRequested,
    ApprovalResolved,
    Decision,
    Entry,
    GrantRevoked,
    RunAccepted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    TapeEvent,
    decode,
)
from palyra.core.ids import RunId, SessionId
from palyra.core.machine import begin
from palyra.core.run import RunState
from palyra.journal import approvals, grants, migrate, rotated
from palyra.journal.engine import Connection
from palyra.journal.exported import entries_in

SLICE = 500

_LOOKED_AT = frozenset(
    {"run_accepted", "approval_requested", "approval_resolved", "run_completed", "run_failed", "run_cancelled"}
)


class Asked:
    """The questions of one session, and the grants that answers left behind."""

    def __init__(self, session_id: SessionId) -> None:
        self.session_id = session_id
        self.questions: dict[str, Approval] = {}
        self.grants: dict[str, Grant] = {}
        self._runs: dict[RunId, RunState] = {}
        """Of the runs that have not ended: whose they are."""
        self._open: dict[RunId, set[str]] = {}
        """The questions that they wait for."""

    def follow(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Pass the entries of the session's tape on, and take in what they say."""
        for entry in entries:
            yield entry
            self.take(entry)

    def take(self, entry: Entry) -> None:
        """Take the next entry in."""
        if entry.kind == "grant_revoked":
            self._end(entry.event)
        if entry.kind not in _LOOKED_AT or entry.run_id is None:
            return
        event = entry.event
        match event:
            case RunAccepted():
                self._runs[entry.run_id] = begin(entry.run_id, self.session_id, event)
                if event.reissue is not None and event.reissue.approval_id in self.questions:
                    again = self.questions[event.reissue.approval_id]
                    self.questions[again.approval_id] = replace(again, reissued_as=entry.run_id)
            case ApprovalRequested():
                self.questions[event.approval_id] = approvals.question(self._runs[entry.run_id], event)
                self._open.setdefault(entry.run_id, set()).add(event.approval_id)
            case ApprovalResolved() if event.approval_id in self._open.get(entry.run_id, ()):
                self._open[entry.run_id].remove(event.approval_id)
                self._settle(event)
            case RunCompleted() | RunFailed() | RunCancelled():
                self._withdraw(entry.run_id, event)
                del self._runs[entry.run_id]
            case _:
                pass

    def _settle(self, event: ApprovalResolved) -> None:
        asked = self.questions[event.approval_id]
        self.questions[event.approval_id] = replace(
            asked,
            decision=event.decision.value,
            scope=event.scope,
            answered_at=event.at,
            answered_by=event.actor,
            answer=event.reason,
        )
        if event.grant_id is not None:
            self.grants[event.grant_id] = grants.allowance(asked, event, event.grant_id)

    def _end(self, event: TapeEvent) -> None:
        if isinstance(event, GrantRevoked) and event.grant_id in self.grants:
            self.grants[event.grant_id] = replace(self.grants[event.grant_id], revoked_at=event.at)

    def _withdraw(self, run_id: RunId, event: RunCompleted | RunFailed | RunCancelled) -> None:
        for approval_id in self._open.pop(run_id, ()):
            self.questions[approval_id] = replace(
                self.questions[approval_id],
                decision=Decision.WITHDRAWN.value,
                answered_at=event.at,
                answered_by="system",
                answer=approvals.RUN_ENDED,
            )


def has_rows(conn: Connection) -> bool:
    """Tell whether the journal has these rows at all; one of an early schema does not."""
    return migrate.current(conn) >= approvals.FIRST_SCHEMA


def wrong_questions(conn: Connection, asked: Asked) -> Iterator[tuple[str, Approval | None]]:
    """Yield the questions whose rows are missing, wrong or too many, each with what it should be."""
    rows = approvals.of_session(conn, asked.session_id)
    for approval_id, wanted in asked.questions.items():
        if wanted.call_id and not wanted.tool and approval_id not in rows:
            continue  # asked before there were rows
        if rows.pop(approval_id, None) != approvals.as_stored(wanted):
            yield approval_id, wanted
    for approval_id in rows:
        yield approval_id, None


def wrong_grants(conn: Connection, asked: Asked) -> Iterator[Grant]:
    """Yield the grants of answers in the session whose rows are missing or wrong, each as it should be."""
    for grant_id, wanted in asked.grants.items():
        found, stored = grants.stored(conn, grant_id), grants.as_stored(wanted)
        if (
            found is None
            or replace(found, revoked_at=stored.revoked_at) != stored
            or stored.revoked_at not in (None, found.revoked_at)
        ):
            yield wanted


def lost_questions(conn: Connection) -> list[tuple[str, SessionId]]:
    """Return questions of sessions that never were."""
    rows = conn.fetch(
        "SELECT approval_id, session_id FROM approvals a"
        " WHERE NOT EXISTS (SELECT 1 FROM heads h WHERE h.session_id = a.session_id) ORDER BY approval_id"
    )
    return [(row[0], SessionId(row[1])) for row in rows]


def strange_grants(conn: Connection, folder: Path) -> set[str]:
    """Return grants that no answer has left; none if a tape of the archive, below the folder, can not be read."""
    left = grants.ids(conn)
    left -= _given(conn) if left else set()
    for _, asked in archived(conn, folder) if left else ():
        if asked is None:
            return set()
        left -= asked.grants.keys()
    return left


def _given(conn: Connection) -> set[str]:
    """Return the ids of the grants that answers on the tapes have left."""
    given: set[str] = set()
    place: tuple[str, int] = "", 0
    while rows := conn.fetch(
        "SELECT session_id, tape_seq, content FROM tape WHERE kind = 'approval_resolved'"
        " AND (session_id, tape_seq) > (:session_id, :tape_seq) ORDER BY session_id, tape_seq LIMIT :slice",
        {"session_id": place[0], "tape_seq": place[1], "slice": SLICE},
    ):
        for row in rows:
            event = decode(row[2])
            if isinstance(event, ApprovalResolved) and event.grant_id is not None:
                given.add(event.grant_id)
        place = rows[-1][0], rows[-1][1]
    return given


def given_in(conn: Connection, grant: Grant) -> SessionId | None:
    """Return the session whose tape has the answer that left a grant; None if that tape was moved to the archive."""
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


def mend(conn: Connection, asked: Asked, *, now_ms: int) -> tuple[int, int]:
    """Set the rows of one session right; return how many questions and grants were wrong."""
    questions, given = list(wrong_questions(conn, asked)), list(wrong_grants(conn, asked))
    for approval_id, wanted in questions:
        approvals.remove(conn, approval_id)
        if wanted is not None:
            approvals.insert(conn, wanted)
    for grant in given:
        found = grants.stored(conn, grant.grant_id)
        ended = grant.revoked_at or (found.revoked_at if found is not None else None)
        grants.remove(conn, grant.grant_id)
        grants.insert(conn, replace(grant, revoked_at=ended or from_ms(now_ms)))
    return len(questions), len(given)


def archived(conn: Connection, folder: Path) -> Iterator[tuple[SessionId, Asked | None]]:
    """Yield what was asked in sessions whose tapes were moved to files below the folder; None if that can't be told."""
    for session_id, record in rotated.all_of(conn).items():
        path = folder / record.file
        try:
            with path.open("rb") as file:
                whole = hashlib.file_digest(file, "sha256").hexdigest() == record.sha256
            yield session_id, _read(path, session_id) if whole else None
        except (OSError, PalyraError, msgspec.DecodeError, KeyError):
            yield session_id, None


def _read(path: Path, session_id: SessionId) -> Asked:
    asked = Asked(session_id)
    with entries_in(path) as (_, entries):
        for entry in entries:
            asked.take(entry)
    return asked
