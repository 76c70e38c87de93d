"""Rows written with nothing of ours in between: what a database can do for callers that wait for their own row."""

import asyncio
import queue
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Protocol

import apsw
import psycopg

from palyra.journal import migrate
from palyra.journal.engines.postgres import PostgresConnection, connect
from palyra.journal.engines.postgres_engine import WRITERS
from palyra.journal.engines.sqlite import SqliteConnection, open_for_writing
from palyra.journal.engines.sqlite_engine import MAX_GROUP_UNITS
from tests.bench.ground import Ground
from tests.bench.journal import Commits
from tests.support.postgres import new_schema

CALLERS = 100
ENTRY_BYTES = 300

_SESSIONS = [f"{caller:026}" for caller in range(CALLERS)]
_CONTENT, _SALT, _HASH = "x" * ENTRY_BYTES, "0" * 32, "0" * 64

TapeRow = tuple[str, int, str, int, str, int, str, str, str]

_COLUMNS = "session_id, tape_seq, run_id, run_seq, kind, at_ms, content, salt, hash"
INSERT = f"INSERT INTO tape ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
LOCK = "SELECT tape_seq, hash FROM heads WHERE session_id = ?"
MOVE = "UPDATE heads SET tape_seq = ?, hash = ? WHERE session_id = ?"
BEGIN_HEAD = "INSERT INTO heads (session_id, tape_seq, hash) VALUES (?, 0, '')"


class RawWriter(Protocol):
    """Writes rows, and counts its commits."""

    commits: Commits

    def write(self, row: TapeRow) -> "asyncio.Future[None]": ...


def row(caller: int, seq: int) -> TapeRow:
    """Return a row as large as one of ours, of that caller's session."""
    session_id = _SESSIONS[caller]
    return (session_id, seq, session_id, seq, "model_text", 1_700_000_000_000, _CONTENT, _SALT, _HASH)


@asynccontextmanager
async def raw_writer(ground: Ground, *, heads: bool) -> AsyncIterator[RawWriter]:
    """Open an empty database with our schema, and what writes rows there, with or without a head for each caller."""
    if ground.server is not None:
        with _postgres_schema(ground.server) as (url, _):
            pool = PostgresRaw(url, _unit_on_postgres if heads else _row_on_postgres)
            yield pool
            pool.close()
        return
    with _sqlite_file() as raw:
        writer = SqliteRaw(raw, _units if heads else _rows)
        yield writer
        writer.close()


def direct_rows_per_s(ground: Ground, *, rows: int, grouped: int) -> float:
    """Return how fast a plain loop writes, with so many rows in a commit."""
    batches = [[row(seq % CALLERS, seq) for seq in range(start, start + grouped)] for start in range(0, rows, grouped)]
    with _direct(ground) as put:
        began = perf_counter()
        for batch in batches:
            put(batch)
        return grouped * len(batches) / (perf_counter() - began)


@contextmanager
def _direct(ground: Ground) -> Iterator[Callable[[list[TapeRow]], None]]:
    """Yield what writes a batch of rows in a commit of its own."""
    if ground.server is not None:
        with _postgres_schema(ground.server) as (_, server):

            def put_to_server(batch: list[TapeRow]) -> None:
                with server.transaction(), server.cursor() as cursor:
                    cursor.executemany(_spelt(INSERT), batch)

            yield put_to_server
        return
    with _sqlite_file() as raw:

        def put(batch: list[TapeRow]) -> None:
            raw.execute("BEGIN IMMEDIATE")
            _rows(raw, batch)
            raw.execute("COMMIT")

        yield put


