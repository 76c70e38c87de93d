"""Calls as the tape remembers them."""

from palyra.core.events import PolicyDecided
from palyra.core.ids import CallId
from palyra.core.run.decided_calls import decided_calls
from palyra.core.tool import Verdict
from tests.support import builders as b


def test_a_call_is_found_with_the_first_decision_about_it() -> None:
    events = [
        *b.a_turn(1, "c1", "c2"),
        b.a_verdict("c2", Verdict.ASK),
        b.a_verdict("c1"),
        b.a_question("c2"),
        b.a_verdict("c2", Verdict.ALLOW),
    ]
    found = [(proposed.call_id, decided.verdict) for proposed, decided, _ in decided_calls(events)]
    assert found == [("c2", Verdict.ASK), ("c1", Verdict.ALLOW)]


def test_a_call_that_never_came_before_the_policy_is_left_out() -> None:
    unfit = PolicyDecided(at=b.AT, call_id=CallId("c1"), verdict=Verdict.DENY, risk=None, reason="unfit")
    assert list(decided_calls([*b.a_turn(1, "c1", "c2"), unfit])) == []


def test_a_call_has_the_channels_by_which_words_had_come_in_when_it_was_decided() -> None:
    events = [
        b.an_accepted(origin="grpc"),
        *b.a_turn(1, "c1"),
        b.a_verdict("c1"),
        b.a_steer(origin="http"),
        *b.a_turn(2, "c2"),
        b.a_verdict("c2"),
    ]
    assert [(call.call_id, channels) for call, _, channels in decided_calls(events)] == [
        ("c1", ("grpc",)),
        ("c2", ("grpc", "http")),
    ]
    without = [*b.a_turn(1, "c1"), b.a_verdict("c1")]
    assert [channels for _, _, channels in decided_calls(without)] == [()]
