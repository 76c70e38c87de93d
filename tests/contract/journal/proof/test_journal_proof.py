"""Verifying a home: without a daemon or beside one, and never changing anything. What is found is in `property/`."""

import asyncio
import re
from pathlib import Path

import msgspec
import pytest

from palyra.home import Home
from palyra.journal.engines.base import Connection, Engine, JournalDamaged, StorageUnavailable
from palyra.journal.engines.postgres import DatabaseUrlInvalid
from palyra.journal.proof import anchors, journal_proof, signing_key
from palyra.journal.proof.anchors import AnchorInvalid
from palyra.journal.proof.signing_key import KeySigner
from palyra.journal.proof.tape_proof import ProofProblem, ProofReport
from palyra.journal.snapshot import JournalNotFound, open_snapshot
from palyra.journal.stores import meta
from palyra.settings import JournalSettings, Settings
from tests.contract.database import Database, PostgresDatabase, SqliteDatabase, migrated
from tests.contract.journal.builders import a_session_id, a_title, begin, write_down
from tests.support.sqlite_file import opened

JOURNAL = "01JGKK8F5E000000000000000J"


def verify_home(home: Home, settings: Settings, *, saved: anchors.Anchor | None = None) -> ProofReport:
    with open_snapshot(home, settings) as conn:
        return journal_proof.verify(conn, saved=saved, key=signing_key.public_key(home.key))


@pytest.fixture
def place(tmp_path: Path) -> Home:
    """A home that is empty yet."""
    home = Home(tmp_path / "home")
    home.path.mkdir()
    return home


@pytest.fixture
def signer(place: Home) -> KeySigner:
    return signing_key.load_or_create(place.key)


@pytest.fixture
async def journal(database: Database, place: Home, signer: KeySigner) -> Engine:
    """A journal in that home on which three entries were written, two of them anchored."""
    if isinstance(database, SqliteDatabase):
        database.path = place.journal
    engine = await migrated(database)
    await engine.write(lambda conn: write_journal(conn, signer))
    return engine


def write_journal(conn: Connection, signer: KeySigner) -> None:
    meta.put(conn, "journal_id", JOURNAL)
    meta.put(conn, "public_key", signer.public_key)
    begin(conn)
    write_down(conn, a_session_id(), a_title(), a_title())
    anchors.write_anchor(conn, anchors.moved_tapes(conn), journal_id=JOURNAL, now_ms=0, signer=signer)
    write_down(conn, a_session_id(), a_title())


def settings_of(database: Database) -> Settings:
    url = database.url if isinstance(database, PostgresDatabase) else None
    return Settings(journal=JournalSettings(database_url=url))


def report(database: Database, place: Home, saved: bytes | None = None) -> ProofReport:
    anchor = anchors.read_anchor(saved) if saved is not None else None
    return verify_home(place, settings_of(database), saved=anchor)


@pytest.mark.usefixtures("journal")
def test_a_home_whose_journal_holds_is_fine(database: Database, place: Home) -> None:
    found = report(database, place)

    assert found.ok
    assert (found.sessions, found.entries, found.anchors, found.after_anchor) == (1, 3, 1, 1)


@pytest.mark.usefixtures("journal")
def test_what_was_changed_is_named(database: Database, place: Home) -> None:
    database.change("UPDATE tape SET content = '{}' WHERE tape_seq = 2")

    found = report(database, place)

    assert found.problems == (ProofProblem(a_session_id(), 2, "this entry was altered, inserted or moved"),)
    assert not found.ok


@pytest.mark.usefixtures("journal")
def test_verifying_changes_nothing(database: Database, place: Home) -> None:
    before = database.dump()

    report(database, place)

    assert database.dump() == before


async def test_a_journal_can_be_verified_while_a_unit_is_at_work(
    journal: Engine, database: Database, place: Home
) -> None:
    def unit(conn: Connection) -> ProofReport:
        write_down(conn, a_session_id(), a_title())
        return report(database, place)

    assert (await journal.write(unit)).entries == 3
    assert (await asyncio.to_thread(report, database, place)).entries == 4


@pytest.mark.usefixtures("journal")
def test_the_latest_anchor_can_be_printed_kept_and_shown_again(database: Database, place: Home) -> None:
    anchor = journal_proof.latest_anchor(place, settings_of(database))
    assert anchor is not None
    printed = msgspec.json.encode(anchor)
    assert report(database, place, printed).ok

    for table in ("anchors", "anchored"):
        database.change(f"DELETE FROM {table}")

    assert journal_proof.latest_anchor(place, settings_of(database)) is None
    assert report(database, place).ok
    (problem,) = report(database, place, printed).problems
    assert "rolled back" in problem.what


