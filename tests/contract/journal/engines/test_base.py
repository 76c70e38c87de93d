"""What every engine promises to those who write and read."""

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from palyra.core.errors import JournalClosed
from palyra.core.events import Entry
from palyra.core.ids import SessionId
from palyra.journal import tape
from palyra.journal.engines.base import Connection, Engine, Fact, JournalError, StorageReadOnly, WorkAvailable
from palyra.journal.stores import meta
from tests.contract.database import Database, migrated
from tests.contract.journal.builders import a_session_id, a_title, begin, occupied, queued, write_down

HOSTILE = {
    "quotes": "it's \"quoted\" `twice` ''; DROP TABLE meta; --",
    "a parameter": ":name and ::text and :1 and @x and $1 and ?",
    "a format": "%s %(name)s %% % 100%",
    "backslashes": "\\ \\' \\n \\x00 \\u0000",
    "white space": " \t\r\n\v\f\x1f\x7f\u2028\ufeff ",
    "all sorts": "zażółć ꜱмᴀʟʟ 日本語 עברית 👩‍👩‍👧 e\u0301 \U0010ffff \ufffe",
    "nothing": "",
    "a mebibyte": "π" * (512 * 1024),
}


class Failure(Exception):
    """What a unit of these tests raises."""


def keeps(name: str, value: str = "kept") -> Callable[[Connection], str]:
    """Return a unit that writes a fact and answers with its name."""

    def unit(conn: Connection) -> str:
        meta.put(conn, name, value)
        return name

    return unit


def fails(name: str) -> Callable[[Connection], None]:
    """Return a unit that writes a fact and a hint, then raises."""

    def unit(conn: Connection) -> None:
        meta.put(conn, name, "lost")
        conn.publish(WorkAvailable(name))
        raise Failure(name)

    return unit


def names(conn: Connection) -> set[str]:
    return {row[0] for row in conn.fetch("SELECT name FROM meta")}


def facts_of(engine: Engine) -> list[Fact]:
    """Return a list that gets every fact the engine tells of."""
    told: list[Fact] = []
    engine.subscribe(told.extend)
    return told


# -- a unit is all or nothing


async def test_the_writes_of_a_unit_are_all_there_when_it_is_answered(engine: Engine, database: Database) -> None:
    def unit(conn: Connection) -> None:
        meta.put(conn, "one", "1")
        meta.put(conn, "two", "2")

    await engine.write(unit)

    # Another connection sees only what is committed.
    assert database.rows("SELECT name, value FROM meta ORDER BY name") == [("one", "1"), ("two", "2")]


async def test_a_unit_that_raises_leaves_nothing(engine: Engine) -> None:
    await engine.write(keeps("before", "1"))

    def unit(conn: Connection) -> None:
        meta.put(conn, "before", "2")
        meta.put(conn, "after", "2")
        raise Failure

    with pytest.raises(Failure):
        await engine.write(unit)

    assert await engine.read(lambda conn: conn.fetch("SELECT name, value FROM meta")) == [("before", "1")]


async def test_a_unit_whose_statement_fails_leaves_nothing_and_harms_nobody(engine: Engine) -> None:
    def unit(conn: Connection) -> None:
        meta.put(conn, "wrong", "1")
        conn.execute("INSERT INTO meta (name, value) VALUES (:name, :value)", {"name": "wrong", "value": "again"})

    answers = await queued([keeps("a"), unit, keeps("b")], engine)

    assert answers[0] == "a"
    assert isinstance(answers[1], JournalError)
    assert answers[2] == "b"
    assert await engine.read(names) == {"a", "b"}


async def test_of_many_units_at_once_only_those_that_raise_are_undone(engine: Engine) -> None:
    units = [fails(str(number)) if number % 3 == 0 else keeps(str(number)) for number in range(100)]

    answers = await asyncio.gather(*map(engine.write, units), return_exceptions=True)

    for number, answer in enumerate(answers):
        if number % 3 == 0:
            assert isinstance(answer, Failure)
            assert answer.args == (str(number),)
        else:
            assert answer == str(number)
    assert await engine.read(names) == {str(number) for number in range(100) if number % 3}


