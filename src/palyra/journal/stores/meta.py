"""Facts about the journal itself: its id, the key that signs its anchors."""

import msgspec

from palyra.journal.engines.base import Connection


def get(conn: Connection, name: str) -> str | None:
    """Return a fact, None if it was never set."""
    row = conn.fetch_one("SELECT value FROM meta WHERE name = :name", {"name": name})
    return row[0] if row else None


def set_once(conn: Connection, name: str, value: str) -> str:
    """Set a fact unless it is already set; return its value."""
    conn.execute(
        "INSERT INTO meta (name, value) VALUES (:name, :value) ON CONFLICT DO NOTHING", {"name": name, "value": value}
    )
    held = get(conn, name)
    assert held is not None
    return held


def put(conn: Connection, name: str, value: str) -> None:
    """Set a fact, and replace an earlier value."""
    conn.execute(
        "INSERT INTO meta (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        {"name": name, "value": value},
    )


def journal_ids(conn: Connection) -> tuple[str, ...]:
    """Return every id that the journal has had, the present one last: a restored journal gets a new one."""
    present, history = get(conn, "journal_id"), get(conn, "journal_ids")
    if history is not None:
        return msgspec.json.decode(history, type=tuple[str, ...])
    return (present,) if present is not None else ()


def renew_id(conn: Connection, fresh: str) -> str | None:
    """Give the journal a new id, and keep the earlier ones; return the one it had."""
    earlier = journal_ids(conn)
    put(conn, "journal_ids", msgspec.json.encode((*earlier, fresh)).decode())
    put(conn, "journal_id", fresh)
    if earlier:
        put(conn, "restored_from", earlier[-1])
    return earlier[-1] if earlier else None
