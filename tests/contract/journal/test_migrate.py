"""The way to the schema of today: from nothing, from any step, by several at once, and never back."""

import asyncio
import shutil
import sys
from pathlib import Path

import pytest

from palyra.journal import migrate
from palyra.journal.engines.base import Connection, Engine, JournalError
from palyra.journal.engines.postgres import DIALECT as POSTGRES
from palyra.journal.engines.sqlite import DIALECT as SQLITE
from palyra.journal.migrate import Migration, SchemaVersionUnsupported
from tests.contract.database import NOW_MS, Database, PostgresDatabase, SqliteDatabase

STEPS = {dialect.name: migrate.steps(dialect.name) for dialect in (SQLITE, POSTGRES)}
MIXED_CASE = ["Z", "a", "B", "_", "0", "ä", "É", "z", "A", "-", "01JGKK8F5E", "01jgkk8f5e", "é", "~", " ", "日"]
PROCESS = """
import asyncio, sys
from pathlib import Path
from palyra.journal import migrate

async def main(kind, place):
    if kind == "sqlite":
        from palyra.journal.engines.sqlite_engine import SqliteEngine
        begin = lambda: SqliteEngine(Path(place))
    else:
        from palyra.journal.engines.postgres_engine import PostgresEngine
        begin = lambda: PostgresEngine(place)
    print("here", flush=True)
    sys.stdin.readline()
    engine = begin()
    print(len(await engine.write(lambda conn: migrate.migrate(conn, now_ms=1))))
    await engine.close()

asyncio.run(main(*sys.argv[1:]))
"""


