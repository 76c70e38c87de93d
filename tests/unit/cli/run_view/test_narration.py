"""What a person is told of a run."""

from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from palyra.cli.run_view.approval_prompt import ApprovalPrompt
from palyra.cli.run_view.narration import (
    AnswerText,
    ApprovalSettled,
    AttemptDiscarded,
    Narrator,
    Notice,
    OtherInput,
    Piece,
    RunEnded,
    ToolStepEnded,
    ToolStepStarted,
    TurnEnded,
)
from palyra.core.events import ApprovalDecision, RunAccepted, TapeEvent
from palyra.core.limits import Limits
from palyra.core.policy.approval import ApprovalScope
from palyra.core.policy.effect import Effect
from palyra.core.session_events import SessionReset
from palyra.core.tool import CallOutcome, Risk, Verdict
from palyra.runs.event_text import label_of
from tests.support import builders as b
from tests.support.builders import RUN
from tests.unit.cli.wire import line


def told(*events: TapeEvent, narrator: Narrator | None = None) -> list[Piece]:
    narrator = narrator or Narrator()
    return [piece for event in events for piece in narrator.pieces_of(line(event))]


def test_an_answer_is_told_as_it_comes() -> None:
    assert told(b.a_turn_start(), b.a_text(text="He"), b.a_text(text="llo"), b.a_turn_end(), b.a_completion()) == [
        AnswerText("He"),
        AnswerText("llo"),
        TurnEnded(is_answer=True),
        RunEnded(RUN, "done"),
    ]


def test_a_question_that_is_asked_once_more_is_told_with_its_call() -> None:
    accepted = replace(b.an_accepted(reissue=b.a_reissue()), text="Ask me again.")
    proposed = replace(b.a_proposal(0, "c1"), arguments={"command": "make"})
    pieces = told(accepted, b.a_start(), proposed, b.a_verdict("c1", Verdict.ASK), b.a_question("c1"))
    assert pieces[0] == OtherInput("Ask me again.")
    assert isinstance(pieces[1], ApprovalPrompt)
    answered = told(proposed, b.an_answer("c1", ApprovalDecision.ALLOWED), b.a_tool_start("c1"), b.a_result("c1"))
    assert ToolStepStarted("c1", "shell make") in answered


def test_an_answer_from_elsewhere_is_told_with_how_long_it_holds_and_what_it_changed() -> None:
    proposed = replace(b.a_proposal(0, "c1"), arguments={"command": "make"})
    allowed = b.an_answer("c1", ApprovalDecision.ALLOWED)
    other = replace(allowed, scope=ApprovalScope.SESSION, arguments={"command": "make test"})
    assert told(proposed, allowed)[0] == Notice("(shell make: allowed)")
    assert told(proposed, other)[0] == Notice(
        '(shell make: allowed for this session with changed arguments, {"command": "make test"})'
    )
    assert told(proposed, replace(allowed, scope=ApprovalScope.ALWAYS))[0] == Notice("(shell make: allowed always)")
    until = replace(allowed, scope=ApprovalScope.TIMEBOXED, until=datetime(2026, 1, 2, 3, 4, tzinfo=UTC))
    assert "allowed until 2026-01-0" in str(told(proposed, until)[0])


def test_words_before_a_tool_are_no_answer() -> None:
    assert TurnEnded(is_answer=False) in told(*b.a_turn(1, "c1", text="Let me look."))


def test_a_tool_is_told_from_its_start_to_its_end() -> None:
    pieces = told(*b.a_turn(1, "c1", text=""), b.a_verdict("c1"), b.a_tool_start("c1"), b.a_result("c1"))
    assert pieces == [ToolStepStarted("c1", "shell"), ToolStepEnded("c1", "shell", "ok")]


def test_a_tool_that_went_wrong_says_why() -> None:
    pieces = told(b.a_proposal(1, "c1"), b.a_tool_start("c1"), b.a_result("c1", CallOutcome.ERROR))
    assert pieces[-1] == ToolStepEnded("c1", "shell", "error", "so it went")


def test_a_denied_call_is_told() -> None:
    pieces = told(b.a_proposal(1, "c1"), b.a_verdict("c1", Verdict.DENY))
    assert pieces == [ToolStepEnded("c1", "shell", "denied", "so says the policy")]


def test_an_interrupted_answer_is_told_when_it_begins_again() -> None:
    broken: list[TapeEvent] = [b.a_turn_start(1), b.a_text(1), b.a_void(1)]
    assert AttemptDiscarded() not in told(*broken)
    assert AttemptDiscarded() in told(*broken, b.a_turn_start(2))


def test_an_answer_that_a_restart_cut_off_counts_as_interrupted() -> None:
    assert AttemptDiscarded() in told(b.a_turn_start(1), b.a_text(1), b.a_resume(), b.a_turn_start(2))


def test_an_interrupted_turn_that_said_nothing_is_not_taken_back() -> None:
    assert AttemptDiscarded() not in told(b.a_turn_start(1), b.a_void(1), b.a_turn_start(2))
    assert told(b.a_turn_start(1), b.a_resume(), b.a_turn_start(2)) == []


