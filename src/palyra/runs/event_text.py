"""What an event says to a person: on a tape's listing, while a run is followed, and in a trace."""

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import assert_never

import msgspec

from palyra.core.artifact import FileCheckpoint
from palyra.core.attestation import ProgramRun
from palyra.core.events import (
    ApprovalRequested,
    ApprovalResolved,
    BudgetWarned,
    CallHandedOver,
    CancelRequested,
    ChildEnded,
    ChildStarted,
    ContextAssembled,
    HistoryAttached,
    InputSteered,
    LimitReached,
    ModelReasoning,
    ModelText,
    ModelTurnDiscarded,
    ModelTurnEnded,
    ModelTurnStarted,
    PolicyDecided,
    RunAccepted,
    RunCancelled,
    RunCompleted,
    RunEvent,
    RunFailed,
    RunResumed,
    RunStarted,
    TapeEvent,
    ToolFinished,
    ToolProposed,
    ToolStarted,
)
from palyra.core.policy.approval import ApprovalScope
from palyra.core.session_events import (
    EmbeddingsEnded,
    EmbeddingsStarted,
    FileCheckpointRestored,
    GrantRevoked,
    SessionAgentBound,
    SessionArchived,
    SessionCreated,
    SessionEvent,
    SessionRenamed,
    SessionReset,
    SessionUnarchived,
)
from palyra.core.spending.budget import BudgetOverrun
from palyra.core.spending.price import format_money
from palyra.core.text.escaping import printable_line
from palyra.core.text.plural import plural
from palyra.core.tool import JsonObject

LABEL_CHARS = 60
ARGUMENT_CHARS = 100
TRACE_CHARS = 160

Cause = (
    (RunAccepted | HistoryAttached | InputSteered)
    | (RunResumed | LimitReached | CancelRequested | RunCompleted | RunFailed | RunCancelled)
    | (ToolProposed | PolicyDecided | ApprovalRequested | ToolStarted | CallHandedOver | ChildStarted)
)
"""The events with a node of their own in a trace."""


def describe(event: TapeEvent | None) -> str:
    """Return what matters of an event, for a line of its tape; None is an event of a newer version."""
    if event is None:
        return "(unknown event: written by a newer version)"
    if isinstance(event, SessionEvent):
        return _of_session(event)
    return _of_run(event)


def _of_session(event: SessionEvent) -> str:
    match event:
        case SessionCreated(principal=principal, key=key, label=label):
            return _joined(f"by {principal}", key and f"key {key!r}", label and f"label {label!r}")
        case SessionReset():
            return "earlier entries are no longer in the context"
        case SessionRenamed(title=title):
            return repr(title)
        case SessionAgentBound(agent_id=agent_id):
            return f"agent {agent_id}" if agent_id else "the default agent"
        case SessionArchived(freed_key=key):
            return f"key {key!r} is released" if key else ""
        case SessionUnarchived():
            return ""
        case FileCheckpointRestored(path=path, checkpoint_id=checkpoint_id):
            return f"{path!r} as at {checkpoint_id}"
        case GrantRevoked(grant_id=grant_id):
            return grant_id
        case EmbeddingsStarted(provider=provider, model=model, texts=texts, bytes=size, warned=warned):
            beyond = ", ".join(one.overrun.budget for one in warned)
            return _joined(
                f"{plural(texts, 'text')}, {size} bytes, {provider}/{model}", beyond and f"exceeds the budget {beyond}"
            )
        case EmbeddingsEnded(outcome=outcome, usage=usage, vectors=vectors, reason=reason):
            made = vectors and plural(vectors, "vector")
            about = "about " if usage.estimated else ""
            return _joined(outcome.value, made, f"{about}{usage.input_tokens} tokens in", reason)
        case _:
            assert_never(event)