async def test_a_unit_sees_what_it_wrote_itself(engine: Engine) -> None:
    def unit(conn: Connection) -> str | None:
        meta.put(conn, "name", "value")
        return meta.get(conn, "name")

    assert await engine.write(unit) == "value"


# -- answers


async def test_the_result_of_a_unit_is_the_very_object_it_returned(engine: Engine) -> None:
    result = object()

    assert await engine.write(lambda conn: result) is result
    assert await engine.read(lambda conn: result) is result


@pytest.mark.parametrize("door", ["write", "read"])
async def test_what_a_unit_raises_is_raised_to_its_caller(engine: Engine, door: str) -> None:
    failure = Failure("so it is")

    def unit(conn: Connection) -> None:
        raise failure

    with pytest.raises(Failure) as caught:
        await getattr(engine, door)(unit)

    assert caught.value is failure


@pytest.mark.parametrize("wrong", [StopIteration(), asyncio.CancelledError(), KeyError("a")], ids=repr)
async def test_whatever_a_unit_raises_everybody_is_answered(engine: Engine, wrong: BaseException) -> None:
    def unit(conn: Connection) -> None:
        raise wrong

    async with asyncio.timeout(60):
        answers = await queued([keeps("a"), unit, keeps("b")], engine)

    assert [answers[0], answers[2]] == ["a", "b"]
    assert isinstance(answers[1], BaseException)
    assert await engine.read(names) == {"a", "b"}


async def test_a_write_is_there_for_an_engine_that_is_opened_afterwards(engine: Engine, database: Database) -> None:
    await engine.write(keeps("a"))

    assert await database.engine().read(names) == {"a"}


# -- a caller that is cancelled


async def test_a_writer_that_is_cancelled_in_the_queue_is_held_until_its_write_is_there(
    engine: Engine, database: Database
) -> None:
    async with occupied(engine):
        writer = asyncio.create_task(engine.write(keeps("late")))
        await asyncio.sleep(0)
        writer.cancel()
        await asyncio.wait([writer], timeout=0.05)
        assert not writer.done()

    with pytest.raises(asyncio.CancelledError):
        await writer
    assert database.rows("SELECT name FROM meta") == [("late",)]


async def test_a_writer_that_is_cancelled_at_work_is_held_until_its_write_is_there(
    engine: Engine, database: Database
) -> None:
    begun, gate = threading.Event(), threading.Event()

    def unit(conn: Connection) -> None:
        meta.put(conn, "late", "kept")
        begun.set()
        assert gate.wait(60)

    writer = asyncio.create_task(engine.write(unit))
    await asyncio.to_thread(begun.wait)
    for _ in range(3):  # an impatient caller
        writer.cancel()
        await asyncio.wait([writer], timeout=0.02)
    assert not writer.done()
    gate.set()

    with pytest.raises(asyncio.CancelledError):
        await writer
    assert database.rows("SELECT name FROM meta") == [("late",)]


async def test_a_writer_that_is_cancelled_does_not_disturb_the_others(engine: Engine) -> None:
    async with occupied(engine):
        writers = [asyncio.create_task(engine.write(keeps(str(number)))) for number in range(20)]
        await asyncio.sleep(0)
        for writer in writers[::2]:
            writer.cancel()

    answers = await asyncio.gather(*writers, return_exceptions=True)

    assert [answer for answer in answers[1::2]] == [str(number) for number in range(1, 20, 2)]
    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[::2])
    assert await engine.read(names) == {str(number) for number in range(20)}


# -- reads