def test_why_a_model_is_asked_again_or_another_instead_is_told_once() -> None:
    void = replace(b.a_void(1), reason="It can not be reached.")
    other = replace(b.a_turn_start(3), provider="embedded", model="embedded")
    tries: list[TapeEvent] = [b.a_turn_start(1), void, b.a_turn_start(2), void, b.a_turn_start(3)]
    assert told(*tries) == [Notice("(It can not be reached. Trying again.)")]
    assert told(*tries[:4], other)[-1] == Notice("(It can not be reached. Trying embedded/embedded instead.)")


def test_a_conversation_that_had_to_be_shortened_is_told() -> None:
    assert told(replace(b.a_context(), narrowed="it is too long")) == [Notice("(it is too long)")]


def test_a_run_that_fails_is_not_said_to_begin_again() -> None:
    pieces = told(b.a_turn_start(1), b.a_text(1), b.a_void(1), b.a_failure("no model"))
    assert pieces[-1] == RunEnded(RUN, "failed", "no model", "broken")
    assert AttemptDiscarded() not in pieces


def test_what_waits_is_told() -> None:
    effect = Effect(risk=Risk.MEDIUM, summary="write a.txt", detail="+a", kind="folder:/w")
    asked = replace(b.a_question("c1"), tool="files.write", effect=effect, reason="it changes files", policies=("p1",))
    question, *settled = told(b.a_proposal(1, "c1"), asked, b.an_answer("c1"))
    assert question == ApprovalPrompt(
        approval_id=asked.approval_id,
        summary="write a.txt",
        detail="+a",
        risk="medium",
        reason="it changes files",
        policies=("p1",),
        expires_at=asked.expires_at,
        lasting="folder:/w",
    )
    assert settled == [Notice("(shell: allowed)"), ApprovalSettled(asked.approval_id)]


def test_a_budget_that_only_warns_is_told_with_how_it_stands() -> None:
    (note,) = told(b.a_warning())
    assert note == Notice("(the budget daily may be exceeded: up to 2.04 USD of 2.00 USD per day, including this turn)")
    tokens = replace(b.an_overdraft(), unit="tokens", cap=1000, spent=900, requested=200)
    (note,) = told(replace(b.a_warning(), overrun=tokens))
    assert note == Notice(
        "(the budget daily may be exceeded: up to 1,100 of 1,000 tokens per day, including this turn)"
    )
    (note,) = told(replace(b.a_warning(), overrun=replace(tokens, spent=1001)))
    assert note == Notice("(the budget daily is exceeded: 1,201 of 1,000 tokens per day, including this turn)")
    (note,) = told(replace(b.a_warning(), overrun=replace(tokens, unpriced=True)))
    assert note == Notice("(the budget daily cannot count this turn: acme/large has no price)")


def test_a_question_about_a_budget_is_told_and_settled() -> None:
    asked, *answered = told(b.a_budget_question("a9"), b.an_answer("", ApprovalDecision.DENIED, approval="a9"))
    assert isinstance(asked, ApprovalPrompt)
    assert answered == [Notice("(exceed the budget: denied)"), ApprovalSettled("a9")]


def test_a_child_is_told() -> None:
    pieces = told(b.a_proposal(1, "c1", tool="agent.delegate"), b.a_child("c1", "CHILD"), b.a_child_end("c1"))
    assert pieces == [
        ToolStepStarted("c1", "agent.delegate"),
        Notice("(agent.delegate: waiting for run CHILD)"),
        ToolStepEnded("c1", "agent.delegate", "ok"),
    ]


def test_a_limit_is_told() -> None:
    assert told(b.a_limit()) == [
        Notice("(limit reached: model turns; the model now gives a final answer without tools)")
    ]


def test_a_cancelled_run_says_why() -> None:
    assert told(b.a_cancel("enough"), b.a_cancellation("enough")) == [RunEnded(RUN, "cancelled", "enough")]


def test_a_reset_is_told() -> None:
    assert isinstance(told(SessionReset(at=b.AT))[0], Notice)


def test_own_messages_are_not_told_again() -> None:
    def said(key: str) -> RunAccepted:
        return RunAccepted(at=b.AT, text="Hi.", principal=b.ANA, agent_id=b.AGENT, limits=Limits(), idempotency_key=key)

    assert told(said("mine"), said("other"), narrator=Narrator(own_keys={"mine"})) == [OtherInput("Hi.")]


def test_a_call_whose_proposal_was_not_seen_still_has_a_name() -> None:
    assert told(b.a_result("c9")) == [ToolStepEnded("c9", "a tool", "ok")]


def test_a_label_is_one_short_printable_line() -> None:
    arguments: dict[str, Any] = {"path": "notes\n\x1b[31m.md", "line": 3}
    assert label_of("files.read", arguments) == "files.read notes ⟨ESC⟩[31m.md"
    assert len(label_of("files.read", {"path": "x" * 500})) <= 60
    assert label_of("time.now", {"zone": ""}) == "time.now"