class SqliteRaw:
    """One thread that commits whatever waits."""

    def __init__(self, raw: apsw.Connection, put: Callable[[apsw.Connection, Sequence[TapeRow]], None]) -> None:
        self._raw = raw
        self._put = put
        self._loop = asyncio.get_running_loop()
        self._waiting: queue.SimpleQueue[tuple[TapeRow, asyncio.Future[None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_for_ever, daemon=True)
        self._thread.start()
        self.commits = Commits()

    def write(self, row: TapeRow) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.put((row, future))
        return future

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join()

    def _write_for_ever(self) -> None:
        while (item := self._waiting.get()) is not None:
            group = [item]
            while len(group) < MAX_GROUP_UNITS and not self._waiting.empty():
                further = self._waiting.get()
                assert further is not None, "closed while somebody writes"
                group.append(further)
            self._raw.execute("BEGIN IMMEDIATE")
            self._put(self._raw, [row for row, _ in group])
            self._raw.execute("COMMIT")
            self.commits.add()
            self._loop.call_soon_threadsafe(_settle, [future for _, future in group])


class PostgresRaw:
    """As many connections as our engine has; what a caller writes is a commit."""

    def __init__(self, url: str, put: "Callable[[psycopg.Connection, TapeRow], None]") -> None:
        self._url = url
        self._put = put
        self._loop = asyncio.get_running_loop()
        self._local = threading.local()
        self._opened: list[psycopg.Connection] = []
        self._threads = ThreadPoolExecutor(WRITERS)
        self.commits = Commits()

    def write(self, row: TapeRow) -> "asyncio.Future[None]":
        self.commits.add()
        return self._loop.run_in_executor(self._threads, self._write, row)

    def close(self) -> None:
        self._threads.shutdown()
        for raw in self._opened:
            raw.close()

    def _write(self, row: TapeRow) -> None:
        raw: psycopg.Connection | None = getattr(self._local, "raw", None)
        if raw is None:
            raw = self._local.raw = connect(self._url)
            self._opened.append(raw)
        self._put(raw, row)


def _rows(raw: apsw.Connection, rows: Sequence[TapeRow]) -> None:
    raw.executemany(INSERT, rows)


def _units(raw: apsw.Connection, rows: Sequence[TapeRow]) -> None:
    for row in rows:
        raw.execute("SAVEPOINT unit")
        raw.execute(LOCK, row[:1]).fetchall()
        raw.execute(INSERT, row)
        raw.execute(MOVE, (row[1], row[8], row[0]))
        raw.execute("RELEASE unit")


def _row_on_postgres(raw: psycopg.Connection, row: TapeRow) -> None:
    raw.execute(_spelt(INSERT), row)


def _unit_on_postgres(raw: psycopg.Connection, row: TapeRow) -> None:
    with raw.transaction():
        raw.execute(_spelt(LOCK + " FOR UPDATE"), row[:1]).fetchall()
        raw.execute(_spelt(INSERT), row)
        raw.execute(_spelt(MOVE), (row[1], row[8], row[0]))


def _settle(futures: "list[asyncio.Future[None]]") -> None:
    for future in futures:
        future.set_result(None)


@contextmanager
def _sqlite_file() -> Iterator[apsw.Connection]:
    """Open a file with our schema, under the settings that our engine sets."""
    with tempfile.TemporaryDirectory(prefix="palyra-bench-") as name:
        with closing(open_for_writing(Path(name) / "raw.db")) as raw:
            raw.execute("BEGIN")
            migrate.migrate(SqliteConnection(raw), now_ms=0)
            raw.executemany(BEGIN_HEAD, [row(caller, 0)[:1] for caller in range(CALLERS)])
            raw.execute("COMMIT")
            yield raw


@contextmanager
def _postgres_schema(server: str) -> Iterator[tuple[str, psycopg.Connection]]:
    """Make a schema of ours, and say where it is."""
    with closing(connect(url := new_schema(server))) as raw:
        with raw.transaction(), raw.cursor() as cursor:
            migrate.migrate(PostgresConnection(raw), now_ms=0)
            cursor.executemany(_spelt(BEGIN_HEAD), [row(caller, 0)[:1] for caller in range(CALLERS)])
        yield url, raw


def _spelt(sql: str) -> bytes:
    """Return a statement the way psycopg wants it."""
    return sql.replace("?", "%s").encode()