@pytest.mark.usefixtures("journal")
def test_the_key_of_the_home_counts_and_not_what_the_journal_says(database: Database, place: Home) -> None:
    place.key.unlink()
    signing_key.load_or_create(place.key)

    assert {problem.what for problem in report(database, place).problems} == {
        "the journal names a different signing key than the one in its home",
        "anchor 1 is not signed by this journal's key",
    }


@pytest.mark.usefixtures("journal")
def test_a_home_without_a_key_goes_by_that_of_the_journal(database: Database, place: Home) -> None:
    place.key.unlink()

    assert report(database, place).ok


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"Dear diary",
        b"\xff\xfe",
        b'{"number":1,"body":"\xff"}',
        b'{"number":"1"}',
        b"[" * 10_000,
    ],
)
def test_a_file_that_holds_no_anchor_is_refused(data: bytes) -> None:
    with pytest.raises(AnchorInvalid):
        anchors.read_anchor(data)


# -- every column

COLUMNS = {
    "tape": ("session_id", "tape_seq", "run_id", "run_seq", "kind", "at_ms", "content", "salt", "hash"),
    "heads": ("session_id", "tape_seq", "hash"),
    "anchors": ("number", "at_ms", "body", "hash", "signature"),
    "anchored": ("session_id", "tape_seq"),
}
NUMBERS = ("tape_seq", "run_seq", "at_ms", "number")
INDEXED = [
    ("tape", "session_id"),
    ("tape", "tape_seq"),
    ("tape", "run_id"),
    ("heads", "session_id"),
    ("anchors", "number"),
    ("anchored", "session_id"),
]
EACH = [(table, column) for table, columns in COLUMNS.items() for column in columns]


def changed(table: str, column: str) -> str:
    """Return a statement that changes a column of one row to something that we might have written."""
    value = f"{column} + 7" if column in NUMBERS else f"'{a_session_id(9)}'"
    first = {"tape": "WHERE tape_seq = 2", "heads": f"WHERE session_id = '{a_session_id()}'"}.get(table, "")
    return f"UPDATE {table} SET {column} = {value} {first}"


@pytest.mark.parametrize(("table", "column"), EACH)
@pytest.mark.usefixtures("journal")
def test_a_change_of_any_column_is_found(database: Database, place: Home, table: str, column: str) -> None:
    assert report(database, place).ok

    database.change(changed(table, column))

    (first, *_) = report(database, place).problems
    if table == "tape":
        assert (first.session_id, first.tape_seq) == (a_session_id(), 2)


@pytest.mark.parametrize(("table", "column"), INDEXED)
async def test_a_change_of_a_row_that_its_index_does_not_share_is_found(
    file: SqliteDatabase, place: Home, signer: KeySigner, table: str, column: str
) -> None:
    """SQLite keeps what is indexed twice: in the row, and in the index by which rows are found."""
    file.path = place.journal
    engine = await migrated(file)
    await engine.write(lambda conn: write_journal(conn, signer))
    await engine.close()

    await asyncio.to_thread(change_row_only, file.path, table, changed(table, column))

    found = await asyncio.to_thread(verify_home, place, Settings())
    (first, *_) = found.problems
    if table == "tape":
        assert (first.session_id, first.tape_seq) == (a_session_id(), 2)
    assert any("missing from index" in row[0] for row in file.rows("PRAGMA integrity_check"))


def change_row_only(path: Path, table: str, statement: str) -> None:
    """Change a row without the indexes of its table, as a fault of the disk does."""
    schema = f"FROM sqlite_schema WHERE tbl_name = '{table}'"
    with opened(path) as raw:
        kept = raw.execute(f"SELECT type, name, tbl_name, rootpage, sql {schema}").fetchall()
        raw.execute("PRAGMA writable_schema = ON")
        raw.execute(f"DELETE {schema} AND type = 'index'")
        (bare,) = (re.sub(r",?\s*PRIMARY KEY( \(.*\))?", "", str(row[4])) for row in kept if row[0] == "table")
        raw.execute("UPDATE sqlite_schema SET sql = :sql WHERE name = :name", {"sql": bare, "name": table})
    with opened(path) as raw:
        raw.execute(statement)
    with opened(path) as raw:
        raw.execute("PRAGMA writable_schema = ON")
        raw.execute(f"DELETE {schema}")
        raw.executemany("INSERT INTO sqlite_schema (type, name, tbl_name, rootpage, sql) VALUES (?, ?, ?, ?, ?)", kept)


# -- where there is nothing to verify


