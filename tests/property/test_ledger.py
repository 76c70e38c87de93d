"""Random lives of a ledger: turns begin, end, break and are left open by crashes, while days pass and budgets change.

Hypothesis draws what is done, one unit after the other, to runs of two principals, some of which work for others, and
to calls for embeddings beside them, many of which stand on one tape and are open at once.
Beside the journal the test keeps books of its own, as plainly as it can: a list of turns, added up anew each time.

The laws: a turn begins if and only if each budget has room for all that may come of it; no budget is overspent by more
than turns took beyond what was set aside for them; nothing stays set aside for a turn that is over; every account is
the sum of its turns, also one that was opened late or swept away; and the tape alone adds up to the same rows.

Then the same at once: many writers on real connections, while accounts are opened under their hands.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from palyra.core.clock import to_ms
from palyra.core.event import ParentRun
from palyra.core.events import ModelTurnDiscarded, ModelTurnEnded, ModelTurnStarted, RunEvent
from palyra.core.ids import CallId, PrincipalId, RunId, SessionId
from palyra.core.projection.ledger import Spender, turn_abandoned
from palyra.core.run.state import RunState
from palyra.core.session_events import EmbeddingsEnded, EmbeddingsOutcome, EmbeddingsStarted
from palyra.core.spending.budget import Budget, BudgetAction, BudgetPeriod, BudgetSubject, Reservation
from palyra.core.spending.price import Price
from palyra.core.spending.usage import Usage
from palyra.journal import migrate
from palyra.journal.engines import postgres, sqlite
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.engines.postgres import PostgresWriter
from palyra.journal.engines.postgres_engine import PostgresEngine
from palyra.journal.engines.sqlite import SqliteWriter
from palyra.journal.engines.sqlite_engine import SqliteEngine
from palyra.journal.ledger import accounts as spending
from palyra.journal.offline import OfflineWriter
from palyra.journal.projection import ledger_check
from palyra.runs.recording.replay import replay
from palyra.runs.recording.session_writer import SessionWriter
from palyra.runs.services import embeddings
from palyra.runs.services.budgets import BudgetExceeded, BudgetService
from palyra.settings import SpendingSettings
from tests.contract.journal.builders import BEN, CountedIds, a_run_id, a_session, a_session_id
from tests.support.builders import AGENT, ANA, AT, a_cancel, a_cancellation, a_context, a_failure, a_resume, an_accepted
from tests.support.journal_invariants import check_books
from tests.support.postgres import drop_schema, new_schema

DRAWN = settings(
    max_examples=60, deadline=None, phases=set(Phase) - {Phase.explain}, suppress_health_check=[HealthCheck.too_slow]
)
FEWER = settings(DRAWN, max_examples=20)

MODELS = ("acme/large", "acme/small", "home/free", "odd/unpriced")
PRICES = {
    "acme/large": Price(input=Decimal(2), output=Decimal(3)),
    "acme/small": Price(input=Decimal(1), output=Decimal(1)),
    "home/free": Price(input=Decimal(0), output=Decimal(0)),
}
BUDGETS = {
    "all-day": Budget(money=Decimal("0.000900")),
    "all-month": Budget(tokens=700, period=BudgetPeriod.MONTH),
    "each": Budget(subject=BudgetSubject.PRINCIPAL, tokens=300, money=Decimal("0.0006")),
    "run": Budget(subject=BudgetSubject.EVERYTHING, period=BudgetPeriod.RUN, tokens=250),
    "talk": Budget(subject=BudgetSubject.SESSION, period=BudgetPeriod.MONTH, money=Decimal("0.0005")),
    "large": Budget(subject=BudgetSubject.MODEL, only="acme/large", money=Decimal("0.0004")),
    "ben": Budget(subject=BudgetSubject.PRINCIPAL, only=str(BEN), period=BudgetPeriod.MONTH, tokens=200),
    "told": Budget(money=Decimal("0.0001"), action=BudgetAction.WARN),
}


@dataclass(frozen=True)
class Act:
    """Something that happens; `which` run it happens to, and two numbers that say how much."""

    what: str
    which: int = 0
    first: int = 0
    second: int = 0


ACTS = (
    "run",
    "child",
    "start",
    "start",
    "start",
    "end",
    "end",
    "void",
    "crash",
    "cancel",
    "fail",
    "day",
    "set",
    "sweep",
    "embed",
    "embed",
    "embedded",
    "lost",
)
acts = st.builds(Act, st.sampled_from(ACTS), st.integers(0, 5), st.integers(0, 120), st.integers(0, 120))
stories = st.lists(acts, min_size=5, max_size=60)


@dataclass
class Noted:
    """A turn in the test's own books."""

    owner: "Run"
    model: str
    at: datetime
    tokens: int
    micros: int | None
    """What is set aside, or what it took once it is over."""
    open: bool = True
    beyond_tokens: int = 0
    beyond_micros: int = 0
    """What it took beyond what was set aside."""


