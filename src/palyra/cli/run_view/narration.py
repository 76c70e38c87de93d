"""Narrates a run for a person: tape entries in, pieces of text out.

Whatever shows the pieces (a terminal, a pipe, the chat) is a `Screen`; this module knows none of them.
"""

from dataclasses import dataclass, field
from typing import Protocol

from palyra.cli.run_view.approval_prompt import ApprovalPrompt
from palyra.cli.terminal.printable import printable_line
from palyra.core.events import (
    ApprovalRequested,
    ApprovalResolved,
    BudgetWarned,
    ChildEnded,
    ChildStarted,
    ContextAssembled,
    InputSteered,
    LimitReached,
    ModelText,
    ModelTurnDiscarded,
    ModelTurnEnded,
    ModelTurnStarted,
    PolicyDecided,
    RunAccepted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunResumed,
    ToolFinished,
    ToolProposed,
    ToolStarted,
)
from palyra.core.policy.effect import Effect
from palyra.core.run.record import RunRecord
from palyra.core.session_events import SessionReset
from palyra.core.tool import CallOutcome, Risk, Verdict
from palyra.gateway.client.tape_stream import ReceivedEntry
from palyra.runs.event_text import answer_text, label_of, overrun_text, sealed_notices

DETAIL_WIDTH = 100
REASON_WIDTH = 300

CHAT = "cancelled in the chat"
CTRL_C = "Ctrl-C"
"""Reasons of a person who cancels a run from here, and need not read them."""

DISCARDED_NOTICE = "(the answer was interrupted; starting again)"


@dataclass(frozen=True, slots=True)
class AnswerText:
    """A further piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The model has finished a turn. Its text is an answer, or a remark before it uses tools."""

    is_answer: bool


@dataclass(frozen=True, slots=True)
class AttemptDiscarded:
    """What the model said in the turn before is discarded; it begins again."""


@dataclass(frozen=True, slots=True)
class ToolStepStarted:
    """A tool has started."""

    call_id: str
    label: str


@dataclass(frozen=True, slots=True)
class ToolStepEnded:
    """A tool is done, or was not allowed to start."""

    call_id: str
    label: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class OtherInput:
    """A message that someone else sent to this session."""

    text: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that the person should know."""

    text: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over."""

    run_id: str
    status: str
    reason: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class ApprovalSettled:
    """An approval request is no longer open."""

    approval_id: str


Piece = (
    AnswerText
    | TurnEnded
    | AttemptDiscarded
    | ToolStepStarted
    | ToolStepEnded
    | OtherInput
    | Notice
    | ApprovalPrompt
    | ApprovalSettled
    | RunEnded
)


class Screen(Protocol):
    """Where the pieces are shown. They come in order; text is raw and must be made printable."""

    def show(self, piece: Piece) -> None: ...


