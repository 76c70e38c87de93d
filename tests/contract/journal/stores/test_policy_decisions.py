"""Calls that were put before the policy, on either engine."""

from palyra.core.clock import to_ms
from palyra.core.tool import Verdict
from palyra.journal.engines.base import Connection
from palyra.journal.stores import policy_decisions
from tests.contract.journal.builders import BEN, a_run_id, a_run_row, accept, begin, later, write_down_of
from tests.support.builders import AGENT, ANA, AT, a_steer, a_turn, a_verdict, an_accepted


def test_calls_are_read_back_the_latest_run_first(conn: Connection) -> None:
    for place, principal in ((1, ANA), (2, BEN), (3, ANA)):
        session_id = begin(conn, place)
        accept(conn, a_run_row(place, session_id, at=later(place)), principal=principal)
        verdicts = [a_verdict(f"{place}a", Verdict.ASK), a_verdict(f"{place}b")]
        write_down_of(conn, session_id, a_run_id(place), *a_turn(1, f"{place}a", f"{place}b"), *verdicts)
    accept(conn, a_run_row(4, begin(conn, 4), at=later(4)))

    found = list(policy_decisions.decided(conn))

    assert [call.proposed.call_id for call in found] == ["3a", "3b", "2a", "2b", "1a", "1b"]
    assert [call.decided.verdict for call in found[:2]] == [Verdict.ASK, Verdict.ALLOW]
    assert {call.run_id: call.principal for call in found} == {a_run_id(3): ANA, a_run_id(2): BEN, a_run_id(1): ANA}
    assert {call.agent_id for call in found} == {AGENT}
    since = to_ms(AT) + 2
    assert [call.proposed.call_id for call in policy_decisions.decided(conn, since_ms=since)] == [
        "3a",
        "3b",
        "2a",
        "2b",
    ]


def test_every_run_is_read_however_many_there_are(conn: Connection) -> None:
    count = policy_decisions.PAGE_RUNS + 3
    session_id = begin(conn)
    for place in range(count):
        accept(conn, a_run_row(place, session_id), place=place)
        write_down_of(conn, session_id, a_run_id(place), *a_turn(1, f"c{place}"), a_verdict(f"c{place}"))
    assert len({call.run_id for call in policy_decisions.decided(conn)}) == count


def test_a_call_comes_with_the_channels_of_its_run_by_then(conn: Connection) -> None:
    session_id = begin(conn)
    accept(conn, a_run_row(1, session_id))
    events = [an_accepted(origin="grpc"), *a_turn(1, "a"), a_verdict("a"), a_steer(origin="http")]
    write_down_of(conn, session_id, a_run_id(1), *events, *a_turn(2, "b"), a_verdict("b"))
    accept(conn, a_run_row(2, session_id), place=2)
    write_down_of(conn, session_id, a_run_id(2), an_accepted(origin="http"))
    found = {call.proposed.call_id: call.channels for call in policy_decisions.decided(conn)}
    assert found == {"a": ("grpc",), "b": ("grpc", "http")}
