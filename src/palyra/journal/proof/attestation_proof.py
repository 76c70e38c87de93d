"""Verifies attestations: compares each execution on a tape with what the daemon signed when it ended.

The chain shows that a tape was not changed; but until the next anchor, a program that can write to the database can
make a new chain. The attestations are signed one by one, so no execution can be changed at any time without the key.

Most entries do not concern calls and are skipped. Of the others only the compared fields are decoded.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

import msgspec
from msgspec import Struct

from palyra.core import attestation
from palyra.core.attestation import Attestation, FullResult, digest_of_json, digest_of_text
from palyra.core.events import ApprovalDecision, Entry
from palyra.core.tool import CallRuntime, JsonObject
from palyra.journal.proof.signing_key import is_signed

FullResultOf = Callable[[str], FullResult | None]
"""Returns the stored content of an artifact by its id."""


class _Accepted(Struct, frozen=True):
    principal: str
    agent_id: str


class _Proposed(Struct, frozen=True):
    call_id: str
    tool: str
    arguments: JsonObject


class _Decided(Struct, frozen=True):
    call_id: str
    policy_hash: str = ""
    grant_id: str | None = None


class _Answered(Struct, frozen=True):
    call_id: str
    approval_id: str
    decision: ApprovalDecision
    arguments: JsonObject | None = None


class _Started(Struct, frozen=True):
    call_id: str
    at: datetime
    attempt: int = 1
    runtime: CallRuntime | None = None
    spec: str = ""


class _Ended(Struct, frozen=True):
    call_id: str
    at: datetime
    outcome: str
    text: str
    artifact: str | None = None
    attestation: Attestation | None = None


_accepted = msgspec.json.Decoder(_Accepted)
_proposed = msgspec.json.Decoder(_Proposed)
_decided = msgspec.json.Decoder(_Decided)
_answered = msgspec.json.Decoder(_Answered)
_started = msgspec.json.Decoder(_Started)
_ended = msgspec.json.Decoder(_Ended)

_CALL_KINDS = frozenset(
    {
        "run_accepted",
        "tool_proposed",
        "policy_decided",
        "approval_resolved",
        "tool_started",
        "tool_finished",
        "child_ended",
        "run_completed",
        "run_failed",
        "run_cancelled",
    }
)


@dataclass(slots=True)
class _CallOnTape:
    """What the tape says of a call so far."""

    proposed: _Proposed | None = None
    decided: _Decided | None = None
    answered: _Answered | None = None
    arguments: JsonObject | None = None
    """The arguments that the model proposed, or that a person changed."""
    started: _Started | None = None


@dataclass(slots=True)
class _Run:
    accepted: str | None = None
    """The content of its first entry, which is only decoded if the run has executed something."""
    calls: dict[str, _CallOnTape] = field(default_factory=dict)


@dataclass(slots=True)
class AttestationCounts:
    """Counts of the executions on the verified tapes."""

    attested: int = 0
    """Executions with an attestation, which was checked."""
    unattested: int = 0
    """Executions from before there were attestations."""


class AttestationVerifier:
    """Follows the calls of one tape, and compares each end of an execution with its attestation."""

    def __init__(
        self,
        counts: AttestationCounts,
        *,
        key: str | None,
        whole_of: FullResultOf | None = None,
        from_start: bool = True,
    ) -> None:
        """`key` must have signed them. Without `from_start`, the tape may end calls whose start is not here."""
        self.fault: tuple[int, str] | None = None
        """The first invalid entry, and why it is invalid."""
        self._counts = counts
        self._key = key
        self._whole_of = whole_of
        self._from_start = from_start
        self._runs: dict[str, _Run] = {}

    def follow(self, chain: Iterable[tuple[Entry, str, str]]) -> Iterator[tuple[Entry, str, str]]:
        """Pass on a chain, and check each entry after the consumer has verified it."""
        for link in chain:
            yield link
            if link[0].kind in _CALL_KINDS:
                self.take(link[0])

    def take(self, entry: Entry) -> str | None:
        """Check the next entry, and return what is wrong with it."""
        try:
            what = self._take(entry)
        except (msgspec.DecodeError, UnicodeError):
            what = "this entry of a call cannot be read"
        if what is not None and self.fault is None:
            self.fault = entry.tape_seq, what
        return what

    def _take(self, entry: Entry) -> str | None:
        run = self._runs.setdefault(entry.run_id or "", _Run())
        match entry.kind:
            case "run_accepted":
                run.accepted = entry.content
            case "tool_proposed":
                proposed = _proposed.decode(entry.content)
                run.calls[proposed.call_id] = _CallOnTape(proposed=proposed, arguments=proposed.arguments)
            case "policy_decided":
                decided = _decided.decode(entry.content)
                run.calls.setdefault(decided.call_id, _CallOnTape()).decided = decided
            case "approval_resolved":
                answered = _answered.decode(entry.content)
                if answered.decision is ApprovalDecision.ALLOWED:
                    call = run.calls.setdefault(answered.call_id, _CallOnTape())
                    call.answered = answered
                    call.arguments = answered.arguments if answered.arguments is not None else call.arguments
            case "tool_started":
                started = _started.decode(entry.content)
                run.calls.setdefault(started.call_id, _CallOnTape()).started = started
            case "tool_finished" | "child_ended":
                ended = _ended.decode(entry.content)
                return self._end(entry, run, run.calls.pop(ended.call_id, _CallOnTape()), ended)
            case "run_completed" | "run_failed" | "run_cancelled":
                del self._runs[entry.run_id or ""]
            case _:
                pass
        return None

    def _end(self, entry: Entry, run: _Run, call: _CallOnTape, ended: _Ended) -> str | None:
        if ended.attestation is None:
            if call.started is not None and call.started.runtime is not None:
                return "the execution that ended here is not attested"
            if call.started is not None or not self._from_start:
                self._counts.unattested += 1
            return None
        self._counts.attested += 1
        signed = ended.attestation
        if signed.public_key != self._key or not is_signed(
            signed.public_key, signed.statement.encode(), signed.signature
        ):
            return "the attestation of this execution is not signed by this journal's key"
        stated = attestation.read(signed.statement)
        if call.started is None and self._from_start:
            return "an execution that never started is attested here"
        for noun, result, text in _compared(entry, run, call, ended, stated):
            if result != text:
                return f"the attestation names another {noun} than the tape"
        if stated.full_result is not None and self._whole_of is not None:
            full_result = self._whole_of(stated.full_result.artifact_id)
            if full_result != stated.full_result:
                return "the stored full result differs from the attested one"
        return None


def _compared(
    entry: Entry, run: _Run, call: _CallOnTape, ended: _Ended, stated: attestation.Statement
) -> Iterator[tuple[str, object, object]]:
    """Yield the values on the tape and in the attestation, as far as the tape is here."""
    yield "session", entry.session_id, stated.session_id
    yield "run", entry.run_id, stated.run_id
    yield "call", ended.call_id, stated.call_id
    yield "result", digest_of_text(ended.text), stated.result
    yield "outcome", ended.outcome, stated.outcome
    yield "end", ended.at, stated.finished_at
    yield "artifact", ended.artifact, stated.full_result.artifact_id if stated.full_result is not None else None
    if run.accepted is not None:
        accepted = _accepted.decode(run.accepted)
        yield "principal", accepted.principal, stated.principal
        yield "agent", accepted.agent_id, stated.agent_id
    if call.proposed is not None:
        yield "tool", call.proposed.tool, stated.tool
        yield "answer", call.answered.approval_id if call.answered is not None else None, stated.approval_id
    if call.arguments is not None:
        yield "set of arguments", digest_of_json(call.arguments), stated.arguments
    if call.decided is not None:
        yield "policy", call.decided.policy_hash, stated.policy_hash
        yield "grant", call.decided.grant_id, stated.grant_id
    if call.started is not None:
        start = call.started
        yield "start", (start.at, start.attempt), (stated.started_at, stated.attempt)
        yield "tool", (start.runtime, start.spec), (stated.runtime, stated.spec)