async def test_a_read_sees_one_moment_from_its_first_look_to_its_last(engine: Engine) -> None:
    await engine.write(keeps("left", "1"))
    await engine.write(keeps("right", "1"))
    looked, changed = threading.Event(), threading.Event()

    def query(conn: Connection) -> tuple[str | None, str | None]:
        left = meta.get(conn, "left")
        looked.set()
        assert changed.wait(60)
        return left, meta.get(conn, "right")

    def both(conn: Connection) -> None:
        meta.put(conn, "left", "2")
        meta.put(conn, "right", "2")

    reader = asyncio.create_task(engine.read(query))
    await asyncio.to_thread(looked.wait)
    await engine.write(both)
    changed.set()

    assert await reader == ("1", "1")
    assert await engine.read(lambda conn: (meta.get(conn, "left"), meta.get(conn, "right"))) == ("2", "2")


async def test_a_read_never_sees_half_a_unit(engine: Engine) -> None:
    def unit(conn: Connection, value: str) -> None:
        meta.put(conn, "left", value)
        meta.put(conn, "right", value)

    async def write() -> None:
        for number in range(25):
            await engine.write(lambda conn, value=str(number): unit(conn, value))  # type: ignore[misc]

    async def look() -> None:
        while not done:
            left, right = await engine.read(lambda conn: (meta.get(conn, "left"), meta.get(conn, "right")))
            assert left == right
            seen.add(left)

    done, seen = False, set[str | None]()
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(look())
        await write()
        done = True
    assert len(seen) > 1


async def test_a_read_sees_what_was_answered_before_it_began(engine: Engine) -> None:
    for number in range(20):
        await engine.write(keeps("last", str(number)))
        assert await engine.read(lambda conn: meta.get(conn, "last")) == str(number)


async def test_a_read_can_not_write(engine: Engine) -> None:
    with pytest.raises(StorageReadOnly):
        await engine.read(keeps("smuggled"))

    assert await engine.read(names) == set()
    await engine.write(keeps("in the open"))
    assert await engine.read(names) == {"in the open"}


async def test_a_read_that_fails_does_not_harm_the_next(engine: Engine) -> None:
    def query(conn: Connection) -> None:
        conn.fetch("SELECT 1")
        raise Failure

    for _ in range(10):
        with pytest.raises(Failure):
            await engine.read(query)

    await engine.write(keeps("a"))
    assert await engine.read(names) == {"a"}


async def test_reads_go_on_while_a_unit_is_at_work(engine: Engine) -> None:
    async with occupied(engine):
        assert await engine.read(names) == set()


# -- facts


async def test_a_fact_is_told_once_its_unit_is_there_for_all(engine: Engine, database: Database) -> None:
    told: list[tuple[Sequence[Fact], list[tuple[object, ...]]]] = []
    engine.subscribe(lambda facts: told.append((list(facts), database.rows("SELECT name FROM meta"))))

    def unit(conn: Connection) -> None:
        conn.publish(WorkAvailable("runs"))
        meta.put(conn, "a", "kept")

    await engine.write(unit)

    assert told == [([WorkAvailable("runs")], [("a",)])]


async def test_facts_are_told_before_the_writer_is_answered(engine: Engine) -> None:
    told = facts_of(engine)

    for number in range(20):
        await engine.write(lambda conn, topic=str(number): conn.publish(WorkAvailable(topic)))  # type: ignore[misc]
        assert told[-1] == WorkAvailable(str(number))


async def test_the_facts_of_a_unit_that_fails_are_never_told(engine: Engine) -> None:
    told = facts_of(engine)

    def tells(conn: Connection) -> None:
        conn.publish(WorkAvailable("true"))

    await queued([tells, fails("false"), tells], engine)
    await engine.write(keeps("further"))

    assert told == [WorkAvailable("true"), WorkAvailable("true")]


async def test_every_listener_is_told_on_the_event_loop(engine: Engine) -> None:
    threads: list[tuple[int, threading.Thread]] = []
    for listener in range(2):
        engine.subscribe(lambda facts, listener=listener: threads.append((listener, threading.current_thread())))  # type: ignore[misc]

    await engine.write(lambda conn: conn.publish(WorkAvailable("runs")))

    assert threads == [(0, threading.current_thread()), (1, threading.current_thread())]


