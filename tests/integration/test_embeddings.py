"""Embeddings on either engine: what a call may take is set aside before the provider is asked, and settled after."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from decimal import Decimal

import pytest

from palyra.core.ids import PrincipalId
from palyra.core.projection.ledger import DISCARDED, RESERVED, SETTLED, Account, Amount, LedgerTurn
from palyra.core.run.state import RunStatus
from palyra.core.session import SessionArchivedError, SessionRef
from palyra.core.session_events import EmbeddingsEnded, EmbeddingsOutcome, EmbeddingsStarted
from palyra.core.spending.budget import Budget, BudgetAction, BudgetPeriod, BudgetSubject
from palyra.core.spending.price import Price
from palyra.core.spending.usage import Usage
from palyra.journal.archive import rotation
from palyra.journal.engines.base import Connection, StorageFull
from palyra.journal.ledger import accounts
from palyra.journal.ledger import embeddings as rows
from palyra.journal.stores import leases
from palyra.providers.base import FailureKind, ProviderFailed
from palyra.providers.scripted import ScriptCall
from palyra.runs.services import embeddings
from palyra.runs.services.budgets import BudgetExceeded
from palyra.runs.services.embeddings import EmbeddingsInProgress, EmbeddingsRequestRecord, Vectors
from palyra.runs.services.emergency_stops import WorkStopped
from palyra.runs.services.usage import UsageService as Reader
from palyra.settings import SpendingSettings
from tests.contract.journal.builders import occupied
from tests.integration.cast import ECHO, Door, first_calls, on_postgres
from tests.integration.conftest import Begin
from tests.support.administrators import administers
from tests.support.builders import ANA
from tests.support.clock import midday
from tests.support.eventually import eventually
from tests.support.world import BEN, World

NAME = "acme/vectors"
TOKENS = 100
"""With the price below a call sets aside as many millionths."""
EXPIRED = timedelta(milliseconds=leases.LENGTH_MS + 1)

Send = Callable[[], Awaitable[Vectors]]


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "POLL_SECONDS", 0.05)


async def priced(begin: Begin, **budgets: Budget) -> World:
    world = await begin(ECHO, clock=midday())
    world.prices.tags[NAME] = Price(input=Decimal(1), output=Decimal(0))
    world.spending = SpendingSettings(budgets=budgets)
    return world


def money(count: int, **more: object) -> Budget:
    return Budget(money=Decimal(count) / 1_000_000, **more)  # type: ignore[arg-type]


def texts(who: PrincipalId = ANA, *, session: str | None = None, tokens: int = TOKENS) -> EmbeddingsRequestRecord:
    ref = SessionRef(key=session) if session is not None else None
    return EmbeddingsRequestRecord(
        principal=who,
        session=ref,
        provider="acme",
        model="vectors",
        texts=3,
        size=400,
        digest="d1ge57",
        tokens=tokens,
    )


def vectors(counted: int | None = 7) -> Send:
    async def send() -> Vectors:
        return Vectors(b"[]", 3, Usage(input_tokens=counted) if counted is not None else None)

    return send


def failing(*, refused: bool = False) -> Send:
    async def send() -> Vectors:
        raise ProviderFailed("The line is cut.", kind=FailureKind.NETWORK, refused=refused)

    return send


class Provider:
    """One that does not answer before it may."""

    def __init__(self) -> None:
        self.asked = 0
        self.open = asyncio.Event()

    async def send(self) -> Vectors:
        self.asked += 1
        await self.open.wait()
        return Vectors(b"[]", 3, Usage(input_tokens=7))


async def row(world: World, of: EmbeddingsInProgress | str, who: PrincipalId | None = ANA) -> LedgerTurn:
    name = of if isinstance(of, str) else of.request_id
    found = await world.engine.read(lambda conn: rows.find(conn, name, who))
    assert found is not None
    return found


async def only_row(world: World) -> LedgerTurn:
    def query(conn: Connection) -> str:
        ((found,),) = conn.fetch("SELECT run_id FROM usage WHERE cause = 'embeddings'")
        return str(found)

    return await row(world, await world.engine.read(query))


async def stands(world: World, state: str) -> None:
    """Wait until the only call stands so."""

    async def look() -> bool:
        return (await only_row(world)).state == state

    _: bool = await eventually(look)


async def ends(world: World, session_id: str) -> list[EmbeddingsEnded]:
    return [event for event in await world.events(session_id) if isinstance(event, EmbeddingsEnded)]


async def spent_today(world: World) -> Amount:
    at = world.clock.now()
    account = Account("everything", f"{at:%Y-%m-%d}")
    return await world.engine.read(lambda conn: accounts.read_balances(conn, [account], at=at)[account])


# -- what is written down


async def test_a_call_is_in_the_ledger_from_its_beginning_on_and_settled_at_what_the_provider_counted(
    begin: Begin,
) -> None:
    world, provider = await priced(begin, daily=money(1000)), Provider()
    asking = asyncio.create_task(world.embeddings.ask(texts(), provider.send))
    await eventually(lambda: provider.asked)
    held = await only_row(world)
    assert (held.state, held.reserved_input, held.reserved_output, held.reserved_micros) == (RESERVED, TOKENS, 0, 100)
    assert (held.cause, held.step, held.provider, held.model) == ("embeddings", "texts", "acme", "vectors")
    provider.open.set()
    begun, _ = await asking
    settled = await row(world, begun)
    assert (settled.state, settled.input_tokens, settled.micros, settled.estimated) == (SETTLED, 7, 7, 0)
    assert await spent_today(world) == Amount(settled_tokens=7, settled_micros=7)
    started, ended = (await world.events(begun.session_id))[-2:]
    assert isinstance(started, EmbeddingsStarted)
    assert (started.texts, started.bytes, started.digest, started.principal) == (3, 400, "d1ge57", ANA)
    assert isinstance(ended, EmbeddingsEnded)
    assert (ended.outcome, ended.vectors, ended.request_id) == (EmbeddingsOutcome.ANSWERED, 3, begun.request_id)


async def test_what_nobody_counted_is_settled_at_the_estimate(begin: Begin) -> None:
    world = await priced(begin)
    begun, _ = await world.embeddings.ask(texts(), vectors(None))
    found = await row(world, begun)
    assert (found.state, found.input_tokens, found.micros, found.estimated) == (SETTLED, TOKENS, 100, 1)


@pytest.mark.parametrize(("refused", "took", "guessed"), [(True, 0, 0), (False, TOKENS, 1)])
async def test_a_call_that_failed_is_void_and_costs_nothing_only_if_it_was_refused(
    begin: Begin, refused: bool, took: int, guessed: int
) -> None:
    world = await priced(begin, daily=money(1000))
    with pytest.raises(ProviderFailed):
        await world.embeddings.ask(texts(), failing(refused=refused))
    found = await only_row(world)
    assert (found.state, found.input_tokens, found.micros, found.estimated) == (DISCARDED, took, took, guessed)
    assert (await spent_today(world)).reserved_tokens == 0
    (ended,) = await ends(world, found.session_id)
    assert (ended.outcome, ended.failure, ended.reason) == (EmbeddingsOutcome.FAILED, "network", "The line is cut.")


async def test_a_fault_of_ours_settles_the_call_too(begin: Begin) -> None:
    async def broken() -> Vectors:
        raise RuntimeError("no reason")

    world = await priced(begin)
    with pytest.raises(RuntimeError):
        await world.embeddings.ask(texts(), broken)
    assert (await only_row(world)).state == DISCARDED


async def test_usage_shows_the_calls_by_cause_and_each_to_its_owner_only(begin: Begin) -> None:
    world = await priced(begin)
    begun, _ = await world.embeddings.ask(texts(), vectors())
    await world.ended(await world.say("Hello."))
    reader = Reader(world.engine, lambda: world.spending, clock=world.clock)
    since = world.clock.now() - timedelta(days=1)
    causes = (await reader.why(ANA, since=since)).causes
    assert {(one.cause, one.used.turns) for one in causes} == {("embeddings", 1), ("api", 1)}
    why = await reader.why_run(ANA, begun.request_id)
    assert [(one.model, one.used.input_tokens) for one in why.turns] == [(NAME, 7)]
    assert (await reader.why(BEN, since=since)).causes == ()
    with pytest.raises(Exception, match="no such run"):
        await reader.why_run(BEN, begun.request_id)


# -- budgets


async def test_a_call_that_a_budget_has_no_room_for_is_not_sent_and_leaves_nothing(begin: Begin) -> None:
    world, provider = await priced(begin, daily=money(TOKENS - 1)), Provider()
    with pytest.raises(
        BudgetExceeded, match=r"The shared budget 'daily' .* An administrator of this daemon can raise it"
    ):
        await world.embeddings.ask(texts(), provider.send)
    await administers(world, ANA)
    with pytest.raises(BudgetExceeded, match=r"The budget 'daily' allows .* config\.toml"):
        await world.embeddings.ask(texts(), provider.send)
    assert provider.asked == 0
    assert await world.sessions.page(ANA, archived=False, before=None, limit=9) == []
    world.spending = SpendingSettings(budgets={"daily": money(TOKENS)})
    await world.embeddings.ask(texts(), vectors())


async def test_of_many_at_once_only_as_many_are_sent_as_the_budget_has_room_for(begin: Begin) -> None:
    world, provider = await priced(begin, daily=money(10 * TOKENS)), Provider()
    calls = [asyncio.create_task(world.embeddings.ask(texts(), provider.send)) for _ in range(48)]
    await eventually(lambda: sum(call.done() for call in calls) == 38, timeout=60)
    await eventually(lambda: provider.asked == 10)
    assert (await spent_today(world)).reserved_micros == 10 * TOKENS
    provider.open.set()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(one, BudgetExceeded) for one in outcomes) == 38
    assert await spent_today(world) == Amount(settled_tokens=70, settled_micros=70)


async def test_runs_and_embeddings_share_a_budget(begin: Begin) -> None:
    world = await priced(begin, daily=Budget(tokens=TOKENS))
    await world.embeddings.ask(texts(), vectors())
    run = await world.ended(await world.say("Hello."))
    assert (run.status, "'daily'" in str(run.reason)) == (RunStatus.FAILED, True)


@pytest.mark.parametrize(
    "budget",
    [
        money(150, subject=BudgetSubject.PRINCIPAL),
        money(150, subject=BudgetSubject.SESSION),
        money(150, subject=BudgetSubject.AGENT),
        money(150, subject=BudgetSubject.AGENT, only="main"),
        money(150, subject=BudgetSubject.MODEL, only=NAME),
        money(150, period=BudgetPeriod.MONTH),
    ],
    ids=str,
)
async def test_each_kind_of_budget_counts_them(begin: Begin, budget: Budget) -> None:
    world = await priced(begin, cap=budget)
    await world.embeddings.ask(texts(), vectors(60))
    with pytest.raises(BudgetExceeded):
        await world.embeddings.ask(texts(), vectors())


async def test_a_call_is_a_run_of_its_own_to_a_budget_of_runs(begin: Begin) -> None:
    world = await priced(begin, each=money(TOKENS, period=BudgetPeriod.RUN))
    for _ in range(3):
        await world.embeddings.ask(texts(), vectors(TOKENS))
    with pytest.raises(BudgetExceeded):
        await world.embeddings.ask(texts(tokens=TOKENS + 1), vectors())
    # There may be very many of them, and nobody will ever ask again what one of them took.
    assert await world.engine.read(accounts.all_of) == []


async def test_a_model_without_a_price_is_refused_in_the_words_that_turns_have(begin: Begin) -> None:
    world = await priced(begin, daily=money(1000))
    world.prices.tags[NAME] = None
    with pytest.raises(BudgetExceeded, match=r"acme/vectors has no price, .* prices\.toml"):
        await world.embeddings.ask(texts(), vectors())


async def test_a_budget_that_asks_refuses_what_can_not_wait(begin: Begin) -> None:
    world = await priced(begin, daily=money(1, action=BudgetAction.ASK))
    world.inbox = True
    with pytest.raises(BudgetExceeded, match="'daily'"):
        await world.embeddings.ask(texts(), vectors())


async def test_a_budget_that_warns_is_told_of_once_on_the_tape(begin: Begin) -> None:
    world = await priced(begin, soft=money(1, action=BudgetAction.WARN))
    first, _ = await world.embeddings.ask(texts(), vectors())
    second, _ = await world.embeddings.ask(texts(), vectors())
    assert [one.overrun.budget for one in first.event.warned] == ["soft"]
    assert second.event.warned == ()


# -- death, stops and trouble


async def test_a_daemon_that_dies_meanwhile_leaves_nothing_set_aside(begin: Begin) -> None:
    world, provider = await priced(begin, daily=money(1000)), Provider()
    asking = asyncio.create_task(world.embeddings.ask(texts(), provider.send))
    await eventually(lambda: provider.asked)
    await world.crash()

    await stands(world, DISCARDED)
    found = await only_row(world)
    assert (found.input_tokens, found.micros, found.estimated) == (TOKENS, 100, 1)
    assert await spent_today(world) == Amount(settled_tokens=TOKENS, settled_micros=100)
    (ended,) = await ends(world, found.session_id)
    assert ended.outcome is EmbeddingsOutcome.LOST
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


@on_postgres
async def test_another_daemon_settles_what_a_dead_one_left_and_nothing_of_a_living_one(begin: Begin) -> None:
    here, provider = await priced(begin, daily=money(1000)), Provider()
    there = await begin(ECHO, clock=here.clock, ids=here.ids, house="next door")
    there.prices, there.spending = here.prices, here.spending
    asking = asyncio.create_task(here.embeddings.ask(texts(), provider.send))
    await eventually(lambda: provider.asked)
    first = await only_row(there)

    async def held_until() -> int:
        def query(conn: Connection) -> int:
            ((until,),) = conn.fetch("SELECT lease_until_ms FROM usage WHERE cause = 'embeddings'")
            return int(until)

        return await there.engine.read(query)

    before = await held_until()
    for _ in range(5):
        here.clock.advance(EXPIRED / 5)
        moved = before

        async def renewed(moved: int = moved) -> bool:
            return await held_until() > moved

        longer: bool = await eventually(renewed)
        assert longer
        before = await held_until()
    assert (await only_row(there)).state == RESERVED
    await here.die()
    here.clock.advance(EXPIRED)

    await stands(there, DISCARDED)
    assert (await row(there, first.run_id)).micros == 100
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_who_is_taken_for_dead_and_comes_back_settles_nothing_twice(begin: Begin) -> None:
    world, provider = await priced(begin), Provider()
    asking = asyncio.create_task(world.embeddings.ask(texts(), provider.send))
    await eventually(lambda: provider.asked)
    found = await only_row(world)
    await world.engine.write(lambda conn: rows.release_dead_owners(conn, home="house"))

    await stands(world, DISCARDED)
    provider.open.set()
    _, given = await asking
    assert given.count == 3
    assert [one.outcome for one in await ends(world, found.session_id)] == [EmbeddingsOutcome.LOST]


async def test_a_caller_that_is_cut_off_leaves_nothing_set_aside(begin: Begin) -> None:
    world, provider = await priced(begin), Provider()
    asking = asyncio.create_task(world.embeddings.ask(texts(), provider.send))
    await eventually(lambda: provider.asked)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    found = await only_row(world)
    assert (found.state, found.micros) == (DISCARDED, 100)


async def test_a_caller_that_is_cut_off_while_the_reservation_is_written_leaves_nothing_set_aside(begin: Begin) -> None:
    world, provider = await priced(begin), Provider()
    async with occupied(world.engine):
        asking = asyncio.create_task(world.embeddings.ask(texts(), provider.send))
        await asyncio.sleep(0)  # it has been queued then
        asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert provider.asked == 0
    assert (await only_row(world)).state == RESERVED
    # Others that are under way do not keep it open.
    other = asyncio.create_task(world.embeddings.ask(texts(BEN), provider.send))
    await eventually(lambda: provider.asked)
    world.clock.advance(EXPIRED)

    async def settled() -> bool:
        def query(conn: Connection) -> list[tuple[str, str]]:
            return [(who, state) for who, state in conn.fetch("SELECT principal, state FROM usage ORDER BY principal")]

        return await world.engine.read(query) == [(ANA, DISCARDED), (BEN, RESERVED)]

    left: bool = await eventually(settled)
    assert left
    provider.open.set()
    await other


async def test_one_call_that_can_not_be_settled_keeps_no_other_from_it(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    world, provider = await priced(begin), Provider()
    asking = asyncio.create_task(world.embeddings.ask(texts(), provider.send))
    bens = asyncio.create_task(world.embeddings.ask(texts(BEN), provider.send))
    await eventually(lambda: provider.asked == 2)

    def change(conn: Connection, of_ana: str) -> str:
        ((before,),) = conn.fetch("SELECT session_id FROM usage WHERE principal = :ana", {"ana": ANA})
        conn.execute("UPDATE usage SET session_id = :now WHERE principal = :ana", {"ana": ANA, "now": of_ana})
        return str(before)

    session_id = await world.engine.write(lambda conn: change(conn, "nowhere"))
    await world.engine.write(lambda conn: rows.release_dead_owners(conn, home="house"))
    await eventually(lambda: [one for one in caplog.messages if "cannot be settled" in one])
    mine = {"ben": BEN}
    ((bens_id,),) = await world.engine.read(
        lambda conn: conn.fetch("SELECT run_id FROM usage WHERE principal = :ben", mine)
    )

    async def settled() -> bool:
        return (await row(world, bens_id, BEN)).state == DISCARDED

    done: bool = await eventually(settled)
    assert done
    await world.engine.write(lambda conn: change(conn, session_id))
    provider.open.set()
    await asyncio.gather(asking, bens)
    assert len([one for one in caplog.messages if "cannot be settled" in one]) == 1


async def test_a_stop_refuses_calls_and_ends_those_that_are_under_way(begin: Begin) -> None:
    world, provider = await priced(begin), Provider()
    asking = asyncio.create_task(world.embeddings.ask(texts(), provider.send))
    bens = asyncio.create_task(world.embeddings.ask(texts(BEN), provider.send))
    await eventually(lambda: provider.asked == 2)
    await world.stops.stop(ANA, principal=ANA, reason="enough")
    with pytest.raises(WorkStopped, match="enough"):
        await asking
    with pytest.raises(WorkStopped, match="enough"):
        await world.embeddings.ask(texts(), provider.send)
    assert provider.asked == 2
    provider.open.set()
    await bens

    def query(conn: Connection) -> list[tuple[str, str]]:
        return [(who, state) for who, state in conn.fetch("SELECT principal, state FROM usage ORDER BY principal")]

    assert await world.engine.read(query) == [(ANA, DISCARDED), (BEN, SETTLED)]


async def test_what_came_while_the_disk_was_full_is_written_down_later(begin: Begin) -> None:
    world, provider = await priced(begin), Provider()
    asking = asyncio.create_task(world.embeddings.ask(texts(), provider.send))
    await eventually(lambda: provider.asked)

    async def full() -> None:
        raise StorageFull

    async def well() -> None:
        pass

    world.line.before_write = full
    provider.open.set()
    begun, given = await asking
    assert given.count == 3
    assert (await row(world, begun)).state == RESERVED
    world.line.before_write = well

    await stands(world, SETTLED)
    assert (await row(world, begun)).micros == 7


async def test_what_can_not_be_written_later_either_keeps_no_other_from_it(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    world, provider = await priced(begin), Provider()
    asking = asyncio.create_task(world.embeddings.ask(texts(), provider.send))
    bens = asyncio.create_task(world.embeddings.ask(texts(BEN), provider.send))
    await eventually(lambda: provider.asked == 2)

    async def full() -> None:
        raise StorageFull

    async def well() -> None:
        pass

    def move(conn: Connection, *, before: str, now: str) -> None:
        conn.execute("UPDATE heads SET session_id = :now WHERE session_id = :before", {"before": before, "now": now})

    ((session_id,),) = await world.engine.read(
        lambda conn: conn.fetch("SELECT session_id FROM usage WHERE principal = :ana", {"ana": ANA})
    )
    await world.engine.write(lambda conn: move(conn, before=session_id, now="nowhere"))
    world.line.before_write = full
    provider.open.set()
    await asking
    begun, _ = await bens
    world.line.before_write = well

    async def settled() -> bool:
        return (await row(world, begun, BEN)).state == SETTLED

    done: bool = await eventually(settled)
    assert done
    await eventually(lambda: [one for one in caplog.messages if "cannot be recorded" in one])
    await world.engine.write(lambda conn: move(conn, before="nowhere", now=session_id))


# -- whose tape


async def test_there_is_one_session_for_each_month_and_principal(begin: Begin) -> None:
    world = await priced(begin)
    first, _ = await world.embeddings.ask(texts(), vectors())
    second, _ = await world.embeddings.ask(texts(), vectors())
    bens, _ = await world.embeddings.ask(texts(BEN), vectors())
    world.clock.advance(timedelta(days=32))
    later, _ = await world.embeddings.ask(texts(), vectors())
    assert first.session_id == second.session_id
    assert len({first.session_id, bens.session_id, later.session_id}) == 3
    session = await world.session(first.session_id)
    assert session.title == f"Embeddings of {first.event.at:%Y-%m}"


async def test_many_first_calls_at_once_have_one_session(begin: Begin) -> None:
    world = await priced(begin)
    done = await asyncio.gather(*(world.embeddings.ask(texts(), vectors()) for _ in range(24)))
    assert len({begun.session_id for begun, _ in done}) == 1
    assert len(await ends(world, done[0][0].session_id)) == 24


async def test_the_session_of_the_month_comes_back_from_the_archive_and_a_named_one_does_not(begin: Begin) -> None:
    world = await priced(begin)
    begun, _ = await world.embeddings.ask(texts(), vectors())
    named, _ = await world.embeddings.ask(texts(session="talk"), vectors())
    await world.sessions.archive(ANA, begun.session_id)
    await world.sessions.archive(ANA, named.session_id)
    again, _ = await world.embeddings.ask(texts(), vectors())
    assert again.session_id == begun.session_id
    assert (await world.session(begun.session_id)).archived_at is None
    with pytest.raises(SessionArchivedError):
        await world.embeddings.ask(texts(session="talk"), vectors())


async def test_calls_in_a_session_do_not_wait_for_its_run_nor_disturb_it(begin: Begin) -> None:
    door = Door()
    world = await begin(first_calls(ScriptCall(tool="door.wait"), then="Done."), tools=[door.tool])
    said = await world.say("Go.", key="talk")
    await eventually(lambda: door.came)
    begun, _ = await world.embeddings.ask(texts(session="talk"), vectors())
    assert begun.session_id == said.session_id
    door.open.set()
    assert (await world.ended(said)).status is RunStatus.DONE


async def test_a_tape_is_not_moved_away_while_a_call_on_it_is_open(begin: Begin) -> None:
    world, provider = await priced(begin), Provider()
    asking = asyncio.create_task(world.embeddings.ask(texts(session="talk"), provider.send))
    await eventually(lambda: provider.asked)
    session_id = (await only_row(world)).session_id
    await world.sessions.archive(ANA, session_id)

    def due(conn: Connection) -> list[str]:
        conn.execute(
            "INSERT INTO anchored (session_id, tape_seq) SELECT session_id, tape_seq FROM heads WHERE tape_seq > 0"
            " ON CONFLICT (session_id) DO UPDATE SET tape_seq = EXCLUDED.tape_seq"
        )
        found = rotation.due(conn, before_ms=2**60, after="", limit=9)
        conn.execute("DELETE FROM anchored")
        return [str(one) for one in found]

    assert await world.engine.write(due) == []
    provider.open.set()
    await asking
    assert await world.engine.write(due) == [session_id]
