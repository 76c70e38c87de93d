"""Sessions as rows: the sums of their tapes."""

from dataclasses import dataclass
from datetime import datetime

from palyra.core.clock import from_ms, to_ms
from palyra.core.ids import AgentId, PrincipalId, RunId, SessionId
from palyra.core.session import Session
from palyra.journal.engines.base import Connection, Row
from palyra.journal.stores.age_order import latest_first

_COLUMNS = (
    "session_id, principal, agent_id, key, label, title, created_ms, updated_ms, archived_ms, reset_seq,"
    " active_run_id, parent_session_id"
)


@dataclass(frozen=True, slots=True)
class SessionActivity:
    """The run that is active in a session, None for no run."""

    run_id: RunId | None


def insert(conn: Connection, session: Session) -> bool:
    """Insert a new session; False if its key or label was taken at the same moment."""
    row = conn.fetch_one(
        f"INSERT INTO sessions ({_COLUMNS}) VALUES (:session_id, :principal, :agent_id, :key, :label, :title,"
        " :created_ms, :updated_ms, NULL, 0, NULL, :parent_session_id) ON CONFLICT DO NOTHING RETURNING session_id",
        {
            "session_id": session.session_id,
            "principal": session.principal,
            "agent_id": session.agent_id,
            "key": session.key,
            "label": session.label,
            "title": session.title,
            "created_ms": to_ms(session.created_at),
            "updated_ms": to_ms(session.updated_at),
            "parent_session_id": session.parent_session_id,
        },
    )
    return row is not None


def get(conn: Connection, session_id: SessionId, principal: PrincipalId) -> Session | None:
    """Return the principal's session of that id."""
    return _one(conn, "session_id = :name", session_id, principal)


def by_key(conn: Connection, key: str, principal: PrincipalId) -> Session | None:
    """Return the principal's session of that key."""
    return _one(conn, "key = :name", key, principal)


def by_label(conn: Connection, label: str, principal: PrincipalId) -> Session | None:
    """Return the principal's session of that label that is not archived."""
    return _one(conn, "label = :name AND archived_ms IS NULL", label, principal)


def page(
    conn: Connection,
    principal: PrincipalId,
    *,
    archived: bool,
    before: tuple[int, str] | None,
    limit: int,
    now_ms: int,
) -> list[Session]:
    """Return the principal's own conversations, the latest first, without sessions of child runs."""
    state = "archived_ms IS NOT NULL" if archived else "archived_ms IS NULL"
    rows = latest_first(
        conn,
        f"SELECT {_COLUMNS} FROM sessions WHERE principal = :principal AND {state} AND parent_session_id IS NULL",
        {"principal": principal},
        by=("updated_ms", "session_id"),
        before=before,
        limit=limit,
        now_ms=now_ms,
    )
    return [_session(row) for row in rows]


def latest(conn: Connection, *, now_ms: int) -> SessionId | None:
    """Return the session that was used last, of any principal, archived or not."""
    by = ("updated_ms", "session_id")
    rows = latest_first(conn, "SELECT session_id FROM sessions WHERE 1 = 1", {}, by=by, limit=1, now_ms=now_ms)
    return SessionId(rows[0][0]) if rows else None


def newest_ms(conn: Connection) -> int:
    """Return when a session was last used, by the clock of that time; 0 if there is none."""
    row = conn.fetch_one("SELECT MAX(updated_ms) FROM sessions")
    return row[0] or 0 if row else 0


def ending_in(conn: Connection, ending: str) -> list[str]:
    """Return the sessions whose ids end with these characters, at most two, of any principal."""
    rows = conn.fetch(
        "SELECT session_id FROM sessions WHERE SUBSTR(session_id, 27 - :length) = :ending LIMIT 2",
        {"length": len(ending), "ending": ending},
    )
    return [row[0] for row in rows]


def set_title(conn: Connection, session_id: SessionId, title: str, *, at: datetime) -> None:
    """Change the title."""
    conn.execute(
        "UPDATE sessions SET title = :title, updated_ms = :at_ms WHERE session_id = :session_id",
        {"session_id": session_id, "title": title, "at_ms": to_ms(at)},
    )


def set_agent(conn: Connection, session_id: SessionId, agent_id: AgentId | None, *, at: datetime) -> None:
    """Bind an agent to the session, or none."""
    conn.execute(
        "UPDATE sessions SET agent_id = :agent_id, updated_ms = :at_ms WHERE session_id = :session_id",
        {"session_id": session_id, "agent_id": agent_id, "at_ms": to_ms(at)},
    )


def set_archived(conn: Connection, session_id: SessionId, *, at: datetime, archived: bool, free_key: bool) -> None:
    """Archive the session or restore it; freeing the key lets another session use it."""
    conn.execute(
        "UPDATE sessions SET archived_ms = :archived_ms, updated_ms = :at_ms WHERE session_id = :session_id",
        {"session_id": session_id, "archived_ms": to_ms(at) if archived else None, "at_ms": to_ms(at)},
    )
    if free_key:
        conn.execute("UPDATE sessions SET key = NULL WHERE session_id = :session_id", {"session_id": session_id})


def set_reset(conn: Connection, session_id: SessionId, *, at: datetime, seq: int) -> None:
    """Set the boundary before which messages are not context any more."""
    conn.execute(
        "UPDATE sessions SET reset_seq = :seq, reset_count = message_count, updated_ms = :at_ms"
        " WHERE session_id = :session_id",
        {"session_id": session_id, "seq": seq, "at_ms": to_ms(at)},
    )


def touch(
    conn: Connection, session_id: SessionId, *, at_ms: int, active: SessionActivity | None, messages: int
) -> None:
    """Record how many messages were added, and which run is active now, if that changed."""
    params: dict[str, object] = {"session_id": session_id, "at_ms": at_ms, "messages": messages}
    change = ""
    if active is not None:
        change = ", active_run_id = :active"
        params["active"] = active.run_id
    conn.execute(
        f"UPDATE sessions SET updated_ms = :at_ms, message_count = message_count + :messages{change}"
        " WHERE session_id = :session_id",
        params,
    )


def titled(conn: Connection, session_id: SessionId) -> bool:
    """Return whether the session has a title."""
    return title_of(conn, session_id) is not None


def title_of(conn: Connection, session_id: SessionId) -> str | None:
    """Return the title of a session, of any principal; None if it has none."""
    row = conn.fetch_one("SELECT title FROM sessions WHERE session_id = :session_id", {"session_id": session_id})
    return row[0] if row else None


def scope(conn: Connection, session_id: SessionId) -> tuple[int, int]:
    """Return the reset boundary and how many messages follow it."""
    row = conn.fetch_one(
        "SELECT reset_seq, message_count - reset_count FROM sessions WHERE session_id = :session_id",
        {"session_id": session_id},
    )
    assert row is not None
    return row[0], row[1]


def _one(conn: Connection, condition: str, name: str, principal: PrincipalId) -> Session | None:
    row = conn.fetch_one(
        f"SELECT {_COLUMNS} FROM sessions WHERE principal = :principal AND {condition}",
        {"name": name, "principal": principal},
    )
    return _session(row) if row else None


def _session(row: Row) -> Session:
    return Session(
        session_id=SessionId(row[0]),
        principal=PrincipalId(row[1]),
        agent_id=row[2],
        key=row[3],
        label=row[4],
        title=row[5],
        created_at=from_ms(row[6]),
        updated_at=from_ms(row[7]),
        archived_at=None if row[8] is None else from_ms(row[8]),
        reset_seq=row[9],
        active_run_id=row[10],
        parent_session_id=row[11],
    )
