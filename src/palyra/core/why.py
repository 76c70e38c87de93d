"""Where something came from: the tape of a run as a tree of causes, each with its place on the tape.

An input leads to turns of the model, a turn to calls, a call to verdicts, questions, executions and what they left
behind. The tree is worked out from the entries alone; nothing in it is guessed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from palyra.core import attestation
from palyra.core.artifact import Checkpoint
from palyra.core.events import (
    ApprovalRequested,
    ApprovalResolved,
    CancelRequested,
    ChildEnded,
    ChildStarted,
    ContextAssembled,
    Entry,
    Event,
    InputSteered,
    LimitReached,
    ModelText,
    ModelTurnEnded,
    ModelTurnStarted,
    ModelTurnVoided,
    PolicyDecided,
    RunAccepted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunResumed,
    ToolFinished,
    ToolProposed,
    ToolStarted,
    decode,
)
from palyra.core.ids import CallId
from palyra.core.tool import JsonObject
from palyra.core.trace import Link, walk

TEXT_CHARS = 1000
"""How much of a long text a link quotes; the tape has the whole of it."""
LINE_CHARS = 160

_encode = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Focus:
    """Which part of a run is asked about: all of it, a turn, or a call; and at which entry."""

    turn: int | None = None
    call_id: CallId | None = None
    tape_seq: int | None = None


WHOLE = Focus()


@dataclass(slots=True)
class _Call:
    proposed: Entry
    event: ToolProposed
    links: list[Link] = field(default_factory=list)
    asked: dict[str, tuple[Entry, ApprovalRequested]] = field(default_factory=dict)
    started: tuple[Entry, ToolStarted] | None = None
    attempts: int = 0


@dataclass(slots=True)
class _Turn:
    entry: Entry
    event: ModelTurnStarted
    context: ContextAssembled | None
    seen: list[JsonObject]
    """Calls of this run whose results the model had before it."""
    text: list[str] = field(default_factory=list)
    ended: ModelTurnEnded | None = None
    voided: ModelTurnVoided | None = None
    calls: list[_Call] = field(default_factory=list)


def focus_on(entries: Sequence[Entry], tape_seq: int) -> Focus:
    """Return the part of the run that an entry of it belongs to."""
    entry = next(entry for entry in entries if entry.tape_seq == tape_seq)
    event = decode(entry.content)
    call_id, turn = getattr(event, "call_id", None), getattr(event, "turn", None)
    if isinstance(event, ContextAssembled):
        following = (decode(later.content) for later in entries if later.tape_seq > tape_seq)
        turn = next((later.turn for later in following if isinstance(later, ModelTurnStarted)), None)
    return Focus(turn=None if call_id is not None else turn, call_id=call_id, tape_seq=tape_seq)


def proposes(entries: Iterable[Entry], call_id: CallId) -> bool:
    """Tell whether a call was proposed in these entries."""
    return any(
        isinstance(event := decode(entry.content), ToolProposed) and event.call_id == call_id for entry in entries
    )


def run_tree(
    entries: Sequence[Entry],
    *,
    focus: Focus = WHOLE,
    left: Mapping[CallId, Sequence[Link]] | None = None,
    below: Mapping[CallId, Link] | None = None,
) -> Link:
    """Return the causes of a run as a tree that begins with its input.

    `left` is what calls left behind beside the tape, `below` what the tree of a child is that a call waited for.
    """
    story = _Story(left or {}, below or {})
    for entry in entries:
        story.take(entry, decode(entry.content))
    return story.tree(focus)


def file_link(checkpoint: Checkpoint, *, subject: bool = False) -> Link:
    """Return the link of a file that was changed."""
    happened = "changed"
    if checkpoint.before_digest is None:
        happened = "made"
    elif checkpoint.after_digest is None:
        happened = "deleted"
    return Link(
        kind="file" if checkpoint.call_id is not None else "restore",
        what=f"{happened} {checkpoint.path}" if checkpoint.call_id is not None else f"brought back {checkpoint.path}",
        at=checkpoint.at,
        by=checkpoint.what if checkpoint.call_id is not None else checkpoint.principal,
        session_id=checkpoint.session_id,
        run_id=checkpoint.run_id or "",
        facts=_given(
            path=checkpoint.path,
            checkpoint_id=checkpoint.checkpoint_id,
            call_id=checkpoint.call_id,
            before=checkpoint.before_digest,
            after=checkpoint.after_digest,
            restores=checkpoint.restores,
        ),
        subject=subject,
    )


def event_link(entry: Entry, *, subject: bool = False) -> Link:
    """Return the link of an event of a session itself, which no run caused."""
    event = decode(entry.content)
    facts = {
        name: value
        for name, value in msgspec.to_builtins(event).items()
        if name not in ("kind", "at", "actor", "labels", "carried_ms")
    }
    return _link(entry, event, "session", entry.kind.replace("_", " "), facts=facts, subject=subject)


class _Story:
    """Takes the entries of one run in their order."""

    def __init__(self, left: Mapping[CallId, Sequence[Link]], below: Mapping[CallId, Link]) -> None:
        self._left = left
        self._below = below
        self._root: Link | None = None
        self._parts: list[tuple[int, Link | _Turn | _Call]] = []
        self._calls: dict[CallId, _Call] = {}
        self._context: ContextAssembled | None = None
        self._seen: list[JsonObject] = []
        self._usage = [0, 0]

    def take(self, entry: Entry, event: Event) -> None:
        match event:
            case RunAccepted():
                self._root = _input(entry, event)
            case InputSteered():
                self._add(entry, _link(entry, event, "input", _quoted(event.text), facts={"text": _cut(event.text)}))
            case ContextAssembled():
                self._context = event
            case ModelTurnStarted():
                turn = _Turn(entry, event, self._context, list(self._seen))
                self._parts.append((entry.tape_seq, turn))
            case ModelText():
                self._turn.text.append(event.text)
            case ModelTurnEnded():
                self._turn.ended = event
                self._usage[0] += event.usage.input_tokens
                self._usage[1] += event.usage.output_tokens
            case ModelTurnVoided():
                self._turn.voided = event
            case ToolProposed():
                call = self._calls[event.call_id] = _Call(entry, event)
                if event.turn == 0:
                    # A person proposed it once more: it stands in no turn.
                    self._parts.append((entry.tape_seq, call))
                else:
                    self._turn.calls.append(call)
            case RunResumed():
                self._add(entry, _link(entry, event, "end", f"interrupted and taken up again: {event.reason}"))
            case LimitReached():
                limit = event.limit.value
                self._add(entry, _link(entry, event, "end", f"reached its limit of {limit.replace('_', ' ')}"))
            case CancelRequested():
                self._add(entry, _link(entry, event, "end", f"was to be cancelled: {event.reason}"))
            case RunCompleted():
                self._add(entry, _link(entry, event, "end", "answered", facts={"status": "done"}))
            case RunFailed():
                facts = {"status": "failed", "code": event.code}
                self._add(entry, _link(entry, event, "end", f"failed: {event.reason} [{event.code}]", facts=facts))
            case RunCancelled():
                facts = {"status": "cancelled"}
                self._add(entry, _link(entry, event, "end", f"was cancelled: {event.reason}", facts=facts))
            case _:
                self._take_of_call(entry, event)

    def _take_of_call(self, entry: Entry, event: Event) -> None:
        match event:
            case PolicyDecided():
                self._calls[event.call_id].links.append(_policy(entry, event))
            case ApprovalRequested():
                self._calls[event.call_id].asked[event.approval_id] = (entry, event)
            case ApprovalResolved():
                call = self._calls[event.call_id]
                call.links.append(_approval(entry, event, call.asked.pop(event.approval_id, None)))
            case ToolStarted():
                call = self._calls[event.call_id]
                call.started, call.attempts = (entry, event), event.attempt
            case ToolFinished():
                call = self._calls[event.call_id]
                call.links.append(_execution(entry, event, call))
                self._seen.append(_result(call, event.outcome.value, event.labels))
            case ChildStarted():
                facts = {"run_id": event.child_run_id, "session_id": event.child_session_id, "text": _cut(event.text)}
                what = f"delegated to run {event.child_run_id}: {_quoted(event.text)}"
                self._calls[event.call_id].links.append(_link(entry, event, "child", what, facts=facts))
            case ChildEnded():
                call = self._calls[event.call_id]
                call.links.append(_execution(entry, event, call))
                self._seen.append(_result(call, event.outcome.value, event.labels))
            case _:
                pass

    def tree(self, focus: Focus) -> Link:
        assert self._root is not None, "a run begins with its acceptance"
        then = []
        for _, part in self._parts:
            if isinstance(part, Link):
                if focus.turn is None and focus.call_id is None:
                    then.append(_marked(part, focus))
            elif isinstance(part, _Call):
                if focus.turn is None and focus.call_id in (None, part.event.call_id):
                    then.append(self._call(part, focus))
            elif (shown := self._shown(part, focus)) is not None:
                then.append(shown)
        tokens = {"input_tokens": self._usage[0], "output_tokens": self._usage[1]}
        root = _marked(replace(self._root, facts={**self._root.facts, **tokens}, then=tuple(then)), focus)
        # Of what has no link of its own, the whole is shown.
        return root if any(link.subject for link in walk(root)) else replace(root, subject=not self._below)

    def _shown(self, turn: _Turn, focus: Focus) -> Link | None:
        if focus.turn is not None and turn.event.turn != focus.turn:
            return None
        calls = [call for call in turn.calls if focus.call_id in (None, call.event.call_id)]
        if focus.call_id is not None and not calls:
            return None
        shown = [] if focus.turn is not None else [self._call(call, focus) for call in calls]
        asked = focus.turn is not None and turn.event.turn == focus.turn
        return replace(_marked(_turn(turn), focus), then=tuple(shown), subject=asked)

    def _call(self, call: _Call, focus: Focus) -> Link:
        call_id = call.event.call_id
        links = [*call.links, *(_open(entry, event) for entry, event in call.asked.values())]
        if call.started is not None and not any(link.kind == "execution" for link in links):
            links.append(_unfinished(*call.started))
        if (child := self._below.get(call_id)) is not None:
            links = [replace(link, then=(child,)) if link.kind == "child" else link for link in links]
        links += self._left.get(call_id, ())
        facts = _given(
            call_id=call_id,
            tool=call.event.tool,
            arguments=call.event.arguments,
            malformed=call.event.malformed,
        )
        what = f"{call.event.tool} {_line(_encode.encode(call.event.arguments).decode())}"
        then = tuple(_marked(part, focus) for part in links)
        asked = focus.call_id == call_id and not any(link.subject for part in then for link in walk(part))
        return replace(_link(call.proposed, call.event, "call", what, facts=facts), then=then, subject=asked)

    @property
    def _turn(self) -> _Turn:
        return next(part for _, part in reversed(self._parts) if isinstance(part, _Turn))

    def _add(self, entry: Entry, link: Link) -> None:
        self._parts.append((entry.tape_seq, link))


def _link(
    entry: Entry, event: Event, kind: str, what: str, *, facts: JsonObject | None = None, subject: bool = False
) -> Link:
    return Link(
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


def _marked(link: Link, focus: Focus) -> Link:
    return replace(link, subject=link.subject or (focus.tape_seq is not None and link.tape_seq == focus.tape_seq))


def _input(entry: Entry, event: RunAccepted) -> Link:
    facts = _given(
        text=_cut(event.text),
        principal=event.principal,
        origin=event.origin,
        mode=event.mode.value,
        agent_id=event.agent_id,
        agent_reason=event.agent_reason,
        parent_run_id=event.parent.run_id if event.parent else None,
        reissues=event.reissue.approval_id if event.reissue else None,
    )
    return _link(entry, event, "input", _quoted(event.text), facts=facts)


def _turn(turn: _Turn) -> Link:
    context, ended = turn.context, turn.ended
    facts = _given(
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
        results=turn.seen,
        text=_cut("".join(turn.text)),
        stop=ended.stop.value if ended else None,
        voided=turn.voided.reason if turn.voided else None,
    )
    if ended is not None:
        facts |= {"input_tokens": ended.usage.input_tokens, "output_tokens": ended.usage.output_tokens}
    what = f"{turn.event.turn}, {' '.join(dict.fromkeys((turn.event.provider, turn.event.model)))}"
    if ended is not None:
        what += f", {ended.usage.input_tokens} tokens in, {ended.usage.output_tokens} out"
    if turn.voided is not None:
        what += f", does not count: {turn.voided.reason}"
    return _link(turn.entry, turn.event, "turn", what, facts=facts)


def _policy(entry: Entry, event: PolicyDecided) -> Link:
    effect = event.effect
    facts = _given(
        verdict=event.verdict.value,
        risk=event.risk.value if event.risk else None,
        reason=event.reason,
        policies=list(event.policies),
        policy_hash=event.policy_hash,
        grant_id=event.grant_id,
        has_channel=event.has_channel or None,
        effect=effect.summary if effect else None,
        paths=list(effect.paths) if effect else None,
        hosts=list(effect.hosts) if effect else None,
        command=effect.command if effect else None,
    )
    clauses = f" by {', '.join(event.policies)}" if event.policies else ""
    grant = f", covered by grant {event.grant_id}" if event.grant_id else ""
    return _link(entry, event, "policy", f"{event.verdict.value}{clauses}: {event.reason}{grant}", facts=facts)


def _approval(entry: Entry, event: ApprovalResolved, asked: tuple[Entry, ApprovalRequested] | None) -> Link:
    facts = _given(
        approval_id=event.approval_id,
        asked_at=asked[1].at.isoformat() if asked else None,
        decision=event.decision.value,
        scope=event.scope.value,
        until=event.until.isoformat() if event.until else None,
        reason=event.reason,
        grant_id=event.grant_id,
        edited=event.arguments is not None or None,
        arguments=event.arguments,
    )
    edited = ", with other arguments" if event.arguments is not None else ""
    said = f": {event.reason}" if event.reason else ""
    what = f"{event.decision.value.replace('_', ' ')} by {event.actor}, {event.scope.value}{edited}{said}"
    return _link(entry, event, "approval", what, facts=facts)


def _open(entry: Entry, event: ApprovalRequested) -> Link:
    facts = {"approval_id": event.approval_id, "expires_at": event.expires_at.isoformat()}
    return _link(entry, event, "approval", "asked, and not answered", facts=facts)


def _execution(entry: Entry, event: ToolFinished | ChildEnded, call: _Call) -> Link:
    facts = _given(
        outcome=event.outcome.value,
        attempts=call.attempts or None,
        text=_cut(event.text),
        artifact_id=event.artifact if isinstance(event, ToolFinished) else None,
    )
    what = event.outcome.value if call.started is not None else f"{event.outcome.value}, never begun"
    if call.started is not None:
        took = (event.at - call.started[1].at).total_seconds()
        facts["took_seconds"] = took
        what += f" after {took:.1f} s"
    if event.attestation is not None:
        what += _of_statement(event.attestation, facts)
    return _link(entry, event, "execution", what, facts=facts)


def _of_statement(attested: attestation.Attestation, facts: JsonObject) -> str:
    """Add what the daemon stated about the execution; return it in words."""
    stated = attestation.read(attested.statement)
    facts["runtime"] = stated.runtime.value
    facts["ran"] = [msgspec.to_builtins(ran) for ran in stated.ran]
    words = [f"sandbox {ran.tier}, {ran.stopped or f'exit code {ran.exit_code}'}" for ran in stated.ran]
    return "".join(f", {word}" for word in words)


def _unfinished(entry: Entry, event: ToolStarted) -> Link:
    facts = {"attempts": event.attempt}
    return _link(entry, event, "execution", "begun, with no end on the tape", facts=facts)


def _result(call: _Call, outcome: str, labels: tuple[str, ...]) -> JsonObject:
    return {"call_id": call.event.call_id, "tool": call.event.tool, "outcome": outcome, "labels": list(labels)}


def _given(**facts: object) -> JsonObject:
    """Return the facts that there are."""
    return {name: value for name, value in facts.items() if value not in (None, "", [], ())}


def _quoted(text: str) -> str:
    return f"“{_line(text)}”"


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LINE_CHARS else line[: LINE_CHARS - 1] + "…"


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARS else text[: TEXT_CHARS - 1] + "…"