async def test_a_listener_that_fails_keeps_nobody_from_the_answer(engine: Engine) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context["exception"]))
    failure = Failure("a listener's own")

    def listener(facts: Sequence[Fact]) -> None:
        raise failure

    engine.subscribe(listener)

    async with asyncio.timeout(60):
        answers = await queued([lambda conn: conn.publish(WorkAvailable("runs")), keeps("a")], engine)

    assert answers == [None, "a"]
    assert complaints == [failure]


async def test_the_entries_of_a_session_are_told_in_their_order(engine: Engine) -> None:
    session_ids = [await engine.write(lambda conn, place=place: begin(conn, place)) for place in range(4)]  # type: ignore[misc]
    told = facts_of(engine)

    await asyncio.gather(*(append(engine, session_ids[number % 4]) for number in range(80)))

    for session_id in session_ids:
        of_session = [fact for fact in told if isinstance(fact, Entry) and fact.session_id == session_id]
        assert [entry.tape_seq for entry in of_session] == list(range(1, 21))


async def test_a_commit_that_is_slow_to_tell_is_not_overtaken_by_the_next_of_its_session(database: Database) -> None:
    first, second = threading.Event(), threading.Event()
    armed = threading.Event()

    def after_commit() -> None:
        """Hold up whoever commits first until another has committed too, if the engine lets one."""
        if not armed.is_set():
            return
        if first.is_set():
            second.set()
        else:
            first.set()
            second.wait(0.2)

    engine = await migrated(database, after_commit=after_commit)
    session_id = await engine.write(begin)
    told = facts_of(engine)
    armed.set()

    await asyncio.gather(*(append(engine, session_id) for _ in range(3)))

    assert [fact.tape_seq for fact in told if isinstance(fact, Entry)] == [1, 2, 3]


async def append(engine: Engine, session_id: SessionId, *titles: str) -> list[Entry]:
    events = [a_title(title) for title in titles or ("A talk",)]
    return await engine.write(lambda conn: write_down(conn, session_id, *events))


# -- the order of a tape


async def test_many_appends_to_one_session_number_its_entries_without_a_gap(engine: Engine) -> None:
    session_id = await engine.write(begin)

    written = await asyncio.gather(*(append(engine, session_id, str(number)) for number in range(50)))

    seqs = [entry.tape_seq for entries in written for entry in entries]
    assert sorted(seqs) == list(range(1, 51))
    stored = await engine.read(lambda conn: tape.page(conn, session_id, after_seq=0))
    assert sorted(stored, key=lambda entry: entry.tape_seq) == stored
    assert {entry for entries in written for entry in entries} == set(stored)


async def test_an_append_that_is_undone_leaves_no_gap(engine: Engine) -> None:
    session_id = await engine.write(begin)

    def undone(conn: Connection) -> None:
        write_down(conn, session_id, a_title(), a_title())
        raise Failure

    await asyncio.gather(
        *(engine.write(undone) if number % 3 == 0 else append(engine, session_id) for number in range(30)),
        return_exceptions=True,
    )

    stored = await engine.read(lambda conn: tape.page(conn, session_id, after_seq=0))
    assert [entry.tape_seq for entry in stored] == list(range(1, 21))


async def test_appends_to_thirty_sessions_at_once_number_each_without_a_gap(engine: Engine) -> None:
    session_ids = [a_session_id(place) for place in range(30)]
    await engine.write(lambda conn: [begin(conn, place) for place in range(30)])

    await asyncio.gather(*(append(engine, session_id, "a", "b") for _ in range(4) for session_id in session_ids))

    for session_id in session_ids:
        stored = await engine.read(lambda conn, owner=session_id: tape.page(conn, owner, after_seq=0))  # type: ignore[misc]
        assert [entry.tape_seq for entry in stored] == list(range(1, 9))


# -- the end


