"""What is told of the turns of a run."""

from collections.abc import Iterator

import pytest

from palyra.cli.providers.explain import explained
from palyra.core.events import RunEvent
from palyra.gateway.client.tape_stream import ReceivedEntry
from tests.support.builders import a_cancellation, a_completion, a_resume, a_turn_end, a_turn_start, a_void


def a_tape(*events: RunEvent) -> Iterator[ReceivedEntry]:
    for place, event in enumerate(events, start=1):
        yield ReceivedEntry(
            session_id="s1",
            run_id="r1",
            tape_seq=place,
            run_seq=place,
            kind="",
            at=event.at,
            event=event,
            text="",
        )


def test_a_turn_that_the_daemon_did_not_outlive_is_void() -> None:
    tape = a_tape(a_turn_start(1), a_resume(), a_turn_start(2), a_turn_end(2), a_completion())
    (first, then), _ = explained(tape)
    assert (first.outcome, first.error) == ("discarded", "the daemon stopped during the turn")
    assert then.outcome == "answered"


def test_a_turn_in_which_the_run_was_cancelled_is_void() -> None:
    (turn,), _ = explained(a_tape(a_turn_start(), a_cancellation()))
    assert (turn.outcome, turn.error) == ("discarded", "the run was cancelled during the turn")


@pytest.mark.parametrize(("ended", "outcome"), [(a_turn_end(), "answered"), (a_void(), "discarded")])
def test_what_came_of_a_turn_is_not_changed_by_what_comes_later(ended: RunEvent, outcome: str) -> None:
    (turn,), _ = explained(a_tape(a_turn_start(), ended, a_resume(), a_cancellation()))
    assert turn.outcome == outcome


def test_a_turn_under_way_is_open() -> None:
    (turn,), _ = explained(a_tape(a_turn_start()))
    assert turn.outcome == "open"
