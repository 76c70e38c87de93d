"""The tail: every follower gets every entry once and in order, whatever happens around it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest

from palyra.core.errors import JournalClosed
from palyra.core.events import Entry, TapeEvent
from palyra.core.ids import RunId, SessionId
from palyra.journal import tail as tails
from palyra.journal.engines.base import Engine, FailureListener, Listener, StorageUnavailable, T, Unit, WorkAvailable
from palyra.journal.tail import RECENT_ENTRIES, REMEMBERED_BYTES, Tail, TapeReader
from tests.contract.database import Database
from tests.contract.journal.builders import (
    a_piece,
    a_run_id,
    a_session_id,
    a_title,
    begin,
    write_down,
    write_down_of,
)

PATIENCE = 60.0
SESSION = a_session_id()


class Relay:
    """An engine of which the test decides what the listeners are told, and when; it also counts the reads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.listeners: list[Listener] = []
        self.reads = 0
        self.fails = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def write(self, unit: Unit[T]) -> T:
        return await self._engine.write(unit)

    async def read(self, query: Unit[T]) -> T:
        self.reads += 1
        if self.fails:
            self.fails -= 1
            raise StorageUnavailable
        result = await self._engine.read(query)
        await self.gate.wait()
        return result

    def subscribe(self, listener: Listener) -> None:
        self.listeners.append(listener)

    def on_failure(self, listener: FailureListener) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    def tell(self, *entries: Entry) -> None:
        for listener in self.listeners:
            listener(entries)


@pytest.fixture
async def session(engine: Engine) -> SessionId:
    return await engine.write(begin)


@pytest.fixture
def relay(engine: Engine, session: SessionId) -> Relay:
    return Relay(engine)


async def append(engine: Engine, *events: TapeEvent) -> list[Entry]:
    return await engine.write(lambda conn: write_down(conn, SESSION, *events))


async def append_of(engine: Engine, run_id: RunId, *events: TapeEvent) -> list[Entry]:
    return await engine.write(lambda conn: write_down_of(conn, SESSION, run_id, *events))


async def collect(follower: TapeReader, *, until: int) -> list[int]:
    """Follow up to a position, and return the sequence numbers that came."""
    seqs: list[int] = []
    while not seqs or seqs[-1] < until:
        entries = await follower.next(seconds=PATIENCE)
        assert entries, f"nothing came after {seqs[-1:]}"
        seqs += [entry.tape_seq for entry in entries]
    return seqs


async def is_silent(follower: TapeReader) -> bool:
    return await follower.next(seconds=0.02) == []


# -- every entry once, in order


@pytest.mark.usefixtures("session")
async def test_a_follower_gets_what_was_there_and_then_what_comes(engine: Engine) -> None:
    await append(engine, a_title("a"), a_title("b"))
    follower = Tail(engine).follow(SESSION, after_seq=0)

    assert await collect(follower, until=2) == [1, 2]
    written = await append(engine, a_title("c"))
    assert await follower.next(seconds=PATIENCE) == written
    assert follower.after_seq == 3
    assert await is_silent(follower)


@pytest.mark.usefixtures("session")
async def test_a_follower_that_comes_before_the_first_entry_gets_it(engine: Engine) -> None:
    follower = Tail(engine).follow(SESSION, after_seq=0)
    assert await is_silent(follower)

    waiting = asyncio.create_task(follower.next(seconds=PATIENCE))
    await asyncio.sleep(0)
    written = await append(engine, a_title())

    assert await waiting == written


@pytest.mark.usefixtures("session")
async def test_a_follower_at_the_end_gets_only_what_is_new(engine: Engine) -> None:
    tail = Tail(engine)
    await append(engine, a_title(), a_title())
    follower = tail.follow(SESSION, after_seq=2)
    assert await is_silent(follower)

    await append(engine, a_title())

    assert await collect(follower, until=3) == [3]