async def test_closing_answers_what_is_queued(engine: Engine, database: Database) -> None:
    async with occupied(engine):
        writers = [asyncio.create_task(engine.write(keeps(str(number)))) for number in range(20)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(engine.close())
        await asyncio.sleep(0)

    await closing
    assert [await writer for writer in writers] == [str(number) for number in range(20)]
    assert len(database.rows("SELECT name FROM meta")) == 20


async def test_a_closed_engine_refuses_reads_and_writes(engine: Engine, database: Database) -> None:
    await engine.close()

    with pytest.raises(JournalClosed):
        await engine.write(keeps("late"))
    with pytest.raises(JournalClosed):
        await engine.read(names)
    assert database.rows("SELECT name FROM meta") == []


async def test_an_engine_may_be_closed_twice(engine: Engine) -> None:
    await engine.close()
    await engine.close()


# -- statements and their parameters


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
async def test_a_text_comes_back_as_it_was_given(engine: Engine, text: str) -> None:
    await engine.write(keeps("text", text))

    # Compared inside, so that a failure does not print a mebibyte.
    assert await engine.read(lambda conn: meta.get(conn, "text") == text)


async def test_a_name_in_a_value_is_no_parameter(engine: Engine) -> None:
    await engine.write(keeps(":value", ":name"))

    assert await engine.read(lambda conn: conn.fetch("SELECT name, value FROM meta")) == [(":value", ":name")]


@pytest.mark.parametrize("number", [0, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)])
async def test_a_number_comes_back_as_it_was_given(engine: Engine, number: int) -> None:
    sql = "INSERT INTO heads (session_id, tape_seq, hash) VALUES ('s', :number, '')"
    await engine.write(lambda conn: conn.execute(sql, {"number": number}))

    assert await engine.read(lambda conn: conn.fetch("SELECT tape_seq FROM heads")) == [(number,)]


@pytest.mark.parametrize("count", [0, 1, 2, 300])
async def test_a_statement_for_many_rows_is_run_once_for_each(engine: Engine, count: int) -> None:
    rows = [{"name": f"name {number}", "value": str(number)} for number in range(count)]
    await engine.write(lambda conn: conn.execute_many("INSERT INTO meta (name, value) VALUES (:name, :value)", rows))

    stored = await engine.read(lambda conn: conn.fetch("SELECT name, value FROM meta"))
    assert set(stored) == {(row["name"], row["value"]) for row in rows}


async def test_a_statement_for_many_rows_fails_as_a_whole(engine: Engine) -> None:
    rows = [{"name": name, "value": ""} for name in ("a", "b", "a", "c")]

    with pytest.raises(JournalError):
        await engine.write(
            lambda conn: conn.execute_many("INSERT INTO meta (name, value) VALUES (:name, :value)", rows)
        )

    assert await engine.read(names) == set()


async def test_a_statement_says_how_many_rows_it_changed(engine: Engine) -> None:
    for name in ("a", "b", "c"):
        await engine.write(keeps(name))

    def unit(conn: Connection) -> list[int]:
        return [
            conn.execute("UPDATE meta SET value = :value WHERE name <> :name", {"value": "2", "name": "a"}),
            conn.execute("UPDATE meta SET value = :value WHERE name = :name", {"value": "2", "name": "nobody"}),
            conn.execute("INSERT INTO meta (name, value) VALUES ('a', '') ON CONFLICT DO NOTHING"),
            conn.execute("DELETE FROM meta"),
        ]

    assert await engine.write(unit) == [2, 0, 0, 3]


async def test_a_query_for_one_row_finds_one_or_none(engine: Engine) -> None:
    await engine.write(keeps("a", "1"))

    def query(conn: Connection) -> list[object]:
        sql = "SELECT name, value FROM meta WHERE name = :name"
        return [conn.fetch_one(sql, {"name": "a"}), conn.fetch_one(sql, {"name": "b"})]

    assert await engine.read(query) == [("a", "1"), None]


async def test_a_statement_that_returns_rows_may_have_more_parameters_than_it_needs(engine: Engine) -> None:
    await engine.write(
        lambda conn: conn.execute(
            "INSERT INTO meta (name, value) VALUES (:name, :value)", {"name": "a", "value": "1", "other": 7}
        )
    )

    assert await engine.read(names) == {"a"}
