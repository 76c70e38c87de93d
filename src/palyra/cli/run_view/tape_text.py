"""A tape as lines for a person: number, time, kind, and what matters of the content."""

from collections.abc import Callable
from typing import assert_never

from palyra.cli.options import Invocation
from palyra.cli.run_view.narration import label_of
from palyra.cli.terminal.output import clock_time, paint, plural, screen_width, show_json_line
from palyra.cli.terminal.printable import printable_line, shorten
from palyra.core.events import (
    ApprovalRequested,
    ApprovalResolved,
    BudgetWarned,
    CallHandedOver,
    CancelRequested,
    ChildEnded,
    ChildStarted,
    ContextAssembled,
    EmbeddingsEnded,
    EmbeddingsStarted,
    FileCheckpointRestored,
    GrantRevoked,
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
    SessionAgentBound,
    SessionArchived,
    SessionCreated,
    SessionEvent,
    SessionRenamed,
    SessionReset,
    SessionUnarchived,
    ToolFinished,
    ToolProposed,
    ToolStarted,
)
from palyra.gateway.client.tape_stream import ReceivedEntry, read_tape
from palyra.gateway.records.runs import TapePage

KIND_WIDTH = len("checkpoint_restored")
MAX_DETAIL_CHARS = 300


def print_tape(invocation: Invocation, read_page: Callable[[int], TapePage], *, after_seq: int) -> None:
    """Print a tape; `read_page` returns its page after a position."""
    for line in read_tape(read_page, after_seq=after_seq):
        if invocation.json:
            show_json_line(line.text)
        else:
            print(tape_line(line))


def tape_line(line: ReceivedEntry) -> str:
    """Return an entry as one line that fits the terminal."""
    head = f"{line.tape_seq:>6}  {clock_time(line.at)}  "
    width = min(MAX_DETAIL_CHARS, screen_width() - len(head) - KIND_WIDTH - 2)
    content = shorten(printable_line(describe(line)), max(20, width))
    return f"{paint(head, 'dim')}{line.kind.ljust(KIND_WIDTH)}  {content}".rstrip()


def describe(line: ReceivedEntry) -> str:
    """Return what matters of an entry's content."""
    event = line.event
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
            beyond = ", ".join(one.overdrawn.budget for one in warned)
            return _joined(
                f"{plural(texts, 'text')}, {size} bytes, {provider}/{model}", beyond and f"exceeds the budget {beyond}"
            )
        case EmbeddingsEnded(came=came, usage=usage, vectors=vectors, reason=reason):
            made = vectors and plural(vectors, "vector")
            about = "about " if usage.estimated else ""
            return _joined(came.value, made, f"{about}{usage.input_tokens} tokens in", reason)
        case _:
            assert_never(event)


def _of_run(event: RunEvent) -> str:
    match event:
        case RunAccepted(text=text, mode=mode, origin=origin):
            return f"{text!r} ({origin}, {mode})"
        case HistoryAttached(role=role, text=text, calls=calls):
            return _joined(f"{role}: {text!r}", bool(calls) and f"calls {', '.join(call.tool for call in calls)}")
        case RunStarted():
            return ""
        case RunResumed(reason=reason):
            return reason
        case InputSteered(text=text, origin=origin):
            return f"{text!r} ({origin})"
        case ContextAssembled(messages=messages, estimated_tokens=tokens, dropped=dropped):
            return _joined(f"{plural(messages, 'message')}, about {tokens} tokens", dropped and f"{dropped} left out")
        case ModelTurnStarted(turn=turn, provider=provider, model=model, last=last):
            return _joined(f"turn {turn}, {provider}/{model}", last and "final turn, no tools")
        case BudgetWarned(overdrawn=overdrawn):
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