@dataclass
class Run:
    run_id: RunId
    session_id: SessionId
    principal: PrincipalId
    root: "Run | None" = None
    parent: "Run | None" = None
    open: Noted | None = None
    reserved: Reservation | None = None
    ended: bool = False

    @property
    def top(self) -> "Run":
        return self.root or self

    def as_parent(self) -> ParentRun:
        return ParentRun(
            run_id=self.run_id,
            session_id=self.session_id,
            call_id=CallId("c"),
            depth=1,
            root_run_id=self.top.run_id,
            root_session_id=self.top.session_id,
        )


class Tags:
    def price(self, model: str, /) -> Price | None:
        return PRICES.get(model)


@dataclass
class Ledger:
    """The journal, and the books beside it."""

    writer: OfflineWriter
    ids: CountedIds = field(default_factory=CountedIds)
    runs: list[Run] = field(default_factory=list)
    calls: list[Run] = field(default_factory=list)
    """Calls for embeddings that are open; each is a run to its budgets, and has no run that works for it."""
    turns: list[Noted] = field(default_factory=list)
    now: datetime = AT
    budgets: dict[str, Budget] = field(default_factory=dict)

    def act(self, act: Act) -> None:
        match act.what:
            case "run":
                self.accept(None, (ANA, BEN)[act.first % 2])
            case "child" if (above := self.living(act.which)) is not None:
                self.accept(above, above.principal)
            case "start" if (run := self.living(act.which)) is not None and run.open is None:
                self.start(run, MODELS[act.first % len(MODELS)], act.first, act.second)
            case "end" | "void" if (run := self.working(act.which)) is not None:
                self.end(run, act.first, act.second, void=act.what == "void")
            case "crash" if (run := self.working(act.which)) is not None:
                self.leave(run, a_resume())
            case "cancel" if (run := self.living(act.which)) is not None:
                self.leave(run, a_cancel(), a_cancellation(), ended=True)
            case "fail" if (run := self.living(act.which)) is not None:
                self.leave(run, a_failure(), ended=True)
            case "embed":
                self.embed((ANA, BEN)[act.which % 2], MODELS[act.first % len(MODELS)], act.second)
            case "embedded" | "lost" if self.calls:
                call = self.calls.pop(act.which % len(self.calls))
                self.end_call(call, act.first if act.what == "embedded" else None)
            case "day":
                self.now += timedelta(days=1 + act.first % 20)
            case "set":
                names = [name for place, name in enumerate(BUDGETS) if act.first >> (place % 7) & 1]
                self.budgets = {name: BUDGETS[name] for name in names}
            case "sweep":
                self.writer.write(lambda conn: spending.sweep(conn, now_ms=to_ms(self.now) * (1 + act.first % 2)))
            case _:
                pass

    def living(self, which: int) -> Run | None:
        living = [run for run in self.runs if not run.ended]
        return living[which % len(living)] if living else None

    def working(self, which: int) -> Run | None:
        working = [run for run in self.runs if run.open is not None]
        return working[which % len(working)] if working else None

    def accept(self, above: Run | None, principal: PrincipalId) -> None:
        place = len(self.runs) + 1
        run = Run(a_run_id(place), a_session_id(place), principal, above.top if above is not None else None, above)
        parent = above.as_parent() if above is not None else None
        accepted = msgspec.structs.replace(an_accepted(parent=parent), principal=principal)

        def unit(conn: Connection) -> None:
            book = SessionWriter.create(conn, a_session(place, principal), parent=parent, ids=self.ids)
            assert book is not None
            book.accept(run.run_id, accepted)
            book.close()

        self.writer.write(unit)
        self.runs.append(run)

    def start(self, run: Run, model: str, asked: int, answer: int) -> None:
        budgets = BudgetService(lambda: SpendingSettings(budgets=self.budgets), Tags())
        reserved = budgets.estimate(model, asked, answer)
        short = [name for name, budget in self.budgets.items() if self.is_short(budget, run, model, reserved)]

        def unit(conn: Connection) -> None:
            state = replay(conn, run.run_id)
            provider, _, name = model.partition("/")
            started = ModelTurnStarted(
                at=self.now, turn=state.turns + 1, provider=provider, model=name, reserved=reserved
            )
            guard = budgets.guard(state, model, reserved, self.now)
            self.add(conn, run, *guard(conn), a_context(state.inputs), started)

        if not self.is_admitted(unit, short):
            return
        run.open, run.reserved = Noted(run, model, self.now, reserved.tokens, reserved.cost_micros), reserved
        self.turns.append(run.open)

    def is_admitted(self, unit: Callable[[Connection], None], short: Sequence[str]) -> bool:
        """Carry out what takes money; it is refused by the budgets that are `short`, and by no others."""
        if expected := [name for name in short if name != "told"]:
            with pytest.raises(BudgetExceeded) as refused:
                self.writer.write(unit)
            assert [one.budget for one in refused.value.overdrawn] == expected
            return False
        self.writer.write(unit)
        return True

    def end(self, run: Run, asked: int, answer: int, *, void: bool) -> None:
        noted, reserved = run.open, run.reserved
        assert noted is not None
        assert reserved is not None
        usage = Usage(input_tokens=asked, output_tokens=answer)
        micros = BudgetService(SpendingSettings, Tags()).cost(noted.model, usage)
        noted.beyond_tokens = max(0, usage.tokens - reserved.tokens)
        noted.beyond_micros = max(0, (micros or 0) - (reserved.cost_micros or 0))
        noted.tokens, noted.micros, noted.open, run.open = usage.tokens, micros, False, None

        def unit(conn: Connection) -> None:
            turn = replay(conn, run.run_id).turns
            if void:
                event: RunEvent = ModelTurnDiscarded(
                    at=self.now, turn=turn, reason="broke", usage=usage, cost_micros=micros
                )
            else:
                event = ModelTurnEnded(at=self.now, turn=turn, stop="end", usage=usage, cost_micros=micros)  # type: ignore[arg-type]
            self.add(conn, run, event)

        self.writer.write(unit)
        # It has answered, and so it goes on only by further words; here every run is a new question.
        if not void:
            self.leave(run, a_cancel(), a_cancellation(), ended=True)

    def embed(self, principal: PrincipalId, model: str, asked: int) -> None:
        budgets = BudgetService(lambda: SpendingSettings(budgets=self.budgets), Tags())
        reserved = budgets.estimate(model, asked, 0)
        place = 900 + (principal == BEN)
        call = Run(RunId(self.ids.new()), a_session_id(place), principal)
        short = [name for name, budget in self.budgets.items() if self.is_short(budget, call, model, reserved)]

        def unit(conn: Connection) -> None:
            made = SessionWriter.create(conn, a_session(place, principal), parent=None, ids=self.ids)
            if made is not None:
                made.close()
            book = SessionWriter.open(conn, call.session_id, ids=self.ids)
            spender = Spender(principal, AGENT, call.session_id, call.run_id, is_new=True)
            provider, _, name = model.partition("/")
            started = EmbeddingsStarted(
                at=self.now,
                request_id=call.run_id,
                principal=principal,
                agent_id=AGENT,
                provider=provider,
                model=name,
                texts=1,
                bytes=asked,
                digest="d",
                reserved=reserved,
                warned=budgets.admit(conn, spender, model, reserved, self.now),
            )
            embeddings.begin(conn, book, started, owner="home:1")

        if not self.is_admitted(unit, short):
            return
        call.open, call.reserved = Noted(call, model, self.now, reserved.tokens, reserved.cost_micros), reserved
        self.turns.append(call.open)
        self.calls.append(call)

    def end_call(self, call: Run, asked: int | None) -> None:
        """Settle a call at what a provider counted, or at what was set aside if nobody did."""
        noted, reserved = call.open, call.reserved
        assert noted is not None
        assert reserved is not None
        if asked is None:
            used, micros = turn_abandoned(reserved)
        else:
            used = Usage(input_tokens=asked)
            micros = BudgetService(SpendingSettings, Tags()).cost(noted.model, used)
        noted.beyond_tokens = max(0, used.tokens - reserved.tokens)
        noted.beyond_micros = max(0, (micros or 0) - (reserved.cost_micros or 0))
        noted.tokens, noted.micros, noted.open = used.tokens, micros, False
        came = EmbeddingsOutcome.LOST if asked is None else EmbeddingsOutcome.ANSWERED
        ended = EmbeddingsEnded(at=self.now, request_id=call.run_id, outcome=came, usage=used, cost_micros=micros)

        def unit(conn: Connection) -> bool:
            return embeddings.end(SessionWriter.open(conn, call.session_id, ids=self.ids), ended)

        assert self.writer.write(unit)
        assert not self.writer.write(unit), "a call is settled once"

    def leave(self, run: Run, *events: RunEvent, ended: bool = False) -> None:
        if run.open is not None:
            run.open.open, run.open = False, None
        run.ended = ended
        self.writer.write(lambda conn: self.add(conn, run, *events))

    def add(self, conn: Connection, run: Run, *events: RunEvent) -> RunState:
        book = SessionWriter.open(conn, run.session_id, ids=self.ids)
        state = replay(conn, run.run_id)
        for event in events:
            state = book.add(state, msgspec.structs.replace(event, at=self.now))
        book.close()
        return state

    # -- the books beside

    def is_short(self, budget: Budget, run: Run, model: str, reserved: Reservation) -> bool:
        tokens, micros = self.sum(budget, run, model, self.now)
        if not self.applies(budget, run, model):
            return False
        if budget.tokens is not None and reserved.tokens and tokens + reserved.tokens > budget.tokens:
            return True
        if budget.money is None or reserved.cost_micros == 0:
            return False
        return reserved.cost_micros is None or micros + reserved.cost_micros > int(budget.money * 1_000_000)

    @staticmethod
    def applies(budget: Budget, run: Run, model: str) -> bool:
        return budget.only in (
            None,
            {BudgetSubject.PRINCIPAL: run.principal, BudgetSubject.MODEL: model}.get(budget.subject),
        )

    def counted(self, budget: Budget, run: Run, model: str, at: datetime) -> Iterator[Noted]:
        for noted in self.turns:
            same = {
                BudgetSubject.EVERYTHING: True,
                BudgetSubject.PRINCIPAL: noted.owner.principal == run.principal,
                BudgetSubject.SESSION: noted.owner.top.session_id == run.top.session_id,
                BudgetSubject.AGENT: True,
                BudgetSubject.MODEL: noted.model == model,
            }[budget.subject]
            within = {
                BudgetPeriod.RUN: noted.owner.top is run.top,
                BudgetPeriod.DAY: noted.at.date() == at.date(),
                BudgetPeriod.MONTH: (noted.at.year, noted.at.month) == (at.year, at.month),
            }[budget.period]
            if same and within:
                yield noted

    def sum(self, budget: Budget, run: Run, model: str, at: datetime) -> tuple[int, int]:
        counted = list(self.counted(budget, run, model, at))
        return sum(noted.tokens for noted in counted), sum(noted.micros or 0 for noted in counted)

    def check(self) -> None:
        def look(conn: Connection) -> None:
            held = conn.fetch_one("SELECT COUNT(*) FROM usage WHERE state = 'reserved'")
            assert held == (sum(noted.open for noted in self.turns),), (
                "something stays set aside for a turn that is over"
            )
            assert not list(ledger_check.wrong_accounts(conn)), "an account is not the sum of its turns"
            total = conn.fetch_one(
                "SELECT CAST(COALESCE(SUM(input_tokens + output_tokens), 0) AS BIGINT),"
                " CAST(COALESCE(SUM(micros), 0) AS BIGINT) FROM usage WHERE state <> 'reserved'"
            )
            over = [noted for noted in self.turns if not noted.open]
            assert total == (sum(noted.tokens for noted in over), sum(noted.micros or 0 for noted in over))

        self.writer.write(look)


