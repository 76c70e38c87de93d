"""The nodes of a trace, each with a text and facts."""

from dataclasses import dataclass, field

import msgspec

from palyra.core import attestation
from palyra.core.artifact import FileCheckpoint
from palyra.core.events import (
    ApprovalRequested,
    ApprovalResolved,
    CallHandedOver,
    CancelRequested,
    ChildEnded,
    ChildStarted,
    ContextAssembled,
    Entry,
    Event,
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

TEXT_CHARS = 1000
"""How much of a long text a node quotes; the tape has all of it."""
LINE_CHARS = 160

End = RunResumed | LimitReached | CancelRequested | RunCompleted | RunFailed | RunCancelled
"""What ends or suspends a run."""

_encode = msgspec.json.Encoder()


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
    happened = "changed"
    if checkpoint.before_digest is None:
        happened = "made"
    elif checkpoint.after_digest is None:
        happened = "deleted"
    return TraceNode(
        kind="file" if checkpoint.call_id is not None else "restore",
        what=f"{happened} {checkpoint.path}" if checkpoint.call_id is not None else f"restored {checkpoint.path}",
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


def event_node(entry: Entry, *, subject: bool = False) -> TraceNode:
    """Return the node of an event of the session itself, which no run caused."""
    event = entry.event
    facts = {
        name: value
        for name, value in msgspec.to_builtins(event).items()
        if name not in ("kind", "at", "actor", "labels", "carried_ms")
    }
    return _node(entry, event, "session", entry.kind.replace("_", " "), facts=facts, subject=subject)


def input_node(entry: Entry, event: RunAccepted) -> TraceNode:
    """Return the node of the message that a run began with."""
    facts = _present(
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
    return _node(entry, event, "input", _quoted(event.text), facts=facts)


def history_node(entry: Entry, event: HistoryAttached) -> TraceNode:
    """Return the node of a message of the attached history."""
    facts = _present(role=event.role.value, text=_cut(event.text), call_id=event.call_id)
    return _node(entry, event, "given", f"{event.role.value}: {_quoted(event.text)}", facts=facts)


def handed_over_node(entry: Entry, event: CallHandedOver) -> TraceNode:
    """Return the node of a call that was handed over to the caller."""
    return _node(
        entry, event, "execution", "handed over to the client, whose tool it is", facts={"call_id": event.call_id}
    )


def steered_node(entry: Entry, event: InputSteered) -> TraceNode:
    """Return the node of a message that came while the run was in progress."""
    return _node(entry, event, "input", _quoted(event.text), facts={"text": _cut(event.text), "channel": event.channel})


def end_node(entry: Entry, event: End) -> TraceNode:
    """Return the node of an event that ends or suspends a run."""
    facts: JsonObject = {}
    match event:
        case RunResumed():
            what = f"interrupted and resumed: {event.reason}"
        case LimitReached():
            what = f"reached the limit of {event.limit.value.replace('_', ' ')}"
        case CancelRequested():
            what = f"cancel requested: {event.reason}"
        case RunCompleted():
            what, facts = "answered", {"status": "done"}
        case RunFailed():
            what, facts = f"failed: {event.reason} [{event.code}]", {"status": "failed", "code": event.code}
        case RunCancelled():
            what, facts = f"was cancelled: {event.reason}", {"status": "cancelled"}
    return _node(entry, event, "end", what, facts=facts)


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
        voided=turn.discarded.reason if turn.discarded else None,
    )
    if ended is not None:
        facts |= {"input_tokens": ended.usage.input_tokens, "output_tokens": ended.usage.output_tokens}
    if (closed := ended or turn.discarded) is not None and closed.cost_micros is not None:
        facts["cost_micros"] = closed.cost_micros
    what = f"{turn.event.turn}, {' '.join(dict.fromkeys((turn.event.provider, turn.event.model)))}"
    if ended is not None:
        what += f", {ended.usage.input_tokens} tokens in, {ended.usage.output_tokens} out"
    if turn.discarded is not None:
        what += f", discarded: {turn.discarded.reason}"
    return _node(turn.entry, turn.event, "turn", what, facts=facts)


def call_node(call: CallTrace) -> TraceNode:
    """Return the node of a call, without what followed from it."""
    facts = _present(
        call_id=call.event.call_id,
        tool=call.event.tool,
        arguments=call.event.arguments,
        malformed=call.event.malformed,
    )
    what = f"{call.event.tool} {_line(_encode.encode(call.event.arguments).decode())}"
    return _node(call.proposed, call.event, "call", what, facts=facts)


def policy_node(entry: Entry, event: PolicyDecided) -> TraceNode:
    """Return the node of the policy's decision about a call."""
    effect = event.effect
    facts = _present(
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
    clauses = f" by {', '.join(event.policies)}" if event.policies else ""
    grant = f" (grant {event.grant_id})" if event.grant_id else ""
    return _node(entry, event, "policy", f"{event.verdict.value}{clauses}: {event.reason}{grant}", facts=facts)


def approval_node(entry: Entry, event: ApprovalResolved, request: tuple[Entry, ApprovalRequested] | None) -> TraceNode:
    """Return the node of an approval request that was answered or expired."""
    facts = _present(
        approval_id=event.approval_id,
        asked_at=request[1].at.isoformat() if request else None,
        decision=event.decision.value,
        scope=event.scope.value,
        until=event.until.isoformat() if event.until else None,
        reason=event.reason,
        grant_id=event.grant_id,
        edited=event.arguments is not None or None,
        arguments=event.arguments,
    )
    edited = ", with edited arguments" if event.arguments is not None else ""
    text = f": {event.reason}" if event.reason else ""
    beyond = f", requested{_about(request[1])}" if request is not None and request[1].budgets else ""
    what = f"{event.decision.value.replace('_', ' ')} by {event.actor}, {event.scope.value}{beyond}{edited}{text}"
    return _node(entry, event, "approval", what, facts=facts)


def open_approval_node(entry: Entry, event: ApprovalRequested) -> TraceNode:
    """Return the node of an approval request that is still open."""
    facts = {"approval_id": event.approval_id, "expires_at": event.expires_at.isoformat()}
    return _node(entry, event, "approval", f"requested{_about(event)}, not answered yet", facts=facts)


def _about(event: ApprovalRequested) -> str:
    names = ", ".join(one.budget for one in event.budgets)
    return f" to exceed the budget {names}" if names else ""


def child_node(entry: Entry, event: ChildStarted) -> TraceNode:
    """Return the node of a task that a child run executes."""
    facts = {"run_id": event.child_run_id, "session_id": event.child_session_id, "text": _cut(event.text)}
    what = f"delegated to run {event.child_run_id}: {_quoted(event.text)}"
    return _node(entry, event, "child", what, facts=facts)


def execution_node(entry: Entry, event: ToolFinished | ChildEnded, call: CallTrace) -> TraceNode:
    """Return the node of an execution that ended or never began."""
    facts = _present(
        outcome=event.outcome.value,
        attempts=call.attempts or None,
        text=_cut(event.text),
        artifact_id=event.artifact if isinstance(event, ToolFinished) else None,
    )
    what = event.outcome.value if call.started is not None else f"{event.outcome.value}, never started"
    if call.started is not None:
        took = (event.at - call.started[1].at).total_seconds()
        facts["took_seconds"] = took
        what += f" after {took:.1f} s"
    if event.attestation is not None:
        what += _of_statement(event.attestation, facts)
    return _node(entry, event, "execution", what, facts=facts)


def _of_statement(attested: attestation.Attestation, facts: JsonObject) -> str:
    """Add the facts of the attestation; return them as text."""
    stated = attestation.read(attested.statement)
    facts["runtime"] = stated.runtime.value
    facts["ran"] = [msgspec.to_builtins(ran) for ran in stated.programs]
    words = [f"sandbox {ran.tier}, {ran.stopped or f'exit code {ran.exit_code}'}" for ran in stated.programs]
    return "".join(f", {word}" for word in words)


def unfinished_node(entry: Entry, event: ToolStarted) -> TraceNode:
    """Return the node of an execution without an end on the tape."""
    facts = {"attempts": event.attempt}
    return _node(entry, event, "execution", "started, with no end on the tape", facts=facts)


def result_of(call: CallTrace, outcome: str, labels: tuple[str, ...]) -> JsonObject:
    """Return what a later turn knew about a call from its result."""
    return {"call_id": call.event.call_id, "tool": call.event.tool, "outcome": outcome, "labels": list(labels)}


def _node(
    entry: Entry, event: Event, kind: str, what: str, *, facts: JsonObject | None = None, subject: bool = False
) -> TraceNode:
    return TraceNode(
        kind=kind,
        what=_line(what),
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


def _quoted(text: str) -> str:
    return f"“{_line(text)}”"


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LINE_CHARS else line[: LINE_CHARS - 1] + "…"


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARS else text[: TEXT_CHARS - 1] + "…"
