"""Runs as rows: the status of each, its lease holder, and which runs can be claimed."""

from dataclasses import dataclass
from typing import cast

from palyra.core.clock import from_ms
from palyra.core.ids import AgentId, PrincipalId, RunId, SessionId
from palyra.core.limits import LimitKind
from palyra.core.projection.changes import RUN_COLUMNS, Columns, RunProgress
from palyra.core.run.record import RunRecord
from palyra.core.run.state import RunStatus
from palyra.core.spending.usage import Usage
from palyra.journal.engines.base import Connection, Row
from palyra.journal.stores.age_order import latest_first
from palyra.journal.stores.leases import LENGTH_MS, UNHELD, Lease

_AGE = ("accepted_ms", "run_id")
_COLUMNS = (
    "run_id, session_id, agent_id, status, input, reason, limit_reached, parent_run_id, accepted_seq, last_seq,"
    " accepted_ms, ended_ms, turns, tool_calls, input_tokens, output_tokens, cancel_requested"
)

_NAMES = RUN_COLUMNS.split(", ")
_VALUES = ", ".join(f":{name}" for name in _NAMES)
_EXCLUDED = ", ".join(f"{name} = excluded.{name}" for name in _NAMES)

_PARKED = "ended_ms IS NULL AND reason IS NOT NULL"
"""Only a parked run has a reason without an end."""


@dataclass(frozen=True, slots=True)
class RunMark:
    """What a writer must know of the row before it adds to the run."""

    run_seq: int
    lease: Lease | None
    status: RunStatus


@dataclass(frozen=True, slots=True)
class ActiveRun:
    """A run that has begun and not ended, of any principal."""

    run_id: RunId
    principal: PrincipalId
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class QueueSlot:
    """Where a new run stands in the queue of its session, and its worker. Neither is derived from the tape."""

    position: int
    lease: Lease | None = None
    """The lease of a worker that holds the run from the start."""


def insert(conn: Connection, row: Columns, slot: QueueSlot) -> None:
    """Insert a run that was just accepted."""
    lease = slot.lease
    conn.execute(
        f"INSERT INTO runs ({RUN_COLUMNS}, queue_position, lease_owner, lease_epoch, lease_until_ms)"
        f" VALUES ({_VALUES}, :queue_position, :lease_owner, :lease_epoch, :lease_until_ms)",
        {
            **row,
            "queue_position": slot.position,
            "lease_owner": lease.owner if lease else None,
            "lease_epoch": lease.epoch if lease else 0,
            "lease_until_ms": cast(int, row["accepted_ms"]) + LENGTH_MS if lease else 0,
        },
    )


def put(conn: Connection, row: Columns) -> None:
    """Write the derived columns of a run, for a rebuild. A run that is there keeps its position and its lease."""
    free = ", lease_owner = NULL, lease_until_ms = 0" if not row["ready"] else ""
    conn.execute(
        f"INSERT INTO runs ({RUN_COLUMNS}, queue_position) VALUES ({_VALUES}, :accepted_seq)"
        f" ON CONFLICT (run_id) DO UPDATE SET {_EXCLUDED}{free}",
        row,
    )


def remove(conn: Connection, run_id: RunId) -> None:
    """Delete a run that is on no tape."""
    conn.execute("DELETE FROM runs WHERE run_id = :run_id", {"run_id": run_id})


def rows_of(conn: Connection, session_id: SessionId) -> dict[RunId, Columns]:
    """Return the derived columns of a session's runs."""
    rows = conn.fetch(f"SELECT {RUN_COLUMNS} FROM runs WHERE session_id = :session_id", {"session_id": session_id})
    return {RunId(row[0]): dict(zip(_NAMES, row, strict=True)) for row in rows}


def mark(conn: Connection, run_id: RunId) -> RunMark:
    """Return what is needed to write to the run, and lock its row: no other worker takes it before the unit ends.

    The caller has locked the head of the session.
    """
    row = conn.fetch_one(
        "SELECT run_seq, lease_owner, lease_epoch, status FROM runs WHERE run_id = :run_id" + conn.dialect.for_update,
        {"run_id": run_id},
    )
    assert row is not None
    lease = Lease(run_id, row[1], row[2]) if row[1] is not None else None
    return RunMark(row[0], lease, RunStatus(row[3]))


def is_leased(conn: Connection, run_id: RunId, *, now_ms: int) -> bool:
    """Return whether a worker holds a lease on the run now."""
    row = conn.fetch_one(
        f"SELECT 1 FROM runs WHERE run_id = :run_id AND NOT {UNHELD}", {"run_id": run_id, "now_ms": now_ms}
    )
    return row is not None


