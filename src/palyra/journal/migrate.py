"""Migrates the database from any earlier schema to the one that this version needs: forward only, under a lock."""

import re
from dataclasses import dataclass
from pathlib import Path

from palyra.core.errors import Conflict
from palyra.journal.engines.base import Connection

FOLDER = Path(__file__).parent / "migrations"

_NAME = re.compile(r"(?P<number>\d{4})_(?P<name>\w+?)(\.(?P<dialect>sqlite|postgres))?\.sql")
_TEXT = re.compile(r"\bTEXT\b")
_TABLE = re.compile(r"\bCREATE (?:VIRTUAL )?TABLE (\w+)")
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)


class SchemaVersionUnsupported(Conflict):
    """A newer version of Palyra wrote the journal. Nothing was changed. Start that version, or a newer one."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered migration."""

    number: int
    name: str
    path: Path


def steps(dialect: str) -> tuple[Migration, ...]:
    """Return the migrations for a dialect, in order."""
    result = {}
    for path in sorted(FOLDER.glob("*.sql")):
        match = _NAME.fullmatch(path.name)
        assert match, f"{path.name} is not named like a migration"
        if match["dialect"] in (None, dialect):
            number = int(match["number"])
            assert number not in result, f"two migrations have the number {number}"
            result[number] = Migration(number, match["name"], path)
    return tuple(result[number] for number in sorted(result))


def current(conn: Connection) -> int:
    """Return the number of the last migration of the database, 0 for an empty one."""
    if not _has_tables(conn):
        return 0
    row = conn.fetch_one("SELECT MAX(number) FROM migrations")
    return int(row[0]) if row and row[0] is not None else 0


def missing(conn: Connection) -> list[Migration]:
    """Return the migrations that the database does not have yet."""
    at = current(conn)
    return [step for step in steps(conn.dialect.name) if step.number > at]


def tables(conn: Connection) -> list[str]:
    """Return our tables in the database, in the order in which the migrations create them."""
    named = ["migrations"]
    for step in steps(conn.dialect.name):
        named += _TABLE.findall(_COMMENT.sub("", step.path.read_text()))
    if conn.dialect.name == "sqlite":
        rows = conn.fetch("SELECT name FROM sqlite_master WHERE type = 'table'")
    else:
        rows = conn.fetch("SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()")
    target = {row[0] for row in rows}
    return [name for name in named if name in target]


def require_known(conn: Connection) -> int:
    """Return the schema of a journal; refuse one that is newer than this version."""
    at, known_count = current(conn), steps(conn.dialect.name)[-1].number
    if at > known_count:
        raise SchemaVersionUnsupported(
            f"The journal has schema {at}; this version of Palyra supports schemas up to {known_count}. "
            "Nothing was changed. Start the newer version that wrote it."
        )
    return at


def migrate(conn: Connection, *, now_ms: int, upto: int | None = None) -> list[Migration]:
    """Run the missing migrations in one transaction and return them; refuse a database that is newer than this version.

    Only a restore stops before the last one (`upto`): a backup is restored with the schema that it has.
    """
    if conn.dialect.migration_lock:
        conn.fetch(conn.dialect.migration_lock)
    migrations = steps(conn.dialect.name)
    at = require_known(conn)
    requested_migrations = [step for step in migrations if at < step.number <= (upto or step.number)]
    if at == 0:
        _run(
            conn, "CREATE TABLE migrations (number BIGINT PRIMARY KEY, name TEXT NOT NULL, applied_ms BIGINT NOT NULL)"
        )
    for step in requested_migrations:
        for statement in _COMMENT.sub("", step.path.read_text()).split(";"):
            if statement.strip():
                _run(conn, statement)
        conn.execute(
            "INSERT INTO migrations (number, name, applied_ms) VALUES (:number, :name, :now_ms)",
            {"number": step.number, "name": step.name, "now_ms": now_ms},
        )
    return requested_migrations


def _run(conn: Connection, statement: str) -> None:
    conn.execute(_TEXT.sub(conn.dialect.text_type, statement))


def _has_tables(conn: Connection) -> bool:
    if conn.dialect.name == "sqlite":
        return bool(conn.fetch("SELECT 1 FROM sqlite_master WHERE name = 'migrations'"))
    return bool(conn.fetch("SELECT 1 WHERE to_regclass('migrations') IS NOT NULL"))
