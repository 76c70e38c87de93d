"""The ledger's rows: found when they are not what the tapes say, and set right; sums by whatever is asked for."""

from datetime import timedelta

import msgspec
import pytest

from palyra.core.events import ModelTurnEnded, ModelTurnStarted, RunEvent
from palyra.core.ids import RunId
from palyra.core.model.prompt import StopReason
from palyra.core.projection.ledger import Account
from palyra.core.spending.budget import Reservation
from palyra.core.spending.usage import Usage
from palyra.core.spending.usage_report import UsageGrouping
from palyra.journal.ledger import accounts, turns
from palyra.journal.projection import replay_check
from palyra.journal.projection.rebuild import RebuildReport, rebuild
from palyra.runs.recording.run_writer import write_from_outside
from tests.contract.journal.archive.test_rotation import rotate
from tests.contract.journal.builders import BEN, a_session_id
from tests.contract.journal.homes import KeptHome
from tests.support.builders import ANA, AT, a_cancel, a_cancellation, a_context, a_resume, a_warning

NOW_MS = 1_800_000_000_000
DAY = Account("everything", f"{AT:%Y-%m-%d}")


def a_start(turn: int, model: str = "large") -> ModelTurnStarted:
    reserved = Reservation(input_tokens=10, output_tokens=20, cost_micros=300)
    return ModelTurnStarted(at=AT, turn=turn, provider="acme", model=model, reserved=reserved)


def an_end(turn: int) -> ModelTurnEnded:
    took = Usage(input_tokens=9, output_tokens=3, cached_tokens=4)
    return ModelTurnEnded(at=AT, turn=turn, stop=StopReason.END, usage=took, cost_micros=33)


@pytest.fixture
def kept(fresh_home: KeptHome) -> KeptHome:
    """A run with a turn that was left open and one that ended, one whose turn is open, and an account of the day."""
    kept = fresh_home.begin()
    kept.write(lambda conn: accounts.lock_balances(conn, [DAY], at=AT, new_run=None))
    first = kept.run(1, kept.session(1))
    write(kept, first, a_warning(), a_context(), a_start(1), a_resume(), a_context(), a_start(2, "small"), an_end(2))
    second = kept.run(2, kept.session(2))
    write(kept, second, a_context(), a_start(1))
    kept.anchor()
    return kept


def write(kept: KeptHome, run_id: RunId, *events: RunEvent) -> None:
    kept.write(lambda conn: write_from_outside(conn, run_id, lambda state, _: events, ids=kept.ids, now_ms=0))


def problems(kept: KeptHome) -> list[str]:
    found = replay_check.examine(kept.home, kept.settings)
    return [problem.what for problem in found.rows]


def rebuilt(kept: KeptHome) -> RebuildReport:
    return rebuild(_Writing(kept), folder=kept.home.path, now_ms=NOW_MS)


class _Writing:
    def __init__(self, kept: KeptHome) -> None:
        self.write = kept.write


def test_the_rows_are_what_the_tapes_say(kept: KeptHome) -> None:
    assert problems(kept) == []
    assert rebuilt(kept).differed == 0
    amount = kept.write(lambda conn: accounts.read_balances(conn, [DAY], at=AT))[DAY]
    assert (amount.settled_micros, amount.reserved_micros) == (300 + 33, 300)
    assert (amount.settled_tokens, amount.reserved_tokens) == (30 + 12, 30)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE usage SET micros = 0 WHERE micros = 33", "do not match its tape"),
        ("UPDATE usage SET state = 'settled' WHERE state = 'reserved'", "do not match its tape"),
        ("DELETE FROM usage WHERE turn = 2", "do not match its tape"),
        ("UPDATE usage SET root_run_id = 'another'", "which does not exist"),
        ("UPDATE spending SET settled_micros = 1", "is not the sum of its turns"),
        ("DELETE FROM budget_warnings", "the row for the warning of budget daily is missing"),
        ("UPDATE budget_warnings SET run_id = 'another'", "a warning of budget daily that was not given"),
        ("UPDATE budget_warnings SET at_ms = 7", "a warning of budget daily that was not given"),
        ("UPDATE budget_warnings SET period = '1999'", "the row for the warning of budget daily is missing"),
    ],
)
def test_a_row_that_was_changed_is_found_and_set_right(kept: KeptHome, change: str, said: str) -> None:
    kept.let_go()
    kept.change(change)
    assert any(said in what for what in problems(kept))
    rebuilt(kept)
    assert problems(kept) == []
    amount = kept.write(lambda conn: accounts.read_balances(conn, [DAY], at=AT))[DAY]
    assert (amount.settled_micros, amount.reserved_micros) == (300 + 33, 300)