@pytest.mark.usefixtures("session")
async def test_followers_that_come_at_any_time_miss_nothing_while_several_write(engine: Engine) -> None:
    tail, chance = Tail(engine), Random(7)
    written, total = 0, 0
    counts = [[chance.randint(1, 4) for _ in range(12)] for _ in range(5)]
    total = sum(map(sum, counts))

    async def write(counts: list[int]) -> None:
        nonlocal written
        for count in counts:
            entries = await append(engine, *[a_title("x" * chance.choice([1, 2 * REMEMBERED_BYTES]))] * count)
            written = max(written, entries[-1].tape_seq)

    async def follow(delay: float) -> None:
        await asyncio.sleep(delay)
        start = chance.randint(0, written)
        follower = tail.follow(SESSION, after_seq=start)
        while follower.after_seq < total:
            entries = await follower.next(seconds=PATIENCE)
            assert entries, f"nothing came after {follower.after_seq} of {total}"
            assert [entry.tape_seq for entry in entries] == list(range(start + 1, start + len(entries) + 1))
            start += len(entries)
            await asyncio.sleep(chance.choice([0, 0, 0.005]))
        follower.close()

    async with asyncio.TaskGroup() as group:
        for mine in counts:
            group.create_task(write(mine))
        for _ in range(20):
            group.create_task(follow(chance.random() * 0.15))


@pytest.mark.usefixtures("session")
async def test_a_follower_that_sleeps_while_more_comes_than_is_kept_misses_nothing(engine: Engine) -> None:
    tail = Tail(engine)
    await append(engine, a_title())
    follower = tail.follow(SESSION, after_seq=0)
    await collect(follower, until=1)

    for _ in range(3):
        await append(engine, *[a_title()] * (RECENT_ENTRIES - 50))

    assert await collect(follower, until=3 * (RECENT_ENTRIES - 50) + 1) == list(range(2, 3 * (RECENT_ENTRIES - 50) + 2))


@pytest.mark.usefixtures("session")
async def test_hints_that_are_no_entries_wake_nobody(engine: Engine) -> None:
    follower = Tail(engine).follow(SESSION, after_seq=0)
    assert await is_silent(follower)

    await engine.write(lambda conn: conn.publish(WorkAvailable("runs")))

    assert await is_silent(follower)


@pytest.mark.usefixtures("session")
async def test_followers_at_different_places_get_each_what_is_theirs(engine: Engine) -> None:
    tail = Tail(engine)
    await append(engine, *[a_title()] * 10)
    followers = {start: tail.follow(SESSION, after_seq=start) for start in (0, 5, 10)}
    await append(engine, a_title(), a_title())

    for start, follower in followers.items():
        assert await collect(follower, until=12) == list(range(start + 1, 13))


@pytest.mark.usefixtures("session")
async def test_a_follower_of_one_session_gets_nothing_of_another(engine: Engine) -> None:
    other = await engine.write(lambda conn: begin(conn, 2))
    tail = Tail(engine)
    follower, others = tail.follow(SESSION, after_seq=0), tail.follow(other, after_seq=0)
    assert await is_silent(follower)

    await engine.write(lambda conn: write_down(conn, other, a_title()))

    assert [entry.session_id for entry in await others.next(seconds=PATIENCE)] == [other]
    assert await is_silent(follower)


# -- one run of a session


@pytest.mark.usefixtures("session")
async def test_a_follower_of_a_run_gets_its_entries_only(engine: Engine) -> None:
    tail, mine, other = Tail(engine), a_run_id(1), a_run_id(2)
    await append(engine, a_title())
    await append_of(engine, mine, a_piece())
    await append_of(engine, other, a_piece(), a_piece())
    follower = tail.follow(SESSION, after_seq=0, run_id=mine)
    assert await collect(follower, until=2) == [2]

    await append_of(engine, other, a_piece())
    await append_of(engine, mine, a_piece())
    await append_of(engine, other, a_piece())
    await append_of(engine, mine, a_piece())

    assert await collect(follower, until=8) == [6, 8]
    assert await is_silent(follower)


@pytest.mark.usefixtures("session")
async def test_a_follower_of_a_run_that_starts_behind_its_entries_waits_for_more(engine: Engine) -> None:
    tail = Tail(engine)
    await append_of(engine, a_run_id(1), a_piece())
    await append_of(engine, a_run_id(2), a_piece())
    follower = tail.follow(SESSION, after_seq=1, run_id=a_run_id(1))
    assert await is_silent(follower)

    await append_of(engine, a_run_id(1), a_piece())

    assert await collect(follower, until=3) == [3]


