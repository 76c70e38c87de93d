"""Reads rows that another program may have written: whatever a column holds, the walk continues.

SQLite stores any value in any column, even bytes that are not text, and then its driver fails the whole query. A row
without the types that we write is returned as `UnreadableRow`, in its position among the others.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from palyra.journal.engines.base import NO_PARAMS, Connection, Params, Row

SLICE = 500

Types = tuple[type | tuple[type, ...], ...]


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A row that Palyra has not written; its key, unless that cannot be read either."""

    key: object


def read_rows(
    conn: Connection,
    table: str,
    columns: str,
    *,
    types: Types,
    owner: tuple[str, str] | None = None,
    after: object = None,
) -> Iterator[Row | UnreadableRow]:
    """Yield rows in the order of their first column, after a key, read in slices; `owner` is a column and its value."""
    key = columns.partition(",")[0]
    # The index says whose rows they are, and their order; the values in the row itself are compared with it.
    wanted = [key] if owner is None else [key, owner[0]]
    while True:
        conditions = [f"{owner[0]} = :owner"] if owner else []
        conditions += [f"{key} > :after"] if after is not None else []
        place = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        sql = _select(conn, table, (*wanted, columns), place=place)
        params = ({"owner": owner[1]} if owner else {}) | ({"after": after} if after is not None else {})
        keys: list[object] = []
        for row in _slice(conn, sql, params):
            if isinstance(row, UnreadableRow):
                keys.append(row.key)
                yield row
                continue
            keys.append(row[0])
            said, found = row[1 : 1 + len(wanted)], row[1 + len(wanted) :]
            same = said == (row[0], *((owner[1],) if owner else ()))
            yield found if same and all(map(isinstance, found, types)) else UnreadableRow(keys[-1])
        known = [found for found in keys if found is not None]
        if len(keys) < SLICE or not known:
            return
        after = known[-1]


def _select(conn: Connection, table: str, columns: Sequence[str], *, place: str) -> str:
    """Return the query for a slice of rows, each after its key in the index.

    SQLite takes indexed columns from the index and not from the row, unless the row is read by its number.
    """
    key, listed = columns[0], ", ".join(columns)
    slice_of = f"FROM {table}{place} ORDER BY {key} LIMIT {SLICE}"
    if conn.dialect.name != "sqlite":
        return f"SELECT {key} AS place, {listed} {slice_of}"
    return (
        f"SELECT i.place, {listed} FROM (SELECT rowid AS number_of_row, {key} AS place {slice_of}) i"
        f" CROSS JOIN {table} ON {table}.rowid = i.number_of_row ORDER BY i.place"
    )


def session_ids(conn: Connection) -> Iterator[str | UnreadableRow]:
    """Yield the id of every session that has entries, in order."""
    place, after = "", NO_PARAMS
    while True:
        try:
            row = conn.fetch_one(f"SELECT MIN(session_id) FROM tape{place}", after)
        except UnicodeDecodeError:
            row = conn.fetch_one(f"SELECT HEX(MIN(session_id)) FROM tape{place}", after)
            assert row is not None
            yield UnreadableRow(None)
            place, after = " WHERE session_id > CAST(:after AS TEXT)", {"after": bytes.fromhex(row[0])}
            continue
        found = row[0] if row else None
        if found is None:
            return
        yield found if isinstance(found, str) else UnreadableRow(found)
        place, after = " WHERE session_id > :after", {"after": found}


def _slice(conn: Connection, sql: str, params: Params) -> list[Row | UnreadableRow]:
    try:
        return list(conn.fetch(sql, params))
    except UnicodeDecodeError:
        return list(_one_by_one(conn, sql, params))


def _one_by_one(conn: Connection, sql: str, params: Params) -> Iterator[Row | UnreadableRow]:
    for place in range(SLICE):
        part = f"FROM ({sql}) LIMIT 1 OFFSET {place}"
        try:
            row = conn.fetch_one(f"SELECT * {part}", params)
        except UnicodeDecodeError:
            found: Row | None = None
            with suppress(UnicodeDecodeError):
                found = conn.fetch_one(f"SELECT place {part}", params)
            yield UnreadableRow(found[0] if found else None)
            continue
        if row is None:
            return
        yield row