def live(writer: OfflineWriter, story: list[Act]) -> None:
    writer.write(lambda conn: migrate.migrate(conn, now_ms=0))
    ledger = Ledger(writer)
    ledger.accept(None, ANA)
    ledger.budgets = dict(BUDGETS)
    always = {name: budget for name, budget in BUDGETS.items() if budget.action is BudgetAction.BLOCK}
    changed = any(act.what == "set" for act in story)
    for act in story:
        ledger.act(act)
        ledger.check()
    # A budget that was in force all the time is exceeded by no more than turns took beyond what they had set aside.
    for noted in ledger.turns if not changed else ():
        for name, budget in always.items():
            counted = list(ledger.counted(budget, noted.owner, noted.model, noted.at))
            if ledger.applies(budget, noted.owner, noted.model):
                beyond_tokens = sum(one.beyond_tokens for one in counted)
                beyond_micros = sum(one.beyond_micros for one in counted)
                if budget.tokens is not None:
                    assert sum(one.tokens for one in counted) <= budget.tokens + beyond_tokens, name
                if budget.money is not None:
                    cap = int(budget.money * 1_000_000)
                    assert sum(one.micros or 0 for one in counted) <= cap + beyond_micros, name
    writer.write(check_books)


@contextmanager
def on_sqlite() -> Iterator[OfflineWriter]:
    with TemporaryDirectory() as folder:
        raw = sqlite.open_for_writing(Path(folder) / "journal.sqlite")
        raw.pragma("synchronous", "off")
        with closing(raw):
            yield SqliteWriter(raw)