@pytest.mark.usefixtures("session")
async def test_entries_of_other_runs_do_not_prolong_the_wait(engine: Engine) -> None:
    follower = Tail(engine).follow(SESSION, after_seq=0, run_id=a_run_id(1))
    done = asyncio.Event()

    async def chatter() -> None:
        while not done.is_set():
            await append_of(engine, a_run_id(2), a_piece())

    talking = asyncio.create_task(chatter())
    async with asyncio.timeout(PATIENCE):
        assert await follower.next(seconds=0.1) == []
    done.set()
    await talking


# -- hints that come late, twice, in the wrong order or never


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (0, 2, 1), (2, 0, 1), (1, 2, 0), (1, 1, 2), (2, 2, 2)])
async def test_whatever_the_order_of_notices_every_entry_comes_once(relay: Relay, order: tuple[int, ...]) -> None:
    tail = Tail(relay)
    (first,) = await append(relay, a_title())
    relay.tell(first)
    early = tail.follow(SESSION, after_seq=0)
    assert await collect(early, until=1) == [1]
    entries = [(await append(relay, a_title()))[0] for _ in range(3)]

    seqs: list[int] = []
    for place in order:
        relay.tell(entries[place])
        seqs += [entry.tape_seq for entry in await early.next(seconds=0.01)]
    late = tail.follow(SESSION, after_seq=1)
    (last,) = await append(relay, a_title())
    relay.tell(last)

    assert seqs + await collect(early, until=5) == [2, 3, 4, 5]
    assert await collect(late, until=5) == [2, 3, 4, 5]


@asynccontextmanager
async def looking(tail: Tail) -> AsyncIterator[None]:
    """Have the tail look again while the block runs."""
    task = asyncio.create_task(tail.recheck())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.usefixtures("session")
async def test_what_another_replica_wrote_is_found_without_a_hint(
    engine: Engine, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "RECHECK_SECONDS", 0.01)
    tail, other = Tail(engine), database.engine()
    follower = tail.follow(SESSION, after_seq=0)
    assert await is_silent(follower)

    async with looking(tail):
        await append(other, a_title(), a_title())
        assert await collect(follower, until=2) == [1, 2]
        await append(engine, a_title())
        await append(other, a_title())
        await append(engine, a_title())

        assert await collect(follower, until=5) == [3, 4, 5]


async def test_looking_again_survives_a_journal_that_can_not_be_read(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "RECHECK_SECONDS", 0.01)
    tail = Tail(relay)
    follower = tail.follow(SESSION, after_seq=0)
    assert await is_silent(follower)
    await append(relay, a_title())
    relay.fails = 3

    async with looking(tail):
        assert await collect(follower, until=1) == [1]


async def test_looking_again_finds_the_ends_of_many_tapes(
    relay: Relay, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "RECHECK_SECONDS", 0.01)
    monkeypatch.setattr(tails, "RECENT_ENTRIES", 3)
    session_ids = await relay.write(lambda conn: [begin(conn, place) for place in range(10, 18)])
    tail = Tail(relay)
    followers = [tail.follow(session_id, after_seq=0) for session_id in session_ids]
    for follower in followers:
        assert await is_silent(follower)

    for session_id in session_ids:
        await relay.write(lambda conn, owner=session_id: write_down(conn, owner, a_title()))  # type: ignore[misc]

    async with looking(tail):
        for follower in followers:
            assert await collect(follower, until=1) == [1]


# -- what it costs


async def test_a_follower_that_has_caught_up_costs_no_reads(relay: Relay) -> None:
    tail = Tail(relay)
    followers = [tail.follow(SESSION, after_seq=0) for _ in range(5)]
    for follower in followers:
        assert await is_silent(follower)
    before = relay.reads

    for seq in range(1, 31):
        relay.tell(*await append(relay, a_title()))
        for follower in followers:
            assert await collect(follower, until=seq) == [seq]

    assert relay.reads == before


async def test_who_follows_what_was_just_written_needs_no_read(relay: Relay) -> None:
    tail = Tail(relay)
    relay.tell(*await append(relay, *[a_title()] * 5))

    assert await collect(tail.follow(SESSION, after_seq=2), until=5) == [3, 4, 5]
    assert await is_silent(tail.follow(SESSION, after_seq=5))
    assert relay.reads == 0


async def test_a_notice_that_comes_twice_costs_no_read(relay: Relay) -> None:
    follower = Tail(relay).follow(SESSION, after_seq=0)
    assert await is_silent(follower)
    before = relay.reads
    entries = await append(relay, a_title(), a_title(), a_title())

    relay.tell(*entries)
    relay.tell(*entries)
    relay.tell(entries[0])

    assert await collect(follower, until=3) == [1, 2, 3]
    assert relay.reads == before


