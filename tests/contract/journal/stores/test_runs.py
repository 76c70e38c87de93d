"""Runs as rows: where each stands, who carries it, which may be taken up."""

from functools import reduce

import pytest

from palyra.core.clock import to_ms
from palyra.core.events import RunEvent
from palyra.core.ids import RunId
from palyra.core.limits import LimitKind
from palyra.core.projection.changes import ActiveRunChanged, RunProgress
from palyra.core.run.machine import begin as begin_run
from palyra.core.run.machine import evolve
from palyra.core.run.record import RunRecord
from palyra.core.run.state import RunState, RunStatus
from palyra.core.spending.usage import Usage
from palyra.core.tool import Verdict
from palyra.journal.engines.base import Connection
from palyra.journal.stores import leases, runs, sessions
from palyra.journal.stores.leases import LENGTH_MS, RUNS, Lease
from palyra.journal.stores.runs import RunMark
from tests.contract.journal.builders import BEN, a_run_id, a_run_row, a_session, a_session_id, accept, later
from tests.support.builders import (
    AGENT,
    ANA,
    AT,
    a_cancel,
    a_cancellation,
    a_completion,
    a_failure,
    a_limit,
    a_question,
    a_result,
    a_start,
    a_tool_start,
    a_turn,
    a_verdict,
    an_accepted,
)

ONE = "home:one"
NOW = 1_000_000


NOW_MS = to_ms(AT) + 3_600_000


def stored(conn: Connection, run_id: RunId | None = None) -> RunRecord:
    found = runs.get(conn, run_id or a_run_id(), ANA)
    assert found is not None
    return found


def a_state(*events: RunEvent, run_id: RunId | None = None) -> RunState:
    """Return the state of a run that was accepted and started, and to which then the events happened."""
    first = begin_run(run_id or a_run_id(), a_session_id(), an_accepted())
    return reduce(evolve, [a_start(), *events], first)


def advance(
    conn: Connection,
    state: RunState,
    *,
    last_seq: int = 2,
    usage: Usage | None = None,
    ended_ms: int | None = None,
    reason: str | None = None,
) -> None:
    runs.advance(
        conn,
        RunProgress(
            state=state,
            last_seq=last_seq,
            input_tokens=usage.input_tokens if usage else 0,
            output_tokens=usage.output_tokens if usage else 0,
            ended_ms=ended_ms,
            reason=reason,
        ),
    )


def claim(conn: Connection, owner: str = ONE) -> list[Lease]:
    return leases.claim(conn, RUNS, owner=owner, now_ms=NOW, limit=10)


# -- one run


def test_a_run_comes_back_as_it_was_accepted(conn: Connection) -> None:
    run = replace_run(a_run_row(text="it's ü"), parent_run_id=a_run_id(9))

    accept(conn, run)

    assert stored(conn) == run


def replace_run(run: RunRecord, *, parent_run_id: RunId) -> RunRecord:
    fields = {name: getattr(run, name) for name in run.__struct_fields__}
    return RunRecord(**(fields | {"parent_run_id": parent_run_id}))


@pytest.mark.parametrize("millisecond", [0, 1, 499, 677, 678, 999])
def test_the_time_of_a_run_is_kept_to_the_millisecond(conn: Connection, millisecond: int) -> None:
    at = AT.replace(microsecond=millisecond * 1000)

    accept(conn, a_run_row(at=at))

    assert stored(conn).accepted_at == at


def test_a_run_is_seen_by_its_principal_only(conn: Connection) -> None:
    accept(conn, a_run_row())

    assert runs.get(conn, a_run_id(), BEN) is None
    assert runs.get(conn, a_run_id(2), ANA) is None
    assert runs.page(conn, BEN, session_id=None, before=None, limit=9, now_ms=NOW_MS) == []
    assert runs.page(conn, BEN, session_id=a_session_id(), before=None, limit=9, now_ms=NOW_MS) == []


def test_the_session_of_a_run_is_known_whoever_owns_it(conn: Connection) -> None:
    accept(conn, a_run_row(), principal=BEN)

    assert runs.session_of(conn, a_run_id()) == a_session_id()
    assert runs.session_of(conn, a_run_id(2)) is None


# -- what a commit changes