def _of_run(event: RunEvent) -> str:
    match event:
        case RunAccepted(text=text, mode=mode, channel=channel):
            return f"{text!r} ({channel}, {mode})"
        case HistoryAttached(role=role, text=text, calls=calls):
            return _joined(f"{role}: {text!r}", bool(calls) and f"calls {', '.join(call.tool for call in calls)}")
        case RunStarted():
            return ""
        case RunResumed(reason=reason):
            return reason
        case InputSteered(text=text, channel=channel):
            return f"{text!r} ({channel})"
        case ContextAssembled(messages=messages, estimated_tokens=tokens, dropped=dropped):
            return _joined(f"{plural(messages, 'message')}, about {tokens} tokens", dropped and f"{dropped} left out")
        case ModelTurnStarted(turn=turn, provider=provider, model=model, last=last):
            return _joined(f"turn {turn}, {provider}/{model}", last and "final turn, no tools")
        case BudgetWarned(overrun=overdrawn):
            return f"{overdrawn.budget!r} of {overdrawn.whose} per {overdrawn.per}"
        case ModelText(text=text) | ModelReasoning(text=text):
            return repr(text)
        case ModelTurnEnded(turn=turn, stop=stop, usage=usage):
            cached = usage.cached_tokens and f"{usage.cached_tokens} cached"
            return _joined(f"turn {turn}, {stop}, {usage.input_tokens} tokens in", cached, f"{usage.output_tokens} out")
        case ModelTurnDiscarded(turn=turn, reason=reason):
            return f"turn {turn} discarded: {reason}"
        case LimitReached(limit=limit):
            return limit.value.replace("_", " ")
        case CancelRequested(reason=reason) | RunCancelled(reason=reason):
            return reason
        case RunCompleted(limit_reached=limit):
            return f"limit reached: {limit.value.replace('_', ' ')}" if limit else ""
        case RunFailed(code=code, reason=reason):
            return f"{reason} [{code}]"
        case _:
            return _of_call(event)


def _of_call(
    event: ToolProposed
    | PolicyDecided
    | ApprovalRequested
    | ApprovalResolved
    | ToolStarted
    | ToolFinished
    | CallHandedOver
    | ChildStarted
    | ChildEnded,
) -> str:
    match event:
        case ToolProposed(tool=tool, arguments=arguments, malformed=malformed):
            return _joined(label_of(tool, arguments), malformed and f"malformed: {malformed}")
        case PolicyDecided(verdict=verdict, risk=risk, reason=reason):
            of_risk = f"{risk} risk" if risk else None
            return _joined(verdict.value, of_risk, reason if reason != of_risk else None)
        case ApprovalRequested(approval_id=approval_id, expires_at=expires_at, budgets=budgets):
            names = ", ".join(one.budget for one in budgets)
            return _joined(
                f"{approval_id}, until {expires_at.astimezone():%Y-%m-%d %H:%M}", names and f"about the budget {names}"
            )
        case ApprovalResolved(decision=decision, reason=reason):
            return _joined(decision.value, reason)
        case ToolStarted(call_id=call_id, attempt=attempt):
            return _joined(call_id, attempt > 1 and f"attempt {attempt}")
        case ToolFinished(outcome=outcome, text=text):
            return f"{outcome}: {text!r}"
        case CallHandedOver(call_id=call_id):
            return f"{call_id}, handed to the caller"
        case ChildStarted(child_run_id=child, text=text):
            return f"run {child}: {text!r}"
        case ChildEnded(child_run_id=child, outcome=outcome, text=text):
            return f"run {child}, {outcome}: {text!r}"
        case _:
            assert_never(event)


def _joined(*parts: str | bool | int | None) -> str:
    return ", ".join(str(part) for part in parts if part)


def label_of(tool: str, arguments: JsonObject) -> str:
    """Return a short label of a call: the tool and its first argument."""
    supplied_value = next((str(value) for value in arguments.values() if value not in ("", None)), "")
    return printable_line(f"{tool} {supplied_value}", width=LABEL_CHARS)


def sealed_notices(event: RunAccepted | InputSteered | ToolFinished | ApprovalResolved, where: str) -> list[str]:
    """Return the notices that secrets in a text were sealed or removed."""
    notices: list[str] = []
    if event.sealed:
        what, was, them = ("secret", "was", "it") if event.sealed == 1 else ("secrets", "were", "them")
        notices.append(
            f"({event.sealed} {what} {where} {was} sealed in the vault; the model sees a marker instead. List"
            f" {them} with `palyra secrets sealed`.)"
        )
    if event.removed:
        what, was = ("secret", "was") if event.removed == 1 else ("secrets", "were")
        notices.append(
            f"({event.removed} {what} {where} {was} removed, because the vault could not store"
            f" {'it' if event.removed == 1 else 'them'}. Run `palyra doctor` to see why.)"
        )
    return notices


def answer_text(answer: ApprovalResolved) -> str:
    """Return an approval's answer, even if given elsewhere: for how long, and whether for another call."""
    how = answer.decision.value.replace("_", " ")
    match answer.scope:
        case ApprovalScope.SESSION:
            how += " for this session"
        case ApprovalScope.TIMEBOXED if answer.until is not None:
            how += f" until {answer.until.astimezone():%Y-%m-%d %H:%M}"
        case ApprovalScope.ALWAYS:
            how += " always"
        case _:
            pass
    if answer.arguments is not None:
        value = json.dumps(answer.arguments, ensure_ascii=False)
        how += f" with changed arguments, {printable_line(value, width=ARGUMENT_CHARS)}"
    return how


