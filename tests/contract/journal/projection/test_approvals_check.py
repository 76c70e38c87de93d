"""Rows of questions and grants: found when they are wrong, and set right without giving a new right."""

import asyncio
from datetime import timedelta

import msgspec
import pytest

from palyra.core.clock import from_ms
from palyra.core.events import ApprovalDecision, ApprovalRequested, ApprovalResolved, RunEvent
from palyra.core.ids import CallId, RunId
from palyra.core.policy.approval import Approval, ApprovalScope, Grant
from palyra.core.policy.effect import Effect
from palyra.core.tool import Risk, Verdict
from palyra.journal.engines.postgres_engine import PostgresEngine
from palyra.journal.engines.sqlite_engine import SqliteEngine
from palyra.journal.projection import approvals_check, replay_check
from palyra.journal.projection.rebuild import RebuildReport, rebuild
from palyra.journal.projection.replay_check import JournalExamination
from palyra.journal.stores import approvals, grants
from palyra.journal.vault.vault_key import VaultKeySource
from palyra.runs.recording.run_writer import write_from_outside
from palyra.runs.services.approvals import ApprovalService
from palyra.runs.services.sealing import SecretSealer
from palyra.runs.services.secrets import UsedSecrets
from tests.contract.journal.archive.test_rotation import rotate
from tests.contract.journal.builders import a_session_id, an_id
from tests.contract.journal.homes import KeptHome
from tests.support.builders import AGENT, ANA, AT, a_cancel, a_cancellation, a_turn, a_verdict
from tests.support.clock import MovableClock

NOW_MS = 1_800_000_000_000
FIRST, SECOND = a_session_id(1), a_session_id(2)
ALLOWED, DENIED, OPEN, LEFT = (an_id(place) for place in (101, 102, 103, 104))
ALWAYS, SESSION = an_id(201), an_id(202)


def question(call: str, approval_id: str) -> ApprovalRequested:
    return ApprovalRequested(
        at=AT,
        labels=("owner", "web"),
        call_id=CallId(call),
        approval_id=approval_id,
        expires_at=AT + timedelta(days=1),
        tool="shell.run",
        arguments={"command": "make"},
        effect=Effect(risk=Risk.MEDIUM, summary="run make", kind="make"),
        reason="it runs a program",
        policies=("ask", "shell"),
        policy_hash="ab" * 32,
    )


def answer(
    call: str, approval_id: str, decision: ApprovalDecision = ApprovalDecision.ALLOWED, **more: object
) -> ApprovalResolved:
    event = ApprovalResolved(
        at=AT + timedelta(minutes=1), actor=ANA, call_id=CallId(call), approval_id=approval_id, decision=decision
    )
    return msgspec.structs.replace(event, **more)


@pytest.fixture
def kept(fresh_home: KeptHome) -> KeptHome:
    """One session in which questions were answered, one of which is open, and one whose run ended without an answer."""
    kept = fresh_home.begin()
    for place, session_id in ((1, FIRST), (2, SECOND)):
        assert kept.session(place) == session_id
    run_id = kept.run(1, FIRST)
    calls = ("c1", "c2", "c3")
    write(kept, run_id, *a_turn(1, *calls), *(a_verdict(call, Verdict.ASK) for call in calls))
    write(kept, run_id, question("c1", ALLOWED), question("c2", DENIED), question("c3", OPEN))
    write(kept, run_id, answer("c1", ALLOWED, scope=ApprovalScope.ALWAYS, grant_id=ALWAYS, reason="go on"))
    write(kept, run_id, answer("c2", DENIED, ApprovalDecision.DENIED, reason="no"))
    other = kept.run(2, SECOND)
    write(kept, other, *a_turn(1, "c1", "c2"), a_verdict("c1", Verdict.ASK), a_verdict("c2", Verdict.ASK))
    given = answer("c1", an_id(105), scope=ApprovalScope.SESSION, grant_id=SESSION)
    write(kept, other, question("c1", an_id(105)), question("c2", LEFT), given)
    write(kept, other, a_cancel(), a_cancellation())
    kept.anchor()
    return kept