@pytest.mark.parametrize("place", [0, 2, 4])
async def test_who_comes_after_a_long_entry_gets_it_at_once(relay: Relay, place: int) -> None:
    tail = Tail(relay)
    for seq in range(5):
        text = "x" * (REMEMBERED_BYTES + 1) if seq == place else "short"
        relay.tell(*await append(relay, a_title(text)))

    assert await collect(tail.follow(SESSION, after_seq=0), until=5) == [1, 2, 3, 4, 5]


async def test_who_comes_from_further_back_than_is_kept_misses_nothing(relay: Relay) -> None:
    tail = Tail(relay)
    relay.tell(*await append(relay, *[a_title()] * (2 * RECENT_ENTRIES)))

    assert await collect(tail.follow(SESSION, after_seq=10), until=2 * RECENT_ENTRIES) == list(
        range(11, 2 * RECENT_ENTRIES + 1)
    )


@pytest.mark.usefixtures("session")
async def test_a_session_that_nobody_follows_any_more_is_forgotten(engine: Engine) -> None:
    tail = Tail(engine)
    followers = [tail.follow(SESSION, after_seq=0) for _ in range(3)]
    assert tail.followed == 1
    for follower in followers:
        follower.close()
        follower.close()

    assert tail.followed == 0


# -- the end


@pytest.mark.usefixtures("session")
async def test_closing_the_tail_ends_every_wait_at_once(engine: Engine) -> None:
    tail = Tail(engine)
    followers = [tail.follow(SESSION, after_seq=0) for _ in range(3)]
    waiting = [asyncio.create_task(follower.next(seconds=60)) for follower in followers]
    await asyncio.sleep(0.02)

    tail.close()

    async with asyncio.timeout(PATIENCE):
        assert await asyncio.gather(*waiting) == [[], [], []]
    assert all(follower.closed for follower in followers)


async def test_a_follower_that_is_closed_while_it_catches_up_does_not_wait(relay: Relay) -> None:
    follower = Tail(relay).follow(SESSION, after_seq=0)
    relay.gate.clear()
    waiting = asyncio.create_task(follower.next(seconds=60))
    await asyncio.wait([waiting], timeout=0.05)

    follower.close()
    relay.gate.set()

    async with asyncio.timeout(PATIENCE):
        assert await waiting == []


async def test_an_entry_that_comes_while_a_follower_catches_up_is_not_missed(relay: Relay) -> None:
    follower = Tail(relay).follow(SESSION, after_seq=0)
    relay.gate.clear()
    waiting = asyncio.create_task(follower.next(seconds=PATIENCE))
    await asyncio.wait([waiting], timeout=0.05)

    entries = await append(relay, a_title())
    relay.tell(*entries)
    relay.gate.set()

    assert await waiting == entries


@pytest.mark.usefixtures("session")
async def test_a_follower_that_was_closed_gives_nothing_more(engine: Engine) -> None:
    follower = Tail(engine).follow(SESSION, after_seq=0)
    assert not follower.closed
    await append(engine, a_title())

    follower.close()

    assert await follower.next(seconds=60) == []


@pytest.mark.usefixtures("session")
async def test_one_follower_that_leaves_does_not_end_the_others(engine: Engine) -> None:
    tail = Tail(engine)
    one, two = tail.follow(SESSION, after_seq=0), tail.follow(SESSION, after_seq=0)
    assert await is_silent(two)

    one.close()
    await append(engine, a_title())

    assert await collect(two, until=1) == [1]


@pytest.mark.usefixtures("session")
async def test_a_follower_whose_wait_is_cancelled_loses_nothing(engine: Engine) -> None:
    follower = Tail(engine).follow(SESSION, after_seq=0)
    for _ in range(5):
        waiting = asyncio.create_task(follower.next(seconds=60))
        await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
    await append(engine, a_title())

    assert await collect(follower, until=1) == [1]


@pytest.mark.usefixtures("session")
async def test_following_a_closed_journal_is_told_so(engine: Engine) -> None:
    follower = Tail(engine).follow(SESSION, after_seq=0)
    await engine.close()

    with pytest.raises(JournalClosed):
        await follower.next(seconds=1)
