"""Journals of earlier releases: read, proved, rebuilt, copied and moved as they were stored, on either engine."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest

from palyra.background.jobs import retention as job
from palyra.background.queue import JobContext
from palyra.core.clock import to_ms
from palyra.core.events import Entry, decode, kind_of
from palyra.core.ids import AgentId, PrincipalId, SessionId
from palyra.core.session import new_session
from palyra.core.session_events import SessionCreated
from palyra.journal import migrate, tape
from palyra.journal.archive import backup
from palyra.journal.archive.restore import restore
from palyra.journal.atomic_file import atomic_file
from palyra.journal.engines.base import Connection, TapeRow
from palyra.journal.engines.postgres_engine import PostgresEngine
from palyra.journal.engines.sqlite_engine import SqliteEngine
from palyra.journal.engines.tape_head import TapeHead
from palyra.journal.offline import open_writer
from palyra.journal.projection import replay_check
from palyra.journal.projection.rebuild import rebuild
from palyra.journal.proof import export, export_proof
from palyra.journal.stores import scanner_signals, sessions
from palyra.runs.recording.session_writer import SessionWriter
from palyra.runs.trace.builder import run_tree
from tests.contract.journal.builders import CountedIds, a_title
from tests.contract.journal.homes import KeptHome
from tests.support.builders import AT
from tests.support.clock import FakeClock
from tests.support.postgres import drop_schema, new_schema
from tests.unit.core.test_tapes import FOLDER, read
from tests.unit.core.test_upcast import OLD_NAMES, names_in

LAST_SCHEMA = 18
"""The schema of the last release with the old names."""
PROVABLE = ("0001-first-release", "0007-channels", "0010-budgets", "0012-embeddings", "0013-cut-off-answers")
"""Tapes without attestations, which another journal's key has signed."""


def put(conn: Connection, name: str) -> SessionId:
    """Store a recorded tape, byte for byte."""
    lines = read(FOLDER / f"{name}.jsonl")
    session_id = lines[0].session_id
    contents = [bytes(line.event).decode() for line in lines]
    created = decode(contents[0])
    assert isinstance(created, SessionCreated)
    session = new_session(
        session_id, PrincipalId(created.principal), agent_id=created.agent_id or AgentId("agent"), at=created.at
    )
    assert sessions.insert(conn, session)
    chain, salt = tape.begin(conn, session_id).hash, "5a" * 16
    entries: list[Entry] = []
    rows: list[TapeRow] = []
    for line, content in zip(lines, contents, strict=True):
        kind, at_ms = json.loads(content)["kind"], to_ms(decode(content).at)
        entry = Entry(session_id, line.tape_seq, line.run_id, line.run_seq, kind, at_ms, content)
        chain = tape.entry_hash(chain, entry, salt)
        entries.append(entry)
        rows.append((session_id, line.tape_seq, line.run_id, line.run_seq, kind, at_ms, content, salt, chain))
    conn.append(entries, rows, head=TapeHead(len(rows), chain))
    return session_id


def upgraded(kept: KeptHome, name: str) -> SessionId:
    """Make the journal of an earlier release with a tape, start this one with it, and derive its rows."""
    kept.begin(schema=LAST_SCHEMA)
    session_id = kept.write(lambda conn: put(conn, name))
    kept.write(lambda conn: migrate.migrate(conn, now_ms=1))
    kept.let_go()
    with open_writer(kept.home, kept.settings) as units:
        assert not rebuild(units, folder=kept.home.path, now_ms=to_ms(AT)).problems
    return session_id


def stored(kept: KeptHome) -> list[str]:
    return [row[0] for row in kept.rows("SELECT content FROM tape ORDER BY tape_seq")]


def recorded(name: str) -> list[str]:
    return [bytes(line.event).decode() for line in read(FOLDER / f"{name}.jsonl")]


@pytest.mark.parametrize("name", [*PROVABLE, "0005-tool-search", "0009-callers"])
def test_an_old_tape_is_served_in_the_names_of_today(fresh_home: KeptHome, name: str) -> None:
    session_id = upgraded(fresh_home, name)
    with fresh_home.reading() as conn:
        page = tape.page(conn, session_id, after_seq=0)
        runs = {entry.run_id for entry in page if entry.run_id is not None}
        of_runs = [entry for run_id in runs for entry in tape.of_run(conn, run_id)]
        firsts = [tape.first_of_run(conn, run_id) for run_id in runs]
        pages = [entry for run_id in runs for entry in tape.page_of_run(conn, run_id, after_seq=0)]
        assert [run_tree(tape.of_run(conn, run_id)) for run_id in runs]
    for entry in (*page, *of_runs, *firsts, *pages):
        assert json.loads(entry.to_json())["event"]["kind"] == entry.kind == kind_of(entry.event)
        assert not names_in(entry.content) & OLD_NAMES
    assert [entry.event for entry in page] == [decode(content) for content in recorded(name)]
    assert stored(fresh_home) == recorded(name)