def overrun_text(one: BudgetOverrun) -> str:
    """Return a budget's status with the turn that begins, which may use less than is reserved for it."""
    if one.unpriced:
        return f"cannot count this turn: {one.model} has no price"
    if one.hidden:
        return f"per {one.per.value}, which is shared, may be exceeded by this turn"
    used, cap = one.spent + one.requested, one.cap
    stands = "is exceeded: " if one.spent > cap else "may be exceeded: up to "
    if one.unit == "tokens":
        return f"{stands}{used:,} of {cap:,} tokens per {one.per.value}, including this turn"
    money = f"{format_money(used, one.unit)} of {format_money(cap, one.unit)}"
    return f"{stands}{money} per {one.per.value}, including this turn"


def cause_text(event: Cause) -> str:
    """Return what an event says in a trace."""
    match event:
        case RunAccepted(text=text) | InputSteered(text=text):
            return _quoted(text)
        case HistoryAttached(role=role, text=text):
            return f"{role.value}: {_quoted(text)}"
        case RunResumed(reason=reason):
            return f"interrupted and resumed: {reason}"
        case LimitReached(limit=limit):
            return f"reached the limit of {limit.value.replace('_', ' ')}"
        case CancelRequested(reason=reason):
            return f"cancel requested: {reason}"
        case RunCompleted():
            return "answered"
        case RunFailed(code=code, reason=reason):
            return f"failed: {reason} [{code}]"
        case RunCancelled(reason=reason):
            return f"was cancelled: {reason}"
        case ToolProposed(tool=tool, arguments=arguments):
            return f"{tool} {trace_line(msgspec.json.encode(arguments).decode())}"
        case PolicyDecided(verdict=verdict, policies=policies, reason=reason, grant_id=grant_id):
            clauses = f" by {', '.join(policies)}" if policies else ""
            grant = f" (grant {grant_id})" if grant_id else ""
            return f"{verdict.value}{clauses}: {reason}{grant}"
        case ApprovalRequested():
            return f"{_request_text(event)}, not answered yet"
        case ToolStarted():
            return "started, with no end on the tape"
        case CallHandedOver():
            return "handed over to the client, whose tool it is"
        case ChildStarted(child_run_id=child, text=text):
            return f"delegated to run {child}: {_quoted(text)}"
        case _:
            assert_never(event)


def resolution_text(event: ApprovalResolved, request: ApprovalRequested | None) -> str:
    """Return how an approval request was answered, or that it expired, for a trace."""
    edited = ", with edited arguments" if event.arguments is not None else ""
    text = f": {event.reason}" if event.reason else ""
    beyond = f", {_request_text(request)}" if request is not None and request.budgets else ""
    return f"{event.decision.value.replace('_', ' ')} by {event.actor}, {event.scope.value}{beyond}{edited}{text}"


def _request_text(event: ApprovalRequested) -> str:
    names = ", ".join(one.budget for one in event.budgets)
    return f"requested to exceed the budget {names}" if names else "requested"


def turn_text(event: ModelTurnStarted, ended: ModelTurnEnded | None, discarded: ModelTurnDiscarded | None) -> str:
    """Return what a model turn was, for a trace."""
    return _joined(
        f"{event.turn}, {' '.join(dict.fromkeys((event.provider, event.model)))}",
        ended is not None and f"{ended.usage.input_tokens} tokens in, {ended.usage.output_tokens} out",
        discarded is not None and f"discarded: {discarded.reason}",
    )


def execution_text(event: ToolFinished | ChildEnded, took: timedelta | None, programs: Iterable[ProgramRun]) -> str:
    """Return how an execution ended, for a trace; one that never started took no time."""
    outcome = event.outcome.value
    return _joined(
        f"{outcome}, never started" if took is None else f"{outcome} after {took.total_seconds():.1f} s",
        *(f"sandbox {ran.tier}, {ran.stopped or f'exit code {ran.exit_code}'}" for ran in programs),
    )


def file_text(checkpoint: FileCheckpoint) -> str:
    """Return what happened to a file, for a trace."""
    if checkpoint.call_id is None:
        return f"restored {checkpoint.path}"
    if checkpoint.before_digest is None:
        return f"made {checkpoint.path}"
    return f"{'deleted' if checkpoint.after_digest is None else 'changed'} {checkpoint.path}"


def trace_line(text: str) -> str:
    """Return a text on one line of a trace."""
    line = " ".join(text.split())
    return line if len(line) <= TRACE_CHARS else line[: TRACE_CHARS - 1] + "…"


def _quoted(text: str) -> str:
    return f"“{trace_line(text)}”"
