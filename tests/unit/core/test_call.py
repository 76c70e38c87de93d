"""Calls as the tape remembers them."""

from palyra.core.call import decisions
from palyra.core.events import PolicyDecided
from palyra.core.ids import CallId
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
    found = [(proposed.call_id, decided.verdict) for proposed, decided in decisions(events)]
    assert found == [("c2", Verdict.ASK), ("c1", Verdict.ALLOW)]


def test_a_call_that_never_came_before_the_policy_is_left_out() -> None:
    unfit = PolicyDecided(at=b.AT, call_id=CallId("c1"), verdict=Verdict.DENY, risk=None, reason="unfit")
    assert list(decisions([*b.a_turn(1, "c1", "c2"), unfit])) == []
