"""The nodes of a trace, each with its facts; `runs/event_text.py` has their texts."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import assert_never

import msgspec

from palyra.core import attestation
from palyra.core.artifact import FileCheckpoint
from palyra.core.event import Event
from palyra.core.events import (
    ApprovalRequested,
    ApprovalResolved,
    CallHandedOver,
    CancelRequested,
    ChildEnded,
    ChildStarted,
    ContextAssembled,
    Entry,
    HistoryAttached,
    InputSteered,
    LimitReached,
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
from palyra.core.tool import JsonObject
from palyra.core.trace.tree import TraceNode
from palyra.runs.event_text import (
    Cause,
    cause_text,
    execution_text,
    file_text,
    resolution_text,
    trace_line,
    turn_text,
)

TEXT_CHARS = 1000
"""How much of a long text a node quotes; the tape has all of it."""


@dataclass(slots=True)
class CallTrace:
    """What is known about a call so far."""

    proposed: Entry
    event: ToolProposed
    nodes: list[TraceNode] = field(default_factory=list)
    approval: dict[str, tuple[Entry, ApprovalRequested]] = field(default_factory=dict)
    started: tuple[Entry, ToolStarted] | None = None
    attempts: int = 0


@dataclass(slots=True)
class TurnTrace:
    """What is known about a model turn so far."""

    entry: Entry
    event: ModelTurnStarted
    context: ContextAssembled | None
    inputs: list[JsonObject]
    """Calls of this run whose results the model had seen before."""
    text: list[str] = field(default_factory=list)
    ended: ModelTurnEnded | None = None
    discarded: ModelTurnDiscarded | None = None
    calls: list[CallTrace] = field(default_factory=list)


def file_node(checkpoint: FileCheckpoint, *, subject: bool = False) -> TraceNode:
    """Return the node of a file change."""
    return TraceNode(
        kind="file" if checkpoint.call_id is not None else "restore",
        what=file_text(checkpoint),
        at=checkpoint.at,
        by=checkpoint.what if checkpoint.call_id is not None else checkpoint.principal,
        session_id=checkpoint.session_id,
        run_id=checkpoint.run_id or "",
        facts=_present(
            path=checkpoint.path,
            checkpoint_id=checkpoint.checkpoint_id,
            call_id=checkpoint.call_id,
            before=checkpoint.before_digest,
            after=checkpoint.after_digest,
            restores=checkpoint.restores,
        ),
        subject=subject,
    )


def session_node(entry: Entry, *, subject: bool = False) -> TraceNode:
    """Return the node of an event of the session itself, which no run caused."""
    event = entry.event
    facts = {
        name: value
        for name, value in msgspec.to_builtins(event).items()
        if name not in ("kind", "at", "actor", "labels", "carried_ms")
    }
    return _node(entry, event, "session", entry.kind.replace("_", " "), facts=facts, subject=subject)


def cause_node(entry: Entry, event: Cause) -> TraceNode:
    """Return the node of an event that has one of its own."""
    kind, facts = _kind_and_facts(event)
    return _node(entry, event, kind, cause_text(event), facts=facts)


def _kind_and_facts(event: Cause) -> tuple[str, JsonObject]:
    match event:
        case RunAccepted():
            return "input", _present(
                text=_cut(event.text),
                principal=event.principal,
                channel=event.channel,
                channels=list(event.source_channels),
                mode=event.mode.value,
                agent_id=event.agent_id,
                agent_reason=event.agent_reason,
                parent_run_id=event.parent.run_id if event.parent else None,
                reissues=event.reissue.approval_id if event.reissue else None,
            )
        case HistoryAttached():
            return "history", _present(role=event.role.value, text=_cut(event.text), call_id=event.call_id)
        case InputSteered():
            return "input", {"text": _cut(event.text), "channel": event.channel}
        case ToolProposed():
            return "call", _present(
                call_id=event.call_id, tool=event.tool, arguments=event.arguments, malformed=event.malformed
            )
        case PolicyDecided():
            return "policy", _policy_facts(event)
        case ApprovalRequested():
            return "approval", {"approval_id": event.approval_id, "expires_at": event.expires_at.isoformat()}
        case ToolStarted():
            return "execution", {"attempts": event.attempt}
        case CallHandedOver():
            return "execution", {"call_id": event.call_id}
        case ChildStarted():
            child = {"run_id": event.child_run_id, "session_id": event.child_session_id}
            return "child", {**child, "text": _cut(event.text)}
        case RunCompleted():
            return "end", {"status": "done"}
        case RunFailed():
            return "end", {"status": "failed", "code": event.code}
        case RunCancelled():
            return "end", {"status": "cancelled"}
        case RunResumed() | LimitReached() | CancelRequested():
            return "end", {}
        case _:
            assert_never(event)


def _policy_facts(event: PolicyDecided) -> JsonObject:
    effect = event.effect
    return _present(
        verdict=event.verdict.value,
        risk=event.risk.value if event.risk else None,
        reason=event.reason,
        policies=list(event.policies),
        policy_hash=event.policy_hash,
        grant_id=event.grant_id,
        approver_reachable=event.approver_reachable or None,
        effect=effect.summary if effect else None,
        paths=list(effect.paths) if effect else None,
        hosts=list(effect.hosts) if effect else None,
        command=effect.command if effect else None,
    )


def turn_node(turn: TurnTrace) -> TraceNode:
    """Return the node of a model turn, without its calls."""
    context, ended = turn.context, turn.ended
    facts = _present(
        turn=turn.event.turn,
        provider=turn.event.provider,
        model=turn.event.model,
        reason=turn.event.reason,
        settings_hash=turn.event.settings_hash,
        last=turn.event.last or None,
        first_seq=context.first_seq if context else None,
        last_seq=context.last_seq if context else None,
        messages=context.messages if context else None,
        dropped=(context.dropped or None) if context else None,
        digest=context.digest if context else None,
        results=turn.inputs,
        text=_cut("".join(turn.text)),
        stop=ended.stop.value if ended else None,
        discarded=turn.discarded.reason if turn.discarded else None,
    )
    if ended is not None:
        facts |= {"input_tokens": ended.usage.input_tokens, "output_tokens": ended.usage.output_tokens}
    if (closed := ended or turn.discarded) is not None and closed.cost_micros is not None:
        facts["cost_micros"] = closed.cost_micros
    return _node(turn.entry, turn.event, "turn", turn_text(turn.event, ended, turn.discarded), facts=facts)


def approval_node(entry: Entry, event: ApprovalResolved, request: ApprovalRequested | None) -> TraceNode:
    """Return the node of an approval request that was answered or expired."""
    facts = _present(
        approval_id=event.approval_id,
        requested_at=request.at.isoformat() if request else None,
        decision=event.decision.value,
        scope=event.scope.value,
        until=event.until.isoformat() if event.until else None,
        reason=event.reason,
        grant_id=event.grant_id,
        edited=event.arguments is not None or None,
        arguments=event.arguments,
    )
    return _node(entry, event, "approval", resolution_text(event, request), facts=facts)


def execution_node(entry: Entry, event: ToolFinished | ChildEnded, call: CallTrace) -> TraceNode:
    """Return the node of an execution that ended or never began."""
    facts = _present(
        outcome=event.outcome.value,
        attempts=call.attempts or None,
        text=_cut(event.text),
        artifact_id=event.artifact if isinstance(event, ToolFinished) else None,
    )
    took: timedelta | None = None
    programs: tuple[attestation.ProgramRun, ...] = ()
    if call.started is not None:
        took = event.at - call.started[1].at
        facts["took_seconds"] = took.total_seconds()
    if event.attestation is not None:
        stated = attestation.read(event.attestation.statement)
        programs = stated.programs
        facts |= {"runtime": stated.runtime.value, "ran": [msgspec.to_builtins(ran) for ran in programs]}
    return _node(entry, event, "execution", execution_text(event, took, programs), facts=facts)


def result_of(call: CallTrace, outcome: str, labels: tuple[str, ...]) -> JsonObject:
    """Return what a later turn knew about a call from its result."""
    return {"call_id": call.event.call_id, "tool": call.event.tool, "outcome": outcome, "labels": list(labels)}


def _node(
    entry: Entry, event: Event, kind: str, what: str, *, facts: JsonObject | None = None, subject: bool = False
) -> TraceNode:
    return TraceNode(
        kind=kind,
        what=trace_line(what),
        at=event.at,
        by=event.actor,
        session_id=entry.session_id,
        run_id=entry.run_id or "",
        tape_seq=entry.tape_seq,
        labels=event.labels,
        facts=facts or {},
        subject=subject,
    )


def _present(**facts: object) -> JsonObject:
    """Return the facts that are not empty."""
    return {name: value for name, value in facts.items() if value not in (None, "", [], ())}


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARS else text[: TEXT_CHARS - 1] + "…"