def test_queries_by_kind_find_entries_under_their_old_tags(fresh_home: KeptHome) -> None:
    session_id = upgraded(fresh_home, "0009-callers")
    with fresh_home.reading() as conn:
        latest = tape.latest(conn, session_id, ["history_attached"], after_seq=0, limit=9)
        since = list(tape.since(conn, session_id, ["history_attached"], at_ms=0))
    assert [entry.kind for entry in latest] == ["history_attached"] * 4
    assert since == latest[::-1]


def test_signals_of_attached_history_are_found_under_its_old_tag(fresh_home: KeptHome) -> None:
    fresh_home.begin()
    session_id = fresh_home.session(1)
    content = '{"kind":"message_given","at":"2026-01-02T03:04:05Z","role":"tool","text":"x","signals":["injection:a"]}'

    def add(conn: Connection) -> None:
        head = tape.lock(conn, session_id)
        assert head is not None
        row = (session_id, head.tape_seq + 1, None, 0, "message_given", 1, content, "5a" * 16, "f" * 64)
        conn.append([Entry(*row[:7])], [row], head=TapeHead(head.tape_seq + 1, "f" * 64))

    fresh_home.write(add)
    with fresh_home.reading() as conn:
        assert scanner_signals.of_session(conn, session_id, after_seq=0).signals == ("injection:a",)


@pytest.mark.parametrize("name", PROVABLE)
def test_an_old_tape_is_proved_and_exported_as_it_was_stored(fresh_home: KeptHome, name: str, tmp_path: Path) -> None:
    upgraded(fresh_home, name)
    fresh_home.anchor()
    fresh_home.let_go()

    examined = replay_check.examine(fresh_home.home, fresh_home.settings)
    with fresh_home.reading() as conn, atomic_file(tmp_path / "all") as file:
        export.write(conn, file.write, made_at=AT)

    assert (examined.ok, examined.report.entries) == (True, len(recorded(name)))
    assert export_proof.verify_file(tmp_path / "all").report.ok
    lines = [json.loads(line) for line in (tmp_path / "all").read_text().splitlines()]
    assert [line["content"] for line in lines if "content" in line] == recorded(name)


@pytest.mark.parametrize("name", PROVABLE)
def test_an_old_tape_comes_back_from_a_backup(
    fresh_home: KeptHome, name: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh_home.begin(schema=LAST_SCHEMA)
    session_id = fresh_home.write(lambda conn: put(conn, name))
    fresh_home.let_go()
    backup.create(fresh_home.home, fresh_home.settings, target=tmp_path / "copy", made_at=AT, with_token=False)
    url = new_schema(request.getfixturevalue("postgres_server")) if fresh_home.url is not None else None
    if url is not None:
        monkeypatch.setenv("PALYRA_JOURNAL_DATABASE_URL", url)
    another = KeptHome(tmp_path / "another", database_url=url)

    restore(tmp_path / "copy", another.home, replace=False, ids=CountedIds(5_000_000), at=AT + timedelta(days=1))

    another.write(lambda conn: migrate.migrate(conn, now_ms=1))
    another.let_go()
    with another.reading() as conn:
        served = tape.page(conn, session_id, after_seq=0)
    assert stored(another) == recorded(name)
    assert [entry.event for entry in served] == [decode(content) for content in recorded(name)]
    assert another.verify().ok
    if url is not None:
        drop_schema(url)


@pytest.mark.parametrize("name", PROVABLE)
def test_an_old_tape_moves_to_the_archive_and_its_rows_still_hold(fresh_home: KeptHome, name: str) -> None:
    session_id = upgraded(fresh_home, name)
    fresh_home.archive(session_id)
    fresh_home.anchor()
    fresh_home.let_go()
    clock = FakeClock()
    clock.advance(timedelta(days=400))

    async def rotate() -> None:
        engine = SqliteEngine(fresh_home.home.journal) if fresh_home.url is None else PostgresEngine(fresh_home.url)
        context = JobContext(engine, clock, fresh_home.ids)
        await job.jobs(fresh_home.home.path, archived_days=30)[job.KIND]({}, context)
        await engine.close()

    asyncio.run(rotate())

    examined = replay_check.examine(fresh_home.home, fresh_home.settings)
    assert (examined.ok, examined.report.rotated) == (True, 1)


def test_new_entries_follow_old_ones_on_one_tape(fresh_home: KeptHome) -> None:
    session_id = upgraded(fresh_home, "0013-cut-off-answers")

    def rename(conn: Connection) -> None:
        writer = SessionWriter.open(conn, session_id, ids=fresh_home.ids)
        writer.note(a_title())
        writer.close()

    fresh_home.write(rename)
    assert stored(fresh_home)[:-1] == recorded("0013-cut-off-answers")
    assert fresh_home.verify().ok


def test_an_earlier_release_refuses_the_journal(fresh_home: KeptHome, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh_home.begin()
    known = migrate.steps("sqlite" if fresh_home.url is None else "postgres")
    monkeypatch.setattr(migrate, "steps", lambda dialect: tuple(step for step in known if step.number <= LAST_SCHEMA))
    with pytest.raises(migrate.SchemaVersionUnsupported, match="Start the newer version that wrote it"):
        fresh_home.write(lambda conn: migrate.migrate(conn, now_ms=1))