@dataclass(slots=True)
class Narrator:
    """Keeps the state to narrate the next entry: open calls, and whether the open turn has any text."""

    own_keys: set[str] = field(default_factory=set)
    """Idempotency keys of messages that need not be shown: the person has just typed them."""
    _labels: dict[str, str] = field(default_factory=dict)
    _has_text: bool = False
    _discarded: bool = False
    _failed: str = ""
    """Why the turn before failed."""
    _reported: str = ""
    _last_model: str = ""
    _calls: int = 0

    def pieces_of(self, line: ReceivedEntry) -> list[Piece]:
        """Return the pieces to show for an entry; often none."""
        match line.event:
            case ModelTurnStarted(provider=provider, model=model):
                # Only now is it certain that the answer is tried again, rather than given up.
                discarded, self._discarded = self._discarded, False
                self._has_text, self._calls = False, 0
                pieces: list[Piece] = [AttemptDiscarded()] if discarded else []
                return [*pieces, *self._of_another_try(f"{provider}/{model}")]
            case ContextAssembled(narrowed=narrowed) if narrowed:
                return [Notice(f"({narrowed})")]
            case ModelText(text=text):
                self._has_text = True
                return [AnswerText(text)]
            case ToolProposed(call_id=call_id, tool=tool, arguments=arguments):
                self._calls += 1
                self._labels[call_id] = label_of(tool, arguments)
            case ModelTurnEnded():
                has_text, self._has_text = self._has_text, False
                return [TurnEnded(is_answer=self._calls == 0)] if has_text else []
            case ModelTurnDiscarded() | RunResumed() as event:
                self._discarded, self._has_text = self._discarded or self._has_text, False
                if isinstance(event, ModelTurnDiscarded):
                    self._failed = printable_line(event.reason, width=REASON_WIDTH)
            case RunAccepted(text=text, idempotency_key=key) | InputSteered(text=text, idempotency_key=key) as event:
                heard: list[Piece] = [OtherInput(text)] if key not in self.own_keys else []
                return [*heard, *map(Notice, sealed_notices(event, "in your message"))]
            case _:
                ended = ended_by(line)
                return [ended] if ended is not None else self._call_pieces(line)
        return []

    def _of_another_try(self, model: str) -> list[Piece]:
        """Show why a model is called if the one before failed; the same reason is shown once."""
        failed, self._failed = self._failed, ""
        before, self._last_model = self._last_model, model
        if not failed or (failed == self._reported and model == before):
            return []
        self._reported = failed
        return [Notice(f"({failed} {'Trying again.' if model == before else f'Trying {model} instead.'})")]

    def _call_pieces(self, line: ReceivedEntry) -> list[Piece]:
        match line.event:
            case PolicyDecided(call_id=call_id, verdict=Verdict.DENY, reason=reason):
                return [self._step(call_id, CallOutcome.DENIED, reason)]
            case ToolStarted(call_id=call_id):
                return [ToolStepStarted(call_id, self._label(call_id))]
            case ToolFinished(call_id=call_id, outcome=outcome, text=text) as event:
                where = f"in the result of {self._label(call_id)}"
                return [self._step(call_id, outcome, text), *map(Notice, sealed_notices(event, where))]
            case ChildStarted(call_id=call_id, child_run_id=child):
                label = self._label(call_id)
                return [ToolStepStarted(call_id, label), Notice(f"({label}: waiting for run {child})")]
            case ChildEnded(call_id=call_id, outcome=outcome, text=text):
                return [self._step(call_id, outcome, text)]
            case ApprovalRequested() as asked:
                if asked.budgets:
                    self._labels[asked.call_id] = "exceed the budget"
                return [_question(asked)]
            case BudgetWarned(overrun=overdrawn):
                return [Notice(f"(the budget {overdrawn.budget} {overrun_text(overdrawn)})")]
            case ApprovalResolved(call_id=call_id, approval_id=approval_id) as answer:
                note = Notice(f"({self._label(call_id)}: {answer_text(answer)})")
                return [note, *map(Notice, sealed_notices(answer, "in your answer")), ApprovalSettled(approval_id)]
            case LimitReached(limit=limit):
                return [
                    Notice(
                        f"(limit reached: {limit.value.replace('_', ' ')}; the model now gives a final answer without"
                        " tools)"
                    )
                ]
            case SessionReset():
                return [Notice("(the session was reset; the agent no longer sees earlier messages)")]
            case _:
                return []

    def _step(self, call_id: str, outcome: CallOutcome, text: str) -> ToolStepEnded:
        detail = "" if outcome is CallOutcome.OK else printable_line(text, width=DETAIL_WIDTH)
        return ToolStepEnded(call_id, self._label(call_id), outcome.value, detail)

    def _label(self, call_id: str) -> str:
        # A stream that begins in the middle of a run has not seen the proposal.
        return self._labels.get(call_id, "a tool")


def _question(approval_requested: ApprovalRequested) -> ApprovalPrompt:
    effect = approval_requested.effect or Effect(risk=Risk.HIGH, summary=approval_requested.tool)
    return ApprovalPrompt(
        approval_id=approval_requested.approval_id,
        summary=effect.summary,
        detail=effect.detail,
        risk=effect.risk.value,
        reason=approval_requested.reason,
        policies=approval_requested.policies,
        expires_at=approval_requested.expires_at,
        lasting=effect.kind,
        of_budget=bool(approval_requested.budgets),
    )


def ended_by(line: ReceivedEntry) -> RunEnded | None:
    """Return how the entry ended its run, if it did."""
    run_id = line.run_id or ""
    match line.event:
        case RunCompleted():
            return RunEnded(run_id, "done")
        case RunFailed(code=code, reason=reason):
            return RunEnded(run_id, "failed", reason, code)
        case RunCancelled(reason=reason):
            return RunEnded(run_id, "cancelled", reason)
        case _:
            return None


def ended_of(run: RunRecord) -> RunEnded:
    """Return how a run ended, from its record."""
    return RunEnded(run.run_id, run.status, run.reason or "")