def up(conn: Connection) -> list[Migration]:
    return migrate.migrate(conn, now_ms=NOW_MS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the migrations, to which a test adds its own."""
    folder = tmp_path / "migrations"
    shutil.copytree(migrate.FOLDER, folder)
    monkeypatch.setattr(migrate, "FOLDER", folder)
    return folder


# -- the steps


@pytest.mark.parametrize("dialect", [SQLITE.name, POSTGRES.name])
def test_the_steps_are_numbered_without_a_gap_on_either_engine(dialect: str) -> None:
    steps = STEPS[dialect]

    assert [step.number for step in steps] == list(range(1, len(steps) + 1))


def test_both_engines_take_the_same_steps() -> None:
    sqlite, postgres = STEPS.values()

    assert [(step.number, step.name) for step in sqlite] == [(step.number, step.name) for step in postgres]


def test_every_file_among_the_migrations_is_a_step_of_one_of_the_engines() -> None:
    taken = {step.path for steps in STEPS.values() for step in steps}

    assert taken == set(migrate.FOLDER.iterdir())


@pytest.mark.parametrize("name", ["0002_again.sql", "3_short.sql", "0003_other.mysql.sql"])
def test_a_file_that_is_no_step_or_a_second_one_is_refused(folder: Path, name: str) -> None:
    (folder / name).write_text("SELECT 1;")

    with pytest.raises(AssertionError):
        migrate.steps(SQLITE.name)


# -- upwards


async def test_an_empty_database_takes_every_step_and_notes_each(database: Database) -> None:
    engine = database.engine()
    assert await engine.read(migrate.current) == 0

    steps = STEPS[database.name]

    assert await engine.write(up) == list(steps)
    noted = database.rows("SELECT number, name, applied_ms FROM migrations ORDER BY number")
    assert noted == [(step.number, step.name, NOW_MS) for step in steps]
    assert await engine.read(migrate.current) == steps[-1].number


async def test_grants_by_the_first_words_of_a_command_end(database: Database) -> None:
    engine = database.engine()
    kinds = ["command:git push", "folder:/command:", 'command in "/w" (write): git push', "command:rm"]

    def before(conn: Connection) -> None:
        migrate.migrate(conn, now_ms=NOW_MS, upto=17)
        for number, kind in enumerate(kinds):
            conn.execute(
                "INSERT INTO grants (grant_id, principal, agent_id, tool, kind, policy_hash, label, scope, granted_ms,"
                " revoked_ms) VALUES (:id, 'ana', 'a', 'shell.run', :kind, 'h', 'owner', 'always', 1, :revoked)",
                {"id": str(number), "kind": kind, "revoked": 7 if kind == "command:rm" else None},
            )

    await engine.write(before)
    await engine.write(up)

    first, *others = database.rows("SELECT revoked_ms FROM grants ORDER BY grant_id")
    assert first[0] > 1_700_000_000_000
    assert others == [(None,), (None,), (7,)]


async def test_both_engines_end_with_the_same_tables_and_columns(
    file: SqliteDatabase, schema: PostgresDatabase
) -> None:
    for database in (file, schema):
        await database.engine().write(up)

    on_sqlite = file.rows(
        "SELECT t.name, c.name FROM sqlite_master t JOIN pragma_table_info(t.name) c WHERE t.type = 'table'"
    )
    on_postgres = schema.rows(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema()"
    )
    # The full-text index is the one thing that each has in its own way.
    ours = [
        {column for column in columns if not column[0].startswith("message_words")}
        for columns in (on_sqlite, on_postgres)
    ]
    assert ours[0] == ours[1]
    assert ("tape", "content") in ours[0]


async def test_a_database_that_is_up_to_date_is_left_as_it_is(engine: Engine, database: Database) -> None:
    before = database.dump()

    assert await engine.write(up) == []

    assert database.dump() == before


async def test_a_database_of_an_earlier_version_takes_only_what_is_new(
    engine: Engine, database: Database, folder: Path
) -> None:
    last = STEPS[database.name][-1].number
    (folder / f"{last + 1:04}_further.sql").write_text(
        "-- Two statements; the comment has a semicolon of its own.\n"
        "CREATE TABLE further (name TEXT PRIMARY KEY);\n"
        "INSERT INTO further (name) VALUES ('a');\n"
    )

    assert [step.number for step in await engine.write(up)] == [last + 1]

    assert database.rows("SELECT name FROM further") == [("a",)]
    assert await engine.read(migrate.current) == last + 1


async def test_a_step_that_fails_leaves_the_database_as_it_was(
    engine: Engine, database: Database, folder: Path
) -> None:
    before = database.dump()
    last = STEPS[database.name][-1].number
    (folder / f"{last + 1:04}_fine.sql").write_text("CREATE TABLE fine (name TEXT);")
    (folder / f"{last + 2:04}_broken.sql").write_text("CREATE TABLE half (name TEXT); CREATE NONSENSE;")

    with pytest.raises(JournalError):
        await engine.write(up)

    assert database.dump() == before


async def test_a_first_migration_that_fails_leaves_an_empty_database(database: Database, folder: Path) -> None:
    engine = database.engine()
    before = database.dump()
    broken = folder / f"{STEPS[database.name][-1].number + 1:04}_broken.sql"
    broken.write_text("CREATE NONSENSE;")

    with pytest.raises(JournalError):
        await engine.write(up)

    assert database.dump() == before
    broken.unlink()
    await engine.write(up)


# -- never back


async def test_a_database_of_a_newer_version_is_refused_and_not_touched(engine: Engine, database: Database) -> None:
    last = STEPS[database.name][-1].number
    database.change(f"INSERT INTO migrations (number, name, applied_ms) VALUES ({last + 1}, 'newer', 1)")
    before = database.dump()

    with pytest.raises(SchemaVersionUnsupported, match=f"schema {last + 1}.*up to {last}"):
        await engine.write(up)

    assert database.dump() == before


# -- several at once


async def test_two_engines_may_migrate_at_once(database: Database) -> None:
    engines = [database.engine(), database.engine()]

    taken = await asyncio.gather(*(engine.write(up) for engine in engines))

    assert sorted(map(len, taken)) == [0, len(STEPS[database.name])]
    for engine in engines:
        assert await engine.write(up) == []


async def test_several_processes_may_migrate_at_once(database: Database, tmp_path: Path) -> None:
    place = database.url if isinstance(database, PostgresDatabase) else str(tmp_path / "shared.sqlite")
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROCESS, database.name, place),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"here\n"

    answers = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))

    assert sorted(int(out) for out, _ in answers) == [0, 0, 0, len(STEPS[database.name])]


# -- text


async def test_text_is_compared_byte_by_byte(engine: Engine) -> None:
    def unit(conn: Connection) -> None:
        for name in MIXED_CASE:
            conn.execute("INSERT INTO meta (name, value) VALUES (:name, '')", {"name": name})

    await engine.write(unit)

    expected = sorted(MIXED_CASE, key=str.encode)
    stored = await engine.read(lambda conn: conn.fetch("SELECT name FROM meta ORDER BY name"))
    assert [row[0] for row in stored] == expected
    for place, name in enumerate(expected):
        below = await engine.read(
            lambda conn, name=name: conn.fetch("SELECT name FROM meta WHERE name < :name", {"name": name})  # type: ignore[misc]
        )
        assert len(below) == place


async def test_every_column_of_text_on_postgres_is_compared_byte_by_byte(schema: PostgresDatabase) -> None:
    await schema.engine().write(up)

    columns = schema.rows(
        "SELECT table_name, column_name, collation_name FROM information_schema.columns"
        " WHERE table_schema = current_schema() AND data_type = 'text'"
    )
    assert len(columns) > 40
    assert [column for column in columns if column[2] != "C"] == []