SEEDED = [Act("start", 0, 4, 40), Act("end", 0, 10, 90), Act("sweep"), Act("run"), Act("start", 0, 4, 40), Act("crash")]


@DRAWN
@given(story=stories)
@example(story=SEEDED)
@example(
    story=[Act("child"), Act("start", 1, 4, 90), Act("cancel", 1), Act("start", 0, 4, 120), Act("start", 0, 4, 40)]
)
@example(story=[Act("set", 0, 8), Act("child"), Act("start", 1, 5, 40), Act("crash"), Act("start", 0, 5, 40)])
@example(
    story=[Act("embed", 0, 1, 60), Act("embed", 0, 1, 60), Act("start", 0, 1, 90), Act("lost"), Act("embedded", 0, 120)]
)
@example(story=[Act("set", 0, 0), Act("start", 0, 1, 100), Act("set", 0, 127), Act("end", 0, 5, 5), Act("day")])
def test_any_life_of_a_ledger_keeps_the_laws_on_sqlite(story: list[Act]) -> None:
    with on_sqlite() as writer:
        live(writer, story)


@FEWER
@given(story=stories)
@example(story=SEEDED)
def test_any_life_of_a_ledger_keeps_the_laws_on_postgres(postgres_server: str, story: list[Act]) -> None:
    url = new_schema(postgres_server)
    try:
        with closing(postgres.connect(url)) as raw:
            live(PostgresWriter(raw), story)
    finally:
        drop_schema(url)