def write(kept: KeptHome, run_id: RunId, *events: RunEvent) -> None:
    kept.write(lambda conn: write_from_outside(conn, run_id, lambda state, _: events, ids=kept.ids, now_ms=0))


def examined(kept: KeptHome) -> JournalExamination:
    return replay_check.examine(kept.home, kept.settings)


def rebuilt(kept: KeptHome) -> RebuildReport:
    return rebuild(_Writing(kept), folder=kept.home.path, now_ms=NOW_MS)


class _Writing:
    def __init__(self, kept: KeptHome) -> None:
        self.write = kept.write


def questions(kept: KeptHome) -> dict[str, Approval | None]:
    with kept.reading() as conn:
        return {**approvals.of_session(conn, FIRST), **approvals.of_session(conn, SECOND)}


def valid(kept: KeptHome) -> list[str]:
    with kept.reading() as conn:
        return [grant.grant_id for grant in grants.valid(conn, ANA, AGENT, now_ms=NOW_MS)]


def grant(kept: KeptHome, grant_id: str) -> Grant | None:
    with kept.reading() as conn:
        return grants.stored(conn, grant_id)


def test_what_was_asked_and_answered_is_what_the_tapes_add_up_to(kept: KeptHome) -> None:
    decisions = {approval_id: row.decision for approval_id, row in questions(kept).items() if row is not None}
    assert (decisions[ALLOWED], decisions[DENIED], decisions[OPEN], decisions[LEFT]) == (
        "allowed",
        "denied",
        None,
        "withdrawn",
    )
    assert valid(kept) == [ALWAYS, SESSION]
    assert examined(kept).ok
    assert rebuilt(kept).differed == 0


@pytest.mark.parametrize(
    ("harm", "wrong"),
    [
        (f"DELETE FROM approvals WHERE approval_id = '{OPEN}'", 1),
        ("DELETE FROM approvals", 5),
        (f"UPDATE approvals SET decision = 'allowed', scope = 'once' WHERE approval_id = '{DENIED}'", 1),
        (f"UPDATE approvals SET decision = NULL WHERE approval_id = '{LEFT}'", 1),
        (f"UPDATE approvals SET principal = 'user:ben' WHERE approval_id = '{OPEN}'", 1),
        ("UPDATE approvals SET answered_by = 'user:ben' WHERE answered_by = 'user:ana'", 3),
        (f"UPDATE approvals SET arguments = '{{}}' WHERE approval_id = '{OPEN}'", 1),
        (f"UPDATE approvals SET effect = 'nonsense' WHERE approval_id = '{OPEN}'", 1),
        (f"UPDATE approvals SET expires_ms = expires_ms + 1 WHERE approval_id = '{OPEN}'", 1),
        (f"UPDATE approvals SET approval_id = 'x' WHERE approval_id = '{OPEN}'", 2),
        (f"UPDATE approvals SET session_id = '{an_id(9)}' WHERE approval_id = '{OPEN}'", 1),
    ],
)
def test_a_question_that_is_wrong_is_named_and_set_right(kept: KeptHome, harm: str, wrong: int) -> None:
    before = questions(kept)
    kept.change(harm)

    found = examined(kept)
    done = rebuilt(kept)

    assert found.report.ok
    assert any("approval" in problem.what for problem in found.rows)
    assert (done.questions, done.grants, done.runs, done.conversations) == (wrong, 0, 0, 0)
    assert questions(kept) == before
    assert examined(kept).ok