def test_a_row_follows_the_state_of_its_run(conn: Connection) -> None:
    accept(conn, a_run_row())
    state = a_state(*a_turn(1, "c1"), a_verdict("c1"), a_tool_start("c1"), a_result("c1"), a_limit(), a_cancel())

    advance(conn, state, last_seq=12, usage=Usage(input_tokens=10, output_tokens=3))
    advance(conn, state, last_seq=13, usage=Usage(input_tokens=5, output_tokens=1))

    run = stored(conn)
    assert (run.status, run.last_seq, run.turns, run.tool_calls) == (RunStatus.IN_PROGRESS, 13, 1, 1)
    assert run.usage == Usage(input_tokens=15, output_tokens=4)
    assert run.limit_reached is LimitKind.MODEL_TURNS
    assert run.cancel_requested
    assert runs.mark(conn, a_run_id()) == RunMark(state.run_seq, None, RunStatus.IN_PROGRESS)


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([*a_turn(1), a_completion()], RunStatus.DONE),
        ([a_failure()], RunStatus.FAILED),
        ([a_cancel(), a_cancellation()], RunStatus.CANCELLED),
    ],
    ids=["done", "failed", "cancelled"],
)
def test_a_run_that_ended_says_how_and_is_held_by_nobody(
    conn: Connection, events: list[RunEvent], status: RunStatus
) -> None:
    accept(conn, a_run_row())
    (lease,) = claim(conn)

    advance(conn, a_state(*events), ended_ms=to_ms(later(5)), reason="so it went")

    run = stored(conn)
    assert (run.status, run.ended_at, run.reason) == (status, later(5), "so it went")
    assert runs.reason_of(conn, a_run_id()) == "so it went"
    assert runs.mark(conn, a_run_id()).lease is None
    assert claim(conn) == []
    with pytest.raises(leases.LeaseLost):
        leases.check(conn, RUNS, lease)


def test_a_run_that_waits_is_held_by_nobody_and_is_not_taken_up(conn: Connection) -> None:
    accept(conn, a_run_row())
    claim(conn)
    waits = a_state(*a_turn(1, "c1"), a_verdict("c1", Verdict.ASK), a_question("c1"))

    advance(conn, waits)

    assert stored(conn).status is RunStatus.WAITING
    assert runs.mark(conn, a_run_id()).lease is None
    assert claim(conn) == []


def test_a_run_that_goes_on_stays_with_its_carrier(conn: Connection) -> None:
    accept(conn, a_run_row())
    (lease,) = claim(conn)

    advance(conn, a_state(*a_turn(1, "c1")))

    assert runs.mark(conn, a_run_id()).lease == lease
    leases.check(conn, RUNS, lease)


def test_a_run_that_has_not_started_is_not_taken_up(conn: Connection) -> None:
    accept(conn, a_run_row(), ready=False)
    assert claim(conn) == []

    advance(conn, a_state())

    assert [lease.item_id for lease in claim(conn)] == [a_run_id()]


def test_a_run_without_a_reason_has_none(conn: Connection) -> None:
    accept(conn, a_run_row())

    assert runs.reason_of(conn, a_run_id()) is None
    assert runs.reason_of(conn, a_run_id(2)) is None


# -- carriers


def test_a_run_is_carried_while_its_lease_lasts(conn: Connection) -> None:
    accept(conn, a_run_row())
    assert not runs.is_leased(conn, a_run_id(), now_ms=NOW)

    (lease,) = claim(conn)

    assert runs.mark(conn, a_run_id()).lease == lease
    assert runs.is_leased(conn, a_run_id(), now_ms=NOW + LENGTH_MS - 1)
    assert not runs.is_leased(conn, a_run_id(), now_ms=NOW + LENGTH_MS)
    leases.release(conn, RUNS, lease)
    assert not runs.is_leased(conn, a_run_id(), now_ms=NOW)


def test_a_carrier_learns_which_of_its_runs_are_to_stop(conn: Connection) -> None:
    for place in range(4):
        accept(conn, a_run_row(place, a_session_id(place), at=later(place)))
    leases.claim(conn, RUNS, owner=ONE, now_ms=NOW, limit=3)
    leases.claim(conn, RUNS, owner="home:two", now_ms=NOW, limit=1)
    for place in (1, 2, 3):
        advance(conn, a_state(a_cancel(), run_id=a_run_id(place)))
    ended = a_state(a_cancel(), a_cancellation(), run_id=a_run_id(2))
    advance(conn, ended, ended_ms=NOW)

    assert runs.cancelled_of(conn, ONE) == [a_run_id(1)]
    assert runs.cancelled_of(conn, "home:two") == [a_run_id(3)]
    assert runs.cancelled_of(conn, "nobody") == []


