"""Sorts rows by age, even if the clock was ahead once."""

from collections.abc import Mapping

from palyra.core.clock import MAX_AHEAD_MS
from palyra.journal.engines.base import Connection, Row


def latest_first(
    conn: Connection,
    select: str,
    params: Mapping[str, object],
    *,
    by: tuple[str, str],
    limit: int,
    now_ms: int,
    before: tuple[int, str] | None = None,
) -> list[Row]:
    """Return the rows of a query, the latest first, after a position; `by` are the columns of time and id.

    A row with a time in the future was written while the clock was ahead, and its real time is not known. It comes
    last; otherwise it would be the latest session or run for years. `select` ends within its WHERE. Each half is read
    along the index.
    """
    time, name = by
    horizon_ms = now_ms + MAX_AHEAD_MS
    rows: list[Row] = []
    for half in (f"{time} <= :horizon_ms", f"{time} > :horizon_ms"):
        is_ahead = half.startswith(f"{time} >")
        if before is not None and before[0] > horizon_ms and not is_ahead:
            continue
        behind = before is not None and (before[0] > horizon_ms) == is_ahead
        location = f" AND ({time}, {name}) < (:before_ms, :before_id)" if behind else ""
        at = {"before_ms": before[0], "before_id": before[1]} if behind and before is not None else {}
        rows += conn.fetch(
            f"{select} AND {half}{location} ORDER BY {time} DESC, {name} DESC LIMIT :limit",
            {**params, **at, "horizon_ms": horizon_ms, "limit": limit - len(rows)},
        )
        if len(rows) >= limit:
            break
    return rows
