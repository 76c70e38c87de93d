"""Whatever units are written at once and however each ends: what was answered is there, in order, and nothing else."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palyra.core.events import Entry
from palyra.core.ids import SessionId
from palyra.journal import tape
from palyra.journal.engines import postgres, sqlite
from palyra.journal.engines.base import Connection, Engine, Fact, JournalError
from palyra.journal.engines.postgres import PostgresConnection
from palyra.journal.engines.postgres_engine import PostgresEngine
from palyra.journal.engines.sqlite import SqliteConnection
from palyra.journal.engines.sqlite_engine import SqliteEngine
from palyra.journal.migrate import migrate
from palyra.journal.stores import meta
from tests.contract.journal.builders import a_session_id, a_title, begin, queued, write_down
from tests.support.postgres import drop_schema, new_schema

SESSIONS = [a_session_id(place) for place in (1, 2, 3)]

# NUL and half surrogates are refused at the door: neither engine could keep them.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200)
numbers = st.integers(-(2**63), 2**63 - 1)

EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FEWER = settings(EXAMPLES, max_examples=15)


class Failure(Exception):
    """What a unit of these tests raises."""


@dataclass(frozen=True)
class Plan:
    """A unit: how many entries it appends to which session, and how it ends."""

    session_id: SessionId
    entries: int
    end: str


def plans(ends: list[str]) -> st.SearchStrategy[list[Plan]]:
    one = st.builds(Plan, st.sampled_from(SESSIONS), st.integers(0, 3), st.sampled_from(ends))
    return st.lists(one, min_size=1, max_size=12)


def unit(plan: Plan, place: int) -> Callable[[Connection], list[Entry]]:
    def run(conn: Connection) -> list[Entry]:
        entries = write_down(conn, plan.session_id, *[a_title(f"unit {place}")] * plan.entries) if plan.entries else []
        meta.put(conn, f"unit {place}", "kept")
        if plan.end == "raises":
            raise Failure
        if plan.end == "breaks":
            conn.execute("INSERT INTO meta (name, value) VALUES (:name, NULL)", {"name": "broken"})
        if plan.end == "loses":
            conn.execute("ROLLBACK")
        return entries

    return run


async def check(engine: Engine, plans: list[Plan]) -> None:
    """Write them all at once, and compare what was answered and told with what is there."""
    told: list[Fact] = []
    engine.subscribe(told.extend)

    answers = await queued([unit(plan, place) for place, plan in enumerate(plans)], engine)

    kept: list[Entry] = []
    for plan, answer in zip(plans, answers, strict=True):
        match plan.end:
            case "holds":
                assert isinstance(answer, list)
                kept += answer
            case "raises":
                assert isinstance(answer, Failure)
            case _:
                assert isinstance(answer, JournalError)
    facts = await engine.read(lambda conn: conn.fetch("SELECT name FROM meta WHERE name LIKE 'unit %'"))
    assert {row[0] for row in facts} == {f"unit {place}" for place, plan in enumerate(plans) if plan.end == "holds"}
    for session_id in SESSIONS:
        stored = await engine.read(lambda conn, owner=session_id: tape.page(conn, owner, after_seq=0))  # type: ignore[misc]
        of_session = [entry for entry in kept if entry.session_id == session_id]
        assert [entry.tape_seq for entry in stored] == list(range(1, len(of_session) + 1))
        assert sorted(of_session, key=lambda entry: entry.tape_seq) == stored
        assert [fact for fact in told if isinstance(fact, Entry) and fact.session_id == session_id] == stored


def prepare(conn: Connection) -> None:
    migrate(conn, now_ms=0)
    for table in ("meta", "tape", "heads", "sessions"):
        conn.execute(f"DELETE FROM {table}")
    for place in (1, 2, 3):
        begin(conn, place)


async def checked(engine: Engine, plans: list[Plan]) -> None:
    try:
        await engine.write(prepare)
        await check(engine, plans)
    finally:
        await engine.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine") / "journal.sqlite"


@pytest.fixture(scope="module")
def url(postgres_server: str) -> Iterator[str]:
    url = new_schema(postgres_server)
    yield url
    drop_schema(url)


@EXAMPLES
@given(plans=plans(["holds", "holds", "raises", "breaks", "loses"]))
def test_what_is_answered_on_sqlite_is_there_and_nothing_else(path: Path, plans: list[Plan]) -> None:
    async def main() -> None:
        await checked(SqliteEngine(path), plans)

    asyncio.run(main())


@FEWER
@given(plans=plans(["holds", "holds", "raises", "breaks"]))
def test_what_is_answered_on_postgres_is_there_and_nothing_else(url: str, plans: list[Plan]) -> None:
    async def main() -> None:
        await checked(PostgresEngine(url), plans)

    asyncio.run(main())


# -- parameters


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def conn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A table of any texts and numbers, on either engine."""
    opened: SqliteConnection | PostgresConnection
    if request.param == "sqlite":
        opened = SqliteConnection(sqlite.open_for_writing(tmp_path_factory.mktemp("values") / "values.sqlite"))
    else:
        opened = PostgresConnection(postgres.connect(request.getfixturevalue("url")))
    with closing(opened.raw):
        opened.execute("CREATE TABLE anything (place BIGINT, text TEXT, number BIGINT)")
        yield opened


@settings(EXAMPLES, max_examples=100)
@given(rows=st.lists(st.tuples(texts | st.none(), numbers | st.none()), max_size=5))
def test_any_value_comes_back_as_it_was_given(conn: Connection, rows: list[tuple[str | None, int | None]]) -> None:
    params = [{"place": place, "text": row[0], "number": row[1]} for place, row in enumerate(rows)]
    conn.execute("DELETE FROM anything")
    conn.execute_many("INSERT INTO anything (place, text, number) VALUES (:place, :text, :number)", params)

    assert conn.fetch("SELECT text, number FROM anything ORDER BY place") == rows
    for text, number in rows:
        if text is not None and number is not None:
            same = conn.fetch(
                "SELECT DISTINCT text, number FROM anything WHERE text = :text AND number = :number",
                {"text": text, "number": number},
            )
            assert same == [(text, number)]