def test_turns_from_before_there_was_a_ledger_are_no_fault_and_a_rebuild_adds_them(kept: KeptHome) -> None:
    run_id = kept.run(3, kept.session(3))
    before = msgspec.structs.replace(a_start(1), reserved=None)
    write(kept, run_id, a_context(), before, an_end(1))
    kept.let_go()
    kept.change(f"DELETE FROM usage WHERE run_id = '{run_id}'")
    kept.change("DELETE FROM spending")
    assert problems(kept) == []
    assert rebuilt(kept).used == 1
    assert kept.rows(f"SELECT micros, state FROM usage WHERE run_id = '{run_id}'") == [(33, "settled")]


def test_what_was_spent_outlives_the_tape_it_stands_on(kept: KeptHome) -> None:
    run_id = kept.run(4, kept.session(4))
    write(kept, run_id, a_context(), a_start(1), an_end(1), a_cancel(), a_cancellation())
    kept.archive(a_session_id(4))
    kept.anchor()
    kept.let_go()
    before = kept.rows("SELECT COUNT(*) FROM usage")
    rotate(kept)
    assert kept.rows(f"SELECT COUNT(*) FROM tape WHERE session_id = '{a_session_id(4)}'") == [(0,)]
    assert kept.rows("SELECT COUNT(*) FROM usage") == before
    assert problems(kept) == []
    assert rebuilt(kept).used == 0


def test_usage_is_added_up_by_whatever_is_asked_for(kept: KeptHome) -> None:
    with kept.reading() as conn:
        by = {each: turns.sum_by(conn, each, ANA, since_ms=0, limit=10) for each in UsageGrouping}
        assert [(row.name, row.used.turns, row.used.micros) for row in by[UsageGrouping.MODEL]] == [
            ("acme/large", 2, 300),
            ("acme/small", 1, 33),
        ]
        assert by[UsageGrouping.MODEL][0].used.reserved_micros == 300
        assert (by[UsageGrouping.MODEL][0].used.estimated, by[UsageGrouping.MODEL][0].used.discarded) == (1, 1)
        assert [row.name for row in by[UsageGrouping.DAY]] == [f"{AT:%Y-%m-%d}"]
        assert [row.name for row in by[UsageGrouping.PRINCIPAL]] == [str(ANA)]
        assert len(by[UsageGrouping.RUN]) == len(by[UsageGrouping.SESSION]) == 2
        for rows in by.values():
            assert sum(row.used.output_tokens for row in rows) == 23
        assert turns.total(conn, BEN, since_ms=0).turns == 0
        assert turns.total(conn, None, since_ms=0).turns == 3
        later = turns.total(conn, ANA, since_ms=int((AT + timedelta(seconds=1)).timestamp() * 1000))
        assert later.turns == 0
        causes = turns.causes(conn, ANA, since_ms=0)
        assert {(one.cause, one.step, one.used.turns) for one in causes} == {("api", "input", 2), ("api", "retry", 1)}


def test_an_account_that_was_swept_away_is_added_up_again(kept: KeptHome) -> None:
    assert kept.write(lambda conn: accounts.sweep(conn, now_ms=0)) == 0
    assert kept.write(lambda conn: accounts.sweep(conn, now_ms=NOW_MS)) == 1
    amount = kept.write(lambda conn: accounts.lock_balances(conn, [DAY], at=AT, new_run=None))[DAY]
    assert (amount.settled_micros, amount.reserved_micros) == (333, 300)
