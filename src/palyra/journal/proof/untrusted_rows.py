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
    names = [key] if owner is None else [key, owner[0]]
    while True:
        conditions = [f"{owner[0]} = :owner"] if owner else []
        conditions += [f"{key} > :after"] if after is not None else []
        location = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        sql = _select(conn, table, (*names, columns), location=location)
        params = ({"owner": owner[1]} if owner else {}) | ({"after": after} if after is not None else {})
        keys: list[object] = []
        for row in _slice(conn, sql, params):
            if isinstance(row, UnreadableRow):
                keys.append(row.key)
                yield row
                continue
            keys.append(row[0])
            text, result = row[1 : 1 + len(names)], row[1 + len(names) :]
            same = text == (row[0], *((owner[1],) if owner else ()))
            yield result if same and all(map(isinstance, result, types)) else UnreadableRow(keys[-1])
        cached = [result for result in keys if result is not None]
        if len(keys) < SLICE or not cached:
            return
        after = cached[-1]


def _select(conn: Connection, table: str, columns: Sequence[str], *, location: str) -> str:
    """Return the query for a slice of rows, each after its key in the index.

    SQLite takes indexed columns from the index and not from the row, unless the row is read by its number.
    """
    key, listed = columns[0], ", ".join(columns)
    slice_of = f"FROM {table}{location} ORDER BY {key} LIMIT {SLICE}"
    if conn.dialect.name != "sqlite":
        return f"SELECT {key} AS place, {listed} {slice_of}"
    return (
        f"SELECT i.place, {listed} FROM (SELECT rowid AS number_of_row, {key} AS place {slice_of}) i"
        f" CROSS JOIN {table} ON {table}.rowid = i.number_of_row ORDER BY i.place"
    )


def session_ids(conn: Connection) -> Iterator[str | UnreadableRow]:
    """Yield the id of every session that has entries, in order."""
    location, after = "", NO_PARAMS
    while True:
        try:
            row = conn.fetch_one(f"SELECT MIN(session_id) FROM tape{location}", after)
        except UnicodeDecodeError:
            row = conn.fetch_one(f"SELECT HEX(MIN(session_id)) FROM tape{location}", after)
            assert row is not None
            yield UnreadableRow(None)
            location, after = " WHERE session_id > CAST(:after AS TEXT)", {"after": bytes.fromhex(row[0])}
            continue
        result = row[0] if row else None
        if result is None:
            return
        yield result if isinstance(result, str) else UnreadableRow(result)
        location, after = " WHERE session_id > :after", {"after": result}


def _slice(conn: Connection, sql: str, params: Params) -> list[Row | UnreadableRow]:
    try:
        return list(conn.fetch(sql, params))
    except UnicodeDecodeError:
        return list(_one_by_one(conn, sql, params))


def _one_by_one(conn: Connection, sql: str, params: Params) -> Iterator[Row | UnreadableRow]:
    for index in range(SLICE):
        part = f"FROM ({sql}) LIMIT 1 OFFSET {index}"
        try:
            row = conn.fetch_one(f"SELECT * {part}", params)
        except UnicodeDecodeError:
            result: Row | None = None
            with suppress(UnicodeDecodeError):
                result = conn.fetch_one(f"SELECT place {part}", params)
            yield UnreadableRow(result[0] if result else None)
            continue
        if row is None:
            return
        yield row