@pytest.mark.parametrize(
    "harm",
    [
        f"DELETE FROM grants WHERE grant_id = '{ALWAYS}'",
        f"UPDATE grants SET tool = 'files.write' WHERE grant_id = '{ALWAYS}'",
        f"UPDATE grants SET kind = '' WHERE grant_id = '{ALWAYS}'",
        f"UPDATE grants SET label = 'other' WHERE grant_id = '{ALWAYS}'",
        f"UPDATE grants SET agent_id = 'another' WHERE grant_id = '{ALWAYS}'",
        f"UPDATE grants SET expires_ms = 1 WHERE grant_id = '{ALWAYS}'",
        f"UPDATE grants SET scope = 'nonsense' WHERE grant_id = '{ALWAYS}'",
    ],
)
def test_a_grant_that_is_missing_or_wrong_comes_back_taken_back(kept: KeptHome, harm: str) -> None:
    before = grant(kept, ALWAYS)
    assert before is not None
    kept.change(harm)

    (problem,) = examined(kept).rows
    assert problem.what == f"the row of grant {ALWAYS} does not match its approval"
    assert rebuilt(kept).grants == 1

    assert grant(kept, ALWAYS) == msgspec.structs.replace(before, revoked_at=from_ms(NOW_MS))
    assert valid(kept) == [SESSION]
    assert examined(kept).ok
    assert rebuilt(kept).differed == 0


def test_a_grant_that_was_taken_back_stays_so(kept: KeptHome) -> None:
    kept.write(lambda conn: grants.revoke(conn, ALWAYS, at_ms=1_790_000_000_000))

    assert examined(kept).ok
    assert rebuilt(kept).differed == 0
    kept.change(f"UPDATE grants SET kind = 'rm' WHERE grant_id = '{ALWAYS}'")
    assert rebuilt(kept).grants == 1

    found = grant(kept, ALWAYS)
    assert found is not None
    assert (found.kind, found.revoked_at) == ("make", from_ms(1_790_000_000_000))
    assert valid(kept) == [SESSION]


def take_back(kept: KeptHome, *grant_ids: str) -> None:
    """Take grants back as a person does."""

    async def revoke() -> None:
        engine = PostgresEngine(kept.url) if kept.url is not None else SqliteEngine(kept.home.journal)
        seals = SecretSealer(engine, VaultKeySource(kept.home.vault_key), clock=MovableClock(), used=UsedSecrets())
        doors = ApprovalService(engine, clock=MovableClock(), ids=kept.ids, seals=seals)
        try:
            for grant_id in grant_ids:
                await doors.revoke(ANA, grant_id)
        finally:
            await engine.close()

    kept.let_go()
    asyncio.run(revoke())


def noted(kept: KeptHome) -> list[tuple[str, str]]:
    """Return which tapes say that which grants were taken back."""
    with kept.reading() as conn:
        rows = conn.fetch("SELECT session_id, content FROM tape WHERE kind = 'grant_revoked' ORDER BY session_id")
    return [(row[0], msgspec.json.decode(row[1])["grant_id"]) for row in rows]


@pytest.mark.parametrize("time", ["NULL", "1"])
def test_a_grant_that_was_taken_back_can_not_be_given_back_in_the_database(kept: KeptHome, time: str) -> None:
    take_back(kept, ALWAYS, ALWAYS, SESSION)
    before = grant(kept, ALWAYS)
    assert noted(kept) == [(FIRST, ALWAYS), (SECOND, SESSION)]
    assert examined(kept).ok
    assert rebuilt(kept).differed == 0

    kept.change(f"UPDATE grants SET revoked_ms = {time} WHERE grant_id = '{ALWAYS}'")

    (problem,) = examined(kept).rows
    assert problem.what == f"the row of grant {ALWAYS} does not match its approval"
    assert rebuilt(kept).grants == 1
    assert grant(kept, ALWAYS) == before
    assert valid(kept) == []
    assert examined(kept).ok


