"""The projection's table: every kind of event has a rule, or is known to have no rows."""

from typing import get_args

from palyra.core.events import RunEvent
from palyra.core.ids import PrincipalId, RunId, SessionId
from palyra.core.policy.approval import Approval
from palyra.core.projection.project import NO_CHANGES, WITH_ROWS, WITHOUT_ROWS, project
from palyra.core.projection.session_rows import SessionRows
from palyra.core.run.machine import evolve
from palyra.core.session_events import SessionEvent
from tests.support.builders import SESSION, a_context, a_run, a_text, a_turn_start


class NoRows:
    """Rows that must not be read."""

    session_id: SessionId = SESSION

    def accepted(self, run_id: RunId) -> object:
        raise AssertionError

    def approval(self, approval_id: str, principal: PrincipalId) -> Approval | None:
        raise AssertionError


def test_every_kind_of_event_has_a_rule_or_is_known_to_have_no_rows() -> None:
    assert not WITH_ROWS & WITHOUT_ROWS
    assert {*get_args(RunEvent), *get_args(SessionEvent)} == WITH_ROWS | WITHOUT_ROWS


def test_a_piece_of_text_makes_nothing_and_reads_nothing() -> None:
    before = a_run(a_context(), a_turn_start())
    assert project(NoRows(), 7, a_text(), before, evolve(before, a_text())) is NO_CHANGES  # type: ignore[arg-type]


def test_rows_of_an_empty_tape_are_those_of_a_session_without_messages() -> None:
    rows = SessionRows(SESSION).fold_all([])
    assert rows.session == {"reset_count": 0, "reset_seq": 0, "active_run_id": None, "message_count": 0}
    assert (rows.runs, rows.approvals, rows.grants, rows.turns, rows.warnings) == ({}, {}, {}, {}, [])
