"""Sessions as rows: the sums of their tapes."""

from palyra.core.ids import PrincipalId, SessionId
from palyra.core.projection.changes import SESSION_COLUMNS, ActiveRunChanged, Columns, session_row
from palyra.core.session import Session
from palyra.journal.engines.base import Connection
from palyra.journal.row_mapping import RowMapping
from palyra.journal.stores.age_order import latest_first

_ROWS = RowMapping(Session, "sessions")


def insert(conn: Connection, session: Session) -> bool:
    """Insert a new session; False if its key or label was taken at the same moment."""
    columns = session_row(session)
    row = conn.fetch_one(
        f"INSERT INTO sessions (session_id, updated_ms, {', '.join(columns)})"
        f" VALUES (:session_id, :created_ms, {', '.join(f':{name}' for name in columns)})"
        " ON CONFLICT DO NOTHING RETURNING session_id",
        {"session_id": session.session_id, **columns},
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
        f"{_ROWS.select} WHERE principal = :principal AND {state} AND parent_session_id IS NULL",
        {"principal": principal},
        by=("updated_ms", "session_id"),
        before=before,
        limit=limit,
        now_ms=now_ms,
    )
    return [_ROWS.read(row) for row in rows]


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


def change(conn: Connection, session_id: SessionId, columns: Columns, *, at_ms: int) -> None:
    """Change columns of the session's row."""
    put(conn, session_id, {**columns, "updated_ms": at_ms})


def put(conn: Connection, session_id: SessionId, columns: Columns) -> None:
    """Write columns of the session's row, and nothing else."""
    changes = ", ".join(f"{name} = :{name}" for name in columns)
    conn.execute(f"UPDATE sessions SET {changes} WHERE session_id = :session_id", {"session_id": session_id, **columns})


def release_names(conn: Connection, session_id: SessionId, columns: Columns) -> None:
    """Take the key and the label of a session away from others, for a rebuild: by its tape they are this session's."""
    for name, condition in (("key", ""), ("label", " AND archived_ms IS NULL")):
        if columns.get(name) is not None:
            conn.execute(
                f"UPDATE sessions SET {name} = NULL WHERE principal = :principal AND {name} = :{name}{condition}"
                " AND session_id <> :session_id",
                {"session_id": session_id, "principal": columns["principal"], name: columns[name]},
            )


def row_of(conn: Connection, session_id: SessionId) -> Columns | None:
    """Return the derived columns of a session."""
    row = conn.fetch_one(
        f"SELECT {SESSION_COLUMNS} FROM sessions WHERE session_id = :session_id", {"session_id": session_id}
    )
    return dict(zip(SESSION_COLUMNS.split(", "), row, strict=True)) if row is not None else None


def reset(conn: Connection, session_id: SessionId, *, at_ms: int, seq: int) -> None:
    """Set the boundary before which messages are not context any more."""
    conn.execute(
        "UPDATE sessions SET reset_seq = :seq, reset_count = message_count, updated_ms = :at_ms"
        " WHERE session_id = :session_id",
        {"session_id": session_id, "seq": seq, "at_ms": at_ms},
    )


def touch(
    conn: Connection, session_id: SessionId, *, at_ms: int, active: ActiveRunChanged | None, messages: int
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
        f"{_ROWS.select} WHERE principal = :principal AND {condition}",
        {"name": name, "principal": principal},
    )
    return _ROWS.read(row) if row else None