def advance(conn: Connection, progress: RunProgress) -> None:
    """Update the row to the state. A run that ended or waits has no lease holder from this commit on."""
    freed = ", lease_owner = NULL, lease_until_ms = 0" if progress.is_idle else ""
    conn.execute(
        "UPDATE runs SET status = :status, run_seq = :run_seq, last_seq = :last_seq, turns = :turns,"
        " tool_calls = :tool_calls, input_tokens = input_tokens + :input_tokens,"
        " output_tokens = output_tokens + :output_tokens, ready = :ready, cancel_requested = :cancel_requested,"
        f" limit_reached = :limit_reached, reason = :reason, ended_ms = :ended_ms{freed} WHERE run_id = :run_id",
        {
            **progress.columns(),
            "run_id": progress.state.run_id,
            "input_tokens": progress.input_tokens,
            "output_tokens": progress.output_tokens,
        },
    )


def park(conn: Connection, run_id: RunId, *, reason: str) -> None:
    """Park a run whose tape cannot be read: no worker claims it until the next start of a daemon."""
    conn.execute(
        "UPDATE runs SET ready = 0, reason = :reason, lease_owner = NULL, lease_until_ms = 0 WHERE run_id = :run_id",
        {"run_id": run_id, "reason": f"parked: {reason}"},
    )


def unpark(conn: Connection) -> None:
    """Unpark every run: a newer version may know the entry, or a backup has replaced it."""
    conn.execute(
        "UPDATE runs SET reason = NULL, ready = CASE WHEN EXISTS"
        " (SELECT 1 FROM sessions s WHERE s.active_run_id = runs.run_id) THEN 1 ELSE 0 END"
        f" WHERE {_PARKED}"
    )


def get(conn: Connection, run_id: RunId, principal: PrincipalId) -> RunRecord | None:
    """Return the principal's run of that id."""
    row = conn.fetch_one(
        f"SELECT {_COLUMNS} FROM runs WHERE run_id = :run_id AND principal = :principal",
        {"run_id": run_id, "principal": principal},
    )
    return _run(row) if row else None


def session_of(conn: Connection, run_id: RunId) -> SessionId | None:
    """Return the session of a run, of any principal."""
    row = conn.fetch_one("SELECT session_id FROM runs WHERE run_id = :run_id", {"run_id": run_id})
    return SessionId(row[0]) if row else None


def is_open(conn: Connection, run_id: RunId) -> bool:
    """Return whether a run has not ended, of any principal."""
    row = conn.fetch_one("SELECT 1 FROM runs WHERE run_id = :run_id AND ended_ms IS NULL", {"run_id": run_id})
    return row is not None


def input_of(conn: Connection, run_id: RunId) -> str | None:
    """Return the first words of the message that started a run, of any principal."""
    row = conn.fetch_one("SELECT input FROM runs WHERE run_id = :run_id", {"run_id": run_id})
    return row[0] if row else None


def latest(conn: Connection, *, now_ms: int) -> RunId | None:
    """Return the run that was accepted last, of any principal."""
    rows = latest_first(conn, "SELECT run_id FROM runs WHERE 1 = 1", {}, by=_AGE, limit=1, now_ms=now_ms)
    return RunId(rows[0][0]) if rows else None


def last_in(conn: Connection, session_id: SessionId, principal: PrincipalId) -> RunRecord | None:
    """Return the last run of a session, by its tape."""
    row = conn.fetch_one(
        f"SELECT {_COLUMNS} FROM runs WHERE session_id = :session_id AND principal = :principal"
        " ORDER BY accepted_seq DESC LIMIT 1",
        {"session_id": session_id, "principal": principal},
    )
    return _run(row) if row else None


def ending_in(conn: Connection, ending: str) -> list[str]:
    """Return the runs whose ids end with these characters, at most two, of any principal."""
    rows = conn.fetch(
        "SELECT run_id FROM runs WHERE SUBSTR(run_id, 27 - :length) = :ending LIMIT 2",
        {"length": len(ending), "ending": ending},
    )
    return [row[0] for row in rows]


def reason_of(conn: Connection, run_id: RunId) -> str | None:
    """Return why a run ended, if it has a reason."""
    row = conn.fetch_one("SELECT reason FROM runs WHERE run_id = :run_id", {"run_id": run_id})
    return row[0] if row else None


def page(
    conn: Connection,
    principal: PrincipalId,
    *,
    session_id: SessionId | None,
    before: tuple[int, str] | None,
    limit: int,
    now_ms: int,
) -> list[RunRecord]:
    """Return the principal's runs, of one session or of all, the latest first."""
    of = " AND session_id = :session_id" if session_id is not None else ""
    rows = latest_first(
        conn,
        f"SELECT {_COLUMNS} FROM runs WHERE principal = :principal{of}",
        {"principal": principal, **({"session_id": session_id} if session_id is not None else {})},
        by=_AGE,
        before=before,
        limit=limit,
        now_ms=now_ms,
    )
    return [_run(row) for row in rows]