def test_a_home_without_a_journal_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(JournalNotFound, match="no journal"):
        verify_home(Home(tmp_path), Settings())

    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_journal_is_reported_as_damage(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.journal.write_bytes(b"Dear diary, " * 1000)

    with pytest.raises(JournalDamaged):
        verify_home(home, Settings())


@pytest.mark.parametrize(
    ("url", "error"),
    [("postgresql://nobody@127.0.0.1:1/nowhere", StorageUnavailable), ("postgresql//nobody", DatabaseUrlInvalid)],
)
def test_a_database_that_can_not_be_reached_is_told_so(tmp_path: Path, url: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        verify_home(Home(tmp_path), Settings(journal=JournalSettings(database_url=url)))


# -- what only SQLite can hold


@pytest.mark.parametrize("column", ["session_id", "hash"])
@pytest.mark.parametrize("value", ["CAST(x'ff00' AS TEXT)", "x'ff00'", "x''"])
async def test_a_head_that_is_no_text_is_named_and_the_rest_is_walked(
    file: SqliteDatabase, place: Home, column: str, value: str
) -> None:
    file.path = place.journal
    engine = await migrated(file)
    await engine.write(lambda conn: [write_down(conn, begin(conn, number), a_title()) for number in range(6)])
    file.change(f"UPDATE heads SET {column} = {value} WHERE session_id = '{a_session_id(2)}'")

    found = await asyncio.to_thread(verify_home, place, Settings())

    assert found.sessions == 6
    assert [(problem.session_id, problem.tape_seq) for problem in found.problems] == [
        (None, None),
        (a_session_id(2), 1),
    ]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE anchors SET body = CAST(x'ff00' AS TEXT) WHERE number = 2",
        "UPDATE anchors SET body = CAST(body AS BLOB) WHERE number = 2",
        "UPDATE anchors SET signature = CAST(signature AS BLOB) WHERE number = 2",
        "UPDATE anchors SET hash = CAST(x'ff00' AS TEXT) WHERE number = 2",
        "UPDATE anchors SET at_ms = 'x' WHERE number = 2",
        "UPDATE anchors SET number = 'x' WHERE number = 2",
        "UPDATE anchors SET number = NULL WHERE number = 2",
        "UPDATE anchored SET session_id = CAST(x'ff00' AS TEXT)",
        "UPDATE anchored SET tape_seq = 'x'",
        "UPDATE meta SET value = CAST(x'ff00' AS TEXT) WHERE name = 'journal_id'",
        "UPDATE meta SET value = CAST(x'ff00' AS TEXT) WHERE name = 'public_key'",
        "UPDATE meta SET value = CAST(value AS BLOB) WHERE name = 'public_key'",
    ],
)
async def test_an_anchor_or_a_fact_that_is_no_text_is_named(
    file: SqliteDatabase, place: Home, signer: KeySigner, change: str
) -> None:
    file.path = place.journal
    engine = await migrated(file)

    def unit(conn: Connection) -> None:
        meta.put(conn, "journal_id", JOURNAL)
        meta.put(conn, "public_key", signer.public_key)
        begin(conn)
        for _ in range(3):
            write_down(conn, a_session_id(), a_title())
            anchors.write_anchor(conn, anchors.moved_tapes(conn), journal_id=JOURNAL, now_ms=0, signer=signer)

    await engine.write(unit)
    assert (await asyncio.to_thread(verify_home, place, Settings())).ok
    file.change(change)

    found = await asyncio.to_thread(verify_home, place, Settings())

    assert not found.ok
    assert all(problem.session_id is None for problem in found.problems)


# -- what is checked at each start


@pytest.mark.usefixtures("journal")
def test_the_ends_of_a_journal_that_holds_are_fine(database: Database, place: Home, signer: KeySigner) -> None:
    assert ends(database, place, signer) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("DELETE FROM tape WHERE tape_seq = 2", ProofProblem(a_session_id(), 2, "an entry is missing here")),
        (
            "DELETE FROM tape WHERE tape_seq = 3",
            ProofProblem(a_session_id(), 3, "the head does not match the last entry"),
        ),
        ("DELETE FROM heads", ProofProblem(a_session_id(), 1, "an anchor names this session, but its tape is missing")),
        (
            "UPDATE heads SET tape_seq = 1",
            ProofProblem(a_session_id(), 1, "the tape was cut off here: an anchor lists later entries"),
        ),
        (
            "UPDATE tape SET hash = 'f' WHERE tape_seq = 2",
            ProofProblem(a_session_id(), 2, "the chain was rewritten: an anchor lists a different entry here"),
        ),
        ("UPDATE anchors SET body = body || ' '", ProofProblem(None, None, "anchor 1 was altered")),
        (
            "UPDATE anchors SET signature = 'f:f'",
            ProofProblem(None, None, "anchor 1 is not signed by this journal's key"),
        ),
    ],
)
@pytest.mark.usefixtures("journal")
def test_what_is_wrong_with_the_ends_is_named(
    database: Database, place: Home, signer: KeySigner, change: str, problem: ProofProblem
) -> None:
    database.change(change)

    assert ends(database, place, signer) == [problem]


def ends(database: Database, place: Home, signer: KeySigner) -> list[ProofProblem]:
    with open_snapshot(place, settings_of(database)) as conn:
        return journal_proof.check_ends(conn, key=signer.public_key)
