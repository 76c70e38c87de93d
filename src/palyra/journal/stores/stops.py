"""Emergency stops as rows: they apply to every daemon of this journal, and survive restarts."""

from collections.abc import Iterable

from palyra.core.ids import PrincipalId
from palyra.core.stop import EmergencyStop
from palyra.journal.engines.base import Connection, WorkAvailable
from palyra.journal.row_mapping import RowMapping

TOPIC = "stops"

_ROWS = RowMapping(EmergencyStop, "stops", renamed={"by": "stopped_by", "at": "stopped_ms"})


def insert(conn: Connection, stop: EmergencyStop) -> None:
    """Insert a stop; it applies from this commit on."""
    conn.execute(f"{_ROWS.insert} ON CONFLICT (stop_id) DO NOTHING", _ROWS.write(stop))
    conn.publish(WorkAvailable(TOPIC))


def in_force(conn: Connection) -> tuple[EmergencyStop, ...]:
    """Return the stops in force, the oldest first."""
    rows = conn.fetch(f"{_ROWS.select} WHERE lifted_ms IS NULL ORDER BY stopped_ms, stop_id")
    return tuple(_ROWS.read(row) for row in rows)


def is_stopped(conn: Connection, principal: PrincipalId) -> bool:
    """Return whether the principal's work is stopped."""
    row = conn.fetch_one(
        "SELECT 1 FROM stops WHERE lifted_ms IS NULL AND (principal IS NULL OR principal = :principal) LIMIT 1",
        {"principal": principal},
    )
    return row is not None


def lift(conn: Connection, stop_ids: Iterable[str], *, by: str, at_ms: int) -> None:
    """Lift these stops."""
    conn.execute_many(
        "UPDATE stops SET lifted_ms = :at_ms, lifted_by = :by WHERE stop_id = :stop_id AND lifted_ms IS NULL",
        [{"stop_id": stop_id, "by": by, "at_ms": at_ms} for stop_id in stop_ids],
    )
    conn.publish(WorkAvailable(TOPIC))