def under_way(
    conn: Connection, principal: PrincipalId, *, since_ms: int, until_ms: int, limit: int
) -> list[tuple[RunId, SessionId]]:
    """Return the principal's runs that were active between two times, the latest first."""
    rows = conn.fetch(
        "SELECT run_id, session_id FROM runs WHERE principal = :principal AND accepted_ms <= :until_ms"
        " AND (ended_ms IS NULL OR ended_ms >= :since_ms) ORDER BY accepted_ms DESC, run_id DESC LIMIT :limit",
        {"principal": principal, "since_ms": since_ms, "until_ms": until_ms, "limit": limit},
    )
    return [(RunId(row[0]), SessionId(row[1])) for row in rows]


def open_in(conn: Connection, session_id: SessionId) -> list[tuple[RunId, bool]]:
    """Return the session's runs that have not ended, the next in turn first, and whether each has started.

    One that was parked in the queue has lost its turn.
    """
    rows = conn.fetch(
        "SELECT r.run_id, s.active_run_id FROM runs r JOIN sessions s ON s.session_id = r.session_id"
        " WHERE r.session_id = :session_id AND r.ended_ms IS NULL"
        " AND (r.reason IS NULL OR r.run_id = s.active_run_id) ORDER BY r.queue_position",
        {"session_id": session_id},
    )
    return [(RunId(row[0]), row[0] == row[1]) for row in rows]


def active(conn: Connection) -> list[ActiveRun]:
    """Return the runs of all principals that are active in their sessions: executing, waiting, or claimable."""
    rows = conn.fetch(
        "SELECT r.run_id, r.principal, r.cancel_requested FROM runs r"
        " JOIN sessions s ON s.session_id = r.session_id AND s.active_run_id = r.run_id"
        " WHERE r.ended_ms IS NULL ORDER BY r.accepted_ms, r.run_id"
    )
    return [ActiveRun(RunId(row[0]), PrincipalId(row[1]), bool(row[2])) for row in rows]


def held(conn: Connection) -> list[tuple[SessionId, PrincipalId]]:
    """Return the sessions that have queued runs but no active one, and their principals."""
    rows = conn.fetch(
        "SELECT DISTINCT r.session_id, r.principal FROM runs r JOIN sessions s ON s.session_id = r.session_id"
        " WHERE r.ended_ms IS NULL AND s.active_run_id IS NULL"
    )
    return [(SessionId(row[0]), PrincipalId(row[1])) for row in rows]


def open_of_agent(conn: Connection, agent_id: AgentId, principal: PrincipalId) -> bool:
    """Return whether an agent of a principal has runs that have not ended."""
    row = conn.fetch_one(
        "SELECT 1 FROM runs WHERE principal = :principal AND agent_id = :agent_id AND ended_ms IS NULL LIMIT 1",
        {"principal": principal, "agent_id": agent_id},
    )
    return row is not None


def open_of_principal(conn: Connection, principal: PrincipalId, *, limit: int) -> int:
    """Count the runs of a principal that have not ended, up to a limit."""
    row = conn.fetch_one(
        "SELECT COUNT(*) FROM (SELECT 1 FROM runs WHERE principal = :principal AND ended_ms IS NULL LIMIT :limit) AS o",
        {"principal": principal, "limit": limit},
    )
    assert row is not None
    return int(row[0])


def cancelled_of(conn: Connection, owner: str) -> list[RunId]:
    """Return the runs of a worker for which a cancellation was requested."""
    rows = conn.fetch(
        "SELECT run_id FROM runs WHERE ready = 1 AND cancel_requested = 1 AND lease_owner = :owner", {"owner": owner}
    )
    return [RunId(row[0]) for row in rows]


def counts(conn: Connection) -> dict[str, int]:
    """Return how many runs are unfinished, by status; parked ones count as `parked` only."""
    rows = conn.fetch(
        "SELECT CASE WHEN reason IS NULL THEN status ELSE 'parked' END, COUNT(*) FROM runs"
        " WHERE ended_ms IS NULL GROUP BY 1"
    )
    return {row[0]: row[1] for row in rows}


def _run(row: Row) -> RunRecord:
    return RunRecord(
        run_id=RunId(row[0]),
        session_id=SessionId(row[1]),
        agent_id=AgentId(row[2]),
        status=RunStatus(row[3]),
        input=row[4],
        reason=row[5],
        limit_reached=LimitKind(row[6]) if row[6] else None,
        parent_run_id=row[7],
        accepted_seq=row[8],
        last_seq=row[9],
        accepted_at=from_ms(row[10]),
        ended_at=None if row[11] is None else from_ms(row[11]),
        turns=row[12],
        tool_calls=row[13],
        usage=Usage(input_tokens=row[14], output_tokens=row[15]),
        cancel_requested=bool(row[16]),
    )
