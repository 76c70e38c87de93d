"""What a candidate set of policies has found, as rows: counted by clause, with a few examples, and never more."""

from datetime import timedelta

from palyra.core.ids import CallId, RunId
from palyra.core.policy.policy_shadow import DecisionDifference, PolicyFile, ShadowPolicy
from palyra.core.tool import Risk, Verdict
from palyra.journal.engines.base import Connection
from palyra.journal.stores import policy_shadows
from palyra.journal.stores.policy_shadows import EXAMPLES, MAX_CLAUSES
from tests.support.builders import ANA, AT, RUN, SESSION

FILES = (PolicyFile(name="/new/a.cedar", text="permit (principal, action, resource);"),)


def a_shadow(name: str = "s1", *, minutes: int = 0) -> ShadowPolicy:
    started_at = AT + timedelta(minutes=minutes)
    return ShadowPolicy(
        shadow_id=name, hash=f"hash of {name}", files=("/new/a.cedar",), started_at=started_at, started_by=ANA
    )


def a_flip(number: int, *, would: Verdict = Verdict.ALLOW, by: str = "open-house") -> DecisionDifference:
    return DecisionDifference(
        call_id=CallId(f"call {number:04}"),
        tool="pen.write",
        risk=Risk.MEDIUM,
        principal=ANA,
        session_id=SESSION,
        run_id=RunId(RUN),
        at=AT + timedelta(seconds=number),
        was=Verdict.ASK,
        was_by=("changes-ask",),
        was_reason="It may change something.",
        was_hash="old",
        would=would,
        would_by=(by,),
        would_reason="Come in.",
    )


def test_a_candidate_is_kept_whole_until_the_next_one_begins(conn: Connection) -> None:
    assert policy_shadows.latest(conn) is None
    assert policy_shadows.current_id(conn) is None
    policy_shadows.begin(conn, a_shadow(), FILES)
    assert policy_shadows.latest(conn) == (a_shadow(), FILES)
    assert policy_shadows.add(conn, "s1", [a_flip(1)], judged=3)
    policy_shadows.begin(conn, a_shadow("s2", minutes=1), FILES)
    assert policy_shadows.current_id(conn) == "s2"
    assert policy_shadows.latest(conn) == (a_shadow("s2", minutes=1), FILES)
    assert policy_shadows.clauses(conn, "s1") == []
    # Whoever still works with the one before is told that it is gone.
    assert not policy_shadows.add(conn, "s1", [a_flip(2)], judged=1)
    assert policy_shadows.clauses(conn, "s1") == []


def test_what_differs_is_counted_by_clause_with_the_latest_as_examples(conn: Connection) -> None:
    policy_shadows.begin(conn, a_shadow(), FILES)
    many = EXAMPLES + 4
    policy_shadows.add(conn, "s1", [a_flip(number) for number in range(many)], judged=20)
    policy_shadows.add(conn, "s1", [a_flip(100, would=Verdict.DENY, by="closed")], judged=1)
    often, once = policy_shadows.clauses(conn, "s1")
    assert (often.calls, often.was, often.would, often.would_by) == (many, Verdict.ASK, Verdict.ALLOW, ("open-house",))
    assert often.examples == tuple(a_flip(number) for number in range(many - 1, many - 1 - EXAMPLES, -1))
    assert (often.first_at, often.last_at) == (a_flip(0).at, a_flip(many - 1).at)
    assert (once.calls, once.would_by, once.examples) == (
        1,
        ("closed",),
        (a_flip(100, would=Verdict.DENY, by="closed"),),
    )
    latest = policy_shadows.latest(conn)
    assert latest is not None
    assert (latest[0].judged, latest[0].flipped) == (21, many + 1)


def test_there_are_never_more_clauses_than_so_many_and_no_call_is_lost(conn: Connection) -> None:
    policy_shadows.begin(conn, a_shadow(), FILES)
    flips = [a_flip(number, by=f"policy-{number}") for number in range(MAX_CLAUSES + 10)]
    policy_shadows.add(conn, "s1", flips, judged=len(flips))
    policy_shadows.add(conn, "s1", [a_flip(9000, by="policy-0")], judged=1)
    found = policy_shadows.clauses(conn, "s1")
    assert len(found) == MAX_CLAUSES + 1
    assert sum(clause.calls for clause in found) == len(flips) + 1
    (rest,) = [clause for clause in found if not clause.would_by]
    assert (rest.calls, len(rest.examples)) == (10, EXAMPLES)


def test_one_that_was_stopped_counts_no_more_and_is_still_there(conn: Connection) -> None:
    policy_shadows.begin(conn, a_shadow(), FILES)
    policy_shadows.add(conn, "s1", [], judged=2, failed=1, failure="out of ink")
    policy_shadows.end(conn, by="user:ben", at_ms=5_000)
    assert policy_shadows.current_id(conn) is None
    assert not policy_shadows.add(conn, "s1", [a_flip(1)], judged=1)
    found = policy_shadows.latest(conn)
    assert found is not None
    assert (found[0].stopped_by, found[0].judged, found[0].failed, found[0].failure) == ("user:ben", 2, 1, "out of ink")