def test_a_grant_that_nobody_gave_is_named_and_removed(kept: KeptHome) -> None:
    kept.change(
        "INSERT INTO grants (grant_id, principal, agent_id, tool, kind, policy_hash, label, scope, granted_ms) VALUES"
        f" ('forged', 'user:ana', '{AGENT}', 'shell.run', 'rm', '{'ab' * 32}', 'web', 'always', 1)"
    )

    (problem,) = examined(kept).rows
    assert problem.what == "grant forged has no approval"
    assert rebuilt(kept).grants == 1

    assert grant(kept, "forged") is None
    assert valid(kept) == [ALWAYS, SESSION]
    assert examined(kept).ok


def test_a_question_from_before_there_were_rows_needs_none(kept: KeptHome) -> None:
    run_id = kept.run(3, SECOND)
    old = msgspec.structs.replace(question("c1", an_id(300)), tool="", effect=None)
    write(kept, run_id, *a_turn(1, "c1"), a_verdict("c1", Verdict.ASK))
    write(kept, run_id, old)
    kept.change(f"DELETE FROM approvals WHERE approval_id = '{an_id(300)}'")

    assert examined(kept).ok
    assert rebuilt(kept).differed == 0


# -- after their tape was moved away


@pytest.fixture
def moved(kept: KeptHome) -> KeptHome:
    kept.archive(SECOND)
    kept.anchor()
    rotate(kept)
    assert [row[0] for row in kept.rows("SELECT session_id FROM rotated")] == [SECOND]
    return kept


def test_questions_and_grants_of_a_tape_in_the_archive_hold(moved: KeptHome) -> None:
    assert examined(moved).ok
    assert rebuilt(moved).differed == 0
    assert valid(moved) == [ALWAYS, SESSION]


def test_a_grant_whose_tape_is_in_the_archive_is_taken_back_all_the_same(moved: KeptHome) -> None:
    take_back(moved, SESSION)
    assert valid(moved) == [ALWAYS]
    assert noted(moved) == []
    assert examined(moved).ok
    assert rebuilt(moved).differed == 0
    assert valid(moved) == [ALWAYS]


def test_what_was_taken_back_before_its_tape_went_to_the_archive_is_known_there(kept: KeptHome) -> None:
    take_back(kept, SESSION)
    kept.archive(SECOND)
    kept.anchor()
    rotate(kept)
    assert examined(kept).ok
    kept.change(f"UPDATE grants SET revoked_ms = NULL WHERE grant_id = '{SESSION}'")

    assert not examined(kept).ok
    assert rebuilt(kept).grants == 1
    assert valid(kept) == [ALWAYS]


@pytest.mark.parametrize(
    ("harm", "differed"),
    [
        (f"UPDATE grants SET kind = 'rm' WHERE grant_id = '{SESSION}'", (0, 1)),
        (f"DELETE FROM grants WHERE grant_id = '{SESSION}'", (0, 1)),
        (f"UPDATE approvals SET decision = 'allowed' WHERE approval_id = '{LEFT}'", (1, 0)),
        (f"DELETE FROM approvals WHERE session_id = '{SECOND}'", (2, 0)),
    ],
)
def test_what_was_changed_of_them_is_set_right_by_the_archive(
    moved: KeptHome, harm: str, differed: tuple[int, int]
) -> None:
    before = questions(moved)
    moved.change(harm)

    assert not examined(moved).ok
    done = rebuilt(moved)

    assert (done.questions, done.grants) == differed
    assert questions(moved) == before
    assert examined(moved).ok


def test_while_the_archive_can_not_be_read_no_grant_is_held_to_be_forged(moved: KeptHome) -> None:
    (file,) = (moved.home.path / row[0] for row in moved.rows("SELECT file FROM rotated"))
    file.rename(file.with_suffix(".away"))

    assert examined(moved).rows == ()
    assert rebuilt(moved).differed == 0
    assert valid(moved) == [ALWAYS, SESSION]


def test_many_answers_are_read_in_slices(kept: KeptHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals_check, "SLICE", 1)

    assert examined(kept).ok