# -- at once


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    return tmp_path / "journal.db" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


async def test_accounts_that_are_opened_while_others_write_miss_nothing(place: Path | str) -> None:
    engine: Engine = SqliteEngine(place) if isinstance(place, Path) else PostgresEngine(place)
    budgets = {
        f"m{number}": Budget(subject=BudgetSubject.MODEL, only=f"acme/{number}", money=Decimal(1))
        for number in range(8)
    }
    guarded = BudgetService(lambda: SpendingSettings(budgets=budgets), _Ones())
    ids = CountedIds()

    def begin(conn: Connection, number: int) -> None:
        book = SessionWriter.create(conn, a_session(number), parent=None, ids=ids)
        assert book is not None
        book.accept(a_run_id(number), an_accepted())
        book.close()

    def turn(conn: Connection, number: int) -> None:
        model, reserved = f"acme/{number % 8}", Reservation(input_tokens=1, output_tokens=1, cost_micros=2)
        book = SessionWriter.open(conn, a_session_id(number), ids=ids)
        state = replay(conn, a_run_id(number))
        # Half of them know of no budget, as a daemon does whose settings are older.
        warned = guarded.guard(state, model, reserved, AT)(conn) if number % 16 >= 8 else ()
        started = ModelTurnStarted(at=AT, turn=1, provider="acme", model=model[5:], reserved=reserved)
        for event in (*warned, a_context(), started):
            state = book.add(state, event)
        book.close()

    def over(conn: Connection, number: int) -> None:
        book = SessionWriter.open(conn, a_session_id(number), ids=ids)
        book.add(replay(conn, a_run_id(number)), a_resume())
        book.close()

    try:
        await engine.write(lambda conn: migrate.migrate(conn, now_ms=0))
        for number in range(64):
            await engine.write(lambda conn, number=number: begin(conn, number))  # type: ignore[misc]
        await asyncio.gather(
            *(engine.write(lambda conn, number=number: turn(conn, number)) for number in range(64))  # type: ignore[misc]
        )
        accounts = dict(await engine.read(spending.all_of))
        assert len(accounts) == 8
        assert {amount.reserved_micros for amount in accounts.values()} == {16}
        await asyncio.gather(
            *(engine.write(lambda conn, number=number: over(conn, number)) for number in range(64))  # type: ignore[misc]
        )
        for _, amount in await engine.read(spending.all_of):
            assert (amount.reserved_micros, amount.settled_micros) == (0, 16)
        await engine.read(check_books)
    finally:
        await engine.close()


class _Ones:
    def price(self, model: str, /) -> Price | None:
        return Price(input=Decimal(1), output=Decimal(1))