# -- lists


def test_the_list_has_the_latest_first_and_goes_on_where_it_stopped(conn: Connection) -> None:
    moments = {1: 5, 2: 7, 3: 7, 4: 7, 5: 1, 6: 9}
    for place, moment in moments.items():
        accept(conn, a_run_row(place, a_session_id(place), at=later(moment)))

    seen: list[RunRecord] = []
    before: tuple[int, str] | None = None
    while page := runs.page(conn, ANA, session_id=None, before=before, limit=2, now_ms=NOW_MS):
        seen += page
        before = (to_ms(page[-1].accepted_at), page[-1].run_id)

    assert [run.run_id for run in seen] == [a_run_id(place) for place in (6, 4, 3, 2, 1, 5)]


def test_what_was_accepted_while_the_clock_was_ahead_comes_last(conn: Connection) -> None:
    years = 9 * 365 * 24 * 3600
    for place, moment in {1: 1, 2: years, 3: years + 1, 4: 2}.items():
        accept(conn, a_run_row(place, a_session_id(place), at=later(moment)))

    for limit in (1, 2, 3, 4):
        seen: list[RunRecord] = []
        before: tuple[int, str] | None = None
        while page := runs.page(conn, ANA, session_id=None, before=before, limit=limit, now_ms=NOW_MS):
            seen += page
            before = (to_ms(page[-1].accepted_at), page[-1].run_id)
        assert [run.run_id for run in seen] == [a_run_id(place) for place in (4, 1, 3, 2)]
    assert runs.latest(conn, now_ms=NOW_MS) == a_run_id(4)


def test_the_list_can_be_that_of_one_session(conn: Connection) -> None:
    for place in range(6):
        accept(conn, a_run_row(place, a_session_id(place % 2), at=later(place)))

    page = runs.page(conn, ANA, session_id=a_session_id(1), before=None, limit=2, now_ms=NOW_MS)
    further = runs.page(
        conn,
        ANA,
        session_id=a_session_id(1),
        before=(to_ms(page[-1].accepted_at), page[-1].run_id),
        limit=2,
        now_ms=NOW_MS,
    )

    assert [run.run_id for run in (*page, *further)] == [a_run_id(5), a_run_id(3), a_run_id(1)]


def test_the_open_runs_of_a_session_stand_in_the_order_of_their_places(conn: Connection) -> None:
    sessions.insert(conn, a_session())
    for place, turn in {1: 3, 2: 5, 3: -7, 4: 9}.items():
        accept(conn, a_run_row(place), place=turn)
    sessions.touch(conn, a_session_id(), at_ms=0, active=ActiveRunChanged(a_run_id(1)), messages=0)
    advance(conn, a_state(a_failure(), run_id=a_run_id(2)), ended_ms=NOW)

    assert runs.open_in(conn, a_session_id()) == [(a_run_id(3), False), (a_run_id(1), True), (a_run_id(4), False)]
    assert runs.open_in(conn, a_session_id(2)) == []


def test_an_agent_has_open_runs_until_the_last_has_ended(conn: Connection) -> None:
    assert not runs.open_of_agent(conn, AGENT, ANA)
    for place in (1, 2):
        accept(conn, a_run_row(place, a_session_id(place)))

    for place in (1, 2):
        assert runs.open_of_agent(conn, AGENT, ANA)
        advance(conn, a_state(a_failure(), run_id=a_run_id(place)), ended_ms=NOW)

    assert not runs.open_of_agent(conn, AGENT, ANA)


def test_unfinished_runs_are_counted_by_status(conn: Connection) -> None:
    assert runs.counts(conn) == {}
    for place in range(4):
        accept(conn, a_run_row(place, a_session_id(place)))
    advance(conn, a_state(*a_turn(1, "c1"), run_id=a_run_id(1)))
    advance(conn, a_state(a_failure(), run_id=a_run_id(2)), ended_ms=NOW)

    assert runs.counts(conn) == {"accepted": 2, "in_progress": 1}


def test_a_change_leaves_other_runs_alone(conn: Connection) -> None:
    for place in (1, 2):
        accept(conn, a_run_row(place, a_session_id(place)))
    other = stored(conn, a_run_id(2))

    advance(conn, a_state(a_failure(), run_id=a_run_id(1)), ended_ms=NOW, reason="so it went")

    assert stored(conn, a_run_id(2)) == other
