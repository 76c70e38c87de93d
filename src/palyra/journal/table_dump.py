"""The journal's tables as lines of JSON, for a database that has no file to copy; either engine can load them.

The search index is left out: it is rebuilt from the messages, in the form that the engine needs.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from palyra.core.errors import Conflict, Invalid
from palyra.core.ids import PrincipalId, SessionId
from palyra.journal import migrate
from palyra.journal.engines.base import Connection, Row
from palyra.journal.stores import search

SLICE = 500
SEARCH_TABLE = "message_words"

Value = str | int | None

_encoder = msgspec.json.Encoder()


class TableLine(msgspec.Struct, frozen=True, kw_only=True):
    """Starts a table: the lines after it are its rows, up to the next such line."""

    table: str
    columns: tuple[str, ...]


_decoder: msgspec.json.Decoder[TableLine | tuple[Value, ...]] = msgspec.json.Decoder(TableLine | tuple[Value, ...])

Part = tuple[TableLine, list[tuple[Value, ...]]]


class DumpInvalid(Invalid):
    """The table dump cannot be read: it is truncated, or the file is not a table dump."""


class DumpMismatch(Conflict):
    """The table dump does not match the schema that it names."""


def parts_of(conn: Connection) -> Iterator[Part]:
    """Yield all rows of the snapshot, table by table, in slices."""
    for table in migrate.tables(conn):
        if table != SEARCH_TABLE:
            line = TableLine(table=table, columns=_columns(conn, table))
            yield line, []
            for rows in _slices(conn, line):
                yield line, rows


def write(conn: Connection, out: Callable[[bytes], object]) -> None:
    """Write all rows of the snapshot."""
    for line, rows in parts_of(conn):
        if not rows:
            out(_encoder.encode(line) + b"\n")
        for row in rows:
            out(_encoder.encode(row) + b"\n")


def parts_in(path: Path) -> Iterator[Part]:
    """Yield the parts that were written to a file."""
    line: TableLine | None = None
    rows: list[tuple[Value, ...]] = []
    with path.open("rb") as file:
        for data in file:
            try:
                result = _decoder.decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise DumpInvalid from error
            if isinstance(result, TableLine):
                if line is not None and rows:
                    yield line, rows
                line, rows = result, []
            elif line is None or len(result) != len(line.columns):
                raise DumpInvalid
            else:
                rows.append(result)
                if len(rows) >= SLICE:
                    yield line, rows
                    rows = []
    if line is None:
        raise DumpInvalid
    if rows:
        yield line, rows


def load(conn: Connection, parts: Iterator[Part], *, schema: int, now_ms: int) -> None:
    """Create the tables of a schema in an empty database and fill them, in the caller's unit of work."""
    migrate.migrate(conn, now_ms=now_ms, upto=schema)
    # This table records when each migration ran; the rows to be loaded have the right times.
    conn.execute("DELETE FROM migrations")
    cached_names = {table: set(_columns(conn, table)) for table in migrate.tables(conn) if table != SEARCH_TABLE}
    for line, rows in parts:
        # The names become part of a statement, so they must be names that the schema has.
        if not set(line.columns) <= cached_names.get(line.table, set()):
            raise DumpMismatch
        if rows:
            names = [f"c{target_index}" for target_index in range(len(line.columns))]
            conn.execute_many(
                f"INSERT INTO {line.table} ({', '.join(line.columns)})"
                f" VALUES ({', '.join(f':{name}' for name in names)})",
                [dict(zip(names, row, strict=True)) for row in rows],
            )
    index(conn)


def index(conn: Connection) -> int:
    """Fill the empty search index from the messages; return how many it holds."""
    count = 0
    target_row: Row = ("", 0)
    while rows := conn.fetch(
        "SELECT session_id, tape_seq, principal, text FROM messages"
        " WHERE (session_id, tape_seq) > (:session_id, :tape_seq) AND role <> 'tool' AND text <> ''"
        " ORDER BY session_id, tape_seq LIMIT :slice",
        {"session_id": target_row[0], "tape_seq": target_row[1], "slice": SLICE},
    ):
        for row in rows:
            search.add(conn, SessionId(row[0]), row[1], principal=PrincipalId(row[2]), text=row[3])
        count += len(rows)
        target_row = rows[-1]
    return count


def drop(conn: Connection) -> None:
    """Drop all our tables."""
    for table in reversed(migrate.tables(conn)):
        conn.execute(f"DROP TABLE {table}")


def _columns(conn: Connection, table: str) -> tuple[str, ...]:
    if conn.dialect.name == "sqlite":
        return tuple(row[1] for row in conn.fetch(f"PRAGMA table_info({table})"))
    rows = conn.fetch(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema()"
        " AND table_name = :table_name ORDER BY ordinal_position",
        {"table_name": table},
    )
    return tuple(row[0] for row in rows)


def _slices(conn: Connection, line: TableLine) -> Iterator[list[tuple[Value, ...]]]:
    columns = ", ".join(line.columns)
    if conn.dialect.name == "sqlite":
        after = 0
        while rows := conn.fetch(
            f"SELECT {columns}, rowid FROM {line.table} WHERE rowid > :after ORDER BY rowid LIMIT :slice",
            {"after": after, "slice": SLICE},
        ):
            yield [row[:-1] for row in rows]
            after = rows[-1][-1]
        return
    conn.execute(f"DECLARE dumped NO SCROLL CURSOR FOR SELECT {columns} FROM {line.table}")
    while rows := conn.fetch(f"FETCH {SLICE} FROM dumped"):
        yield rows
    conn.execute("CLOSE dumped")
