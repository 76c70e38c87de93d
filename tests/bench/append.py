"""How fast the tape grows, next to what the database itself can do.

Ours is what every writer goes through: `Engine.write` with a unit that holds the head of its session and appends one
entry of some 300 bytes, the caller waiting until it is durable; 1, 10 and 100 callers at once, a session each. What is
to be written is made beforehand, with us as in what we are compared with: the door is measured and not the way there.
`record_...` is all that a run does to record a piece of text: it also checks the lease, folds the event and brings the
run's row up to date. Both run in this process, on an engine of their own: here it is the journal that is measured.

`append_ratio` is taken in an empty journal, where the database is at its fastest and all that we add shows most. No
journal stays empty: `grown_append_ratio` is the same after each session has got a past of some hundred entries, so that
its rows lie on pages of their own. Our rate hardly differs between the two; it is the raw one that falls.

The raw limit is the least that could serve the same callers: the same rows into the same table under the same settings
and the same durability, handed over from asyncio to a writer thread which commits whatever waits in one transaction,
each caller waiting for its own row (on PostgreSQL: to as many connections as the engine has, a commit each). It is with
the hand-over because no asyncio program can go without it. It hashes nothing, encodes nothing, knows no order within a
session and isolates no caller from another; `append_ratio` says what all that costs when 100 write.

Two further limits say where the cost lies. `same_...` makes the database do all that ours makes it do, and nothing
else: it also reads and moves the head of each session, in a savepoint for each caller (on PostgreSQL: a transaction).
`raw_direct_...` is the first limit without the hand-over: a plain loop in one thread, with as many rows in a commit as
ours had.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count
from time import perf_counter

from palyra.core.events import ModelText
from palyra.daemon.process.system_clock import SystemClock
from palyra.journal import tape
from palyra.journal.engines.base import Connection
from palyra.runs.recording.run_writer import write_run
from tests.bench.figures import Bar, Figures
from tests.bench.ground import Ground, Measurement
from tests.bench.journal import Commits, Journal, opened
from tests.bench.past_runs import Carried, Past
from tests.bench.raw_rows import CALLERS, ENTRY_BYTES, RawWriter, direct_rows_per_s, raw_writer, row
from tests.bench.turns import run

WRITERS = (1, 10, CALLERS)
PAST = 200
PARTS = 4

Write = Callable[[int], Awaitable[object]]
"""Writes one entry for the caller of that number, and returns when it is durable."""


@dataclass(frozen=True, slots=True, eq=False)
class Contender:
    """A way to write, and a count of its commits."""

    name: str
    write: Write
    commits: Commits


def rounds(ground: Ground) -> Iterator[Figures]:
    for _ in range(ground.repeat):
        yield run(_measure(ground))


async def _measure(ground: Ground) -> Figures:
    with ground.home() as home:
        async with opened(home) as journal:
            past = await Past.of(journal, text="Speak.", answer="")
            return await _compare(ground, journal, await past.carried_runs(WRITERS[-1]))


async def _compare(ground: Ground, journal: Journal, runs: list[Carried]) -> Figures:
    figures: Figures = {}
    async with raw_writer(ground, heads=False) as raw, raw_writer(ground, heads=True) as same:
        append = Contender("append", _appending(journal, runs), journal.commits)
        limit = Contender("raw", _raw(raw), raw.commits)
        alike = Contender("same", _raw(same), same.commits)
        recording = Contender("record", _recording(journal, runs), journal.commits)
        for writers in WRITERS:
            contenders = [append, limit, *([alike] if writers == CALLERS else ())]
            each = ground.amount(max(40, 400 // writers), max(1, 20 // writers))
            figures |= await _race(contenders, writers=writers, each=each)
        for contender in (append, limit):
            await _seconds(contender.write, writers=CALLERS, each=ground.amount(PAST, 2))
        grown = await _race([append, limit], writers=CALLERS, each=ground.amount(40, 1))
        # Behind everything else: what it writes is in the journal of the first contender, whose rival has none of it.
        figures |= await _race([recording], writers=CALLERS, each=ground.amount(40, 1))
        figures |= {f"grown_{name}": value for name, value in grown.items() if name.endswith("per_s")}
    grouped = round(figures[f"append_{CALLERS}_rows_per_commit"])
    direct = direct_rows_per_s(ground, rows=ground.amount(40_000, 400), grouped=grouped)
    ours, most = figures["append_100_rows_per_s"], figures["raw_100_rows_per_s"]
    return figures | {
        "raw_direct_rows_per_s": direct,
        "append_ratio": ours / most,
        "grown_append_ratio": figures["grown_append_100_rows_per_s"] / figures["grown_raw_100_rows_per_s"],
        "append_same_ratio": ours / figures["same_100_rows_per_s"],
        "append_direct_ratio": ours / direct,
        "record_ratio": figures["record_100_rows_per_s"] / most,
    }


async def _race(contenders: list[Contender], *, writers: int, each: int) -> Figures:
    """Let all write in turn, a part each time, so that whatever else the machine does falls on all of them alike."""
    seconds, commits = dict.fromkeys(contenders, 0.0), dict.fromkeys(contenders, 0)
    for _ in range(PARTS):
        for contender in contenders:
            before = contender.commits.count
            seconds[contender] += await _seconds(contender.write, writers=writers, each=each)
            commits[contender] += contender.commits.count - before
    rows = PARTS * writers * each
    return {
        **{f"{contender.name}_{writers}_rows_per_s": rows / spent for contender, spent in seconds.items()},
        **{f"{contender.name}_{writers}_rows_per_commit": rows / made for contender, made in commits.items()},
    }


async def _seconds(write: Write, *, writers: int, each: int) -> float:
    async def writer(number: int) -> None:
        for _ in range(each):
            await write(number)

    began = perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(writers):
            group.create_task(writer(number))
    return perf_counter() - began


def _appending(journal: Journal, runs: list[Carried]) -> Write:
    """Append to the tape and nothing else; the run's row is left as it is, since no run goes on here."""

    def unit_of(known: Carried) -> Callable[[Connection], None]:
        session_id, fresh = known.state.session_id, [tape.NewEntry(known.state.run_id, 0, _text())]

        def unit(conn: Connection) -> None:
            head = tape.lock(conn, session_id)
            assert head is not None
            tape.append(conn, session_id, head=head, fresh=fresh)

        return unit

    units = [unit_of(known) for known in runs]
    return lambda number: journal.engine.write(units[number])


def _recording(journal: Journal, runs: list[Carried]) -> Write:
    event = _text()

    async def write(number: int) -> None:
        known = runs[number]
        known.state = await journal.engine.write(
            lambda conn: write_run(conn, known.state, [event], lease=known.lease, ids=journal.ids)
        )

    return write


def _raw(raw: RawWriter) -> Write:
    seq = count(1)
    return lambda number: raw.write(row(number, next(seq)))


def _text() -> ModelText:
    return ModelText(at=_CLOCK.now(), actor="model:scripted", labels=("owner",), turn=1, text="x" * _TEXT_CHARS)


_CLOCK = SystemClock()
_TEXT_CHARS = ENTRY_BYTES - 110
"""What brings an entry's JSON to its size."""

MEASUREMENT = Measurement(
    about="how fast the tape grows, next to what the database itself can do",
    rounds=rounds,
    bars={"append_ratio": Bar(0.7, most=False)},
)
