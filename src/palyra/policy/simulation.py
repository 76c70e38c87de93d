"""Judges calls again: recorded calls, or hypothetical ones."""

from dataclasses import replace
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from palyra.core.channel import UNKNOWN
from palyra.core.ids import AgentId, PrincipalId, SessionId
from palyra.core.policy import labels
from palyra.core.policy.approval import ApprovalScope, Grant
from palyra.core.policy.effect import Effect
from palyra.core.policy.manifest import CapabilityManifest
from palyra.core.run.decided_calls import DecidedCall
from palyra.core.tool import FolderAccess, JsonObject, Risk, ToolSpec
from palyra.policy import risk
from palyra.policy.call_effects import effect_of_call
from palyra.policy.effect_redaction import redact_effect
from palyra.policy.gate import MANIFEST, Gate, Judgement
from palyra.policy.query import PolicyQuery

HYPOTHETICAL = "imagined"
"""Used where a hypothetical call has no id, or no class of arguments."""
OWNER = "user:owner"
"""The owner of the home, used if no other principal is named."""
_SOME_DAY = datetime(2000, 1, 1, tzinfo=UTC)


class HypotheticalCall(Struct, frozen=True, kw_only=True):
    """A call that was not made: what is not set has the most harmless value."""

    tool: str
    arguments: JsonObject = {}
    risk: Risk | None = None
    """The risk, and what it touches; derived from the arguments if not set."""
    paths: tuple[str, ...] | None = None
    hosts: tuple[str, ...] | None = None
    credentials: tuple[str, ...] | None = None
    command: str | None = None
    access: FolderAccess | None = None
    """What the command may do; `write` if not set."""
    label: str = labels.OWNER
    signals: tuple[str, ...] = ()
    channel: str = UNKNOWN
    approver_reachable: bool = True
    granted: bool = False
    principal: str = OWNER
    agent: str = HYPOTHETICAL


def judge_again(gate: Gate, call: DecidedCall, spec: ToolSpec) -> Judgement:
    """Judge a recorded call as if it were proposed now.

    A grant that covered it then covers it now: the policies are evaluated on the same facts.
    """
    decided = call.decided
    if decided.policies == (MANIFEST,):
        # No policy decided then, and none would now.
        risk_then = decided.risk or spec.risk
        return Judgement(decided.verdict, risk_then, decided.reason, decided.policies, gate.policy_hash)
    effect = decided.effect
    if effect is None:
        # Recorded before effects existed: they are derived from the arguments.
        effect = effect_of_call(spec, call.proposed.arguments)
        effect = msgspec.structs.replace(effect, risk=decided.risk or effect.risk)
    question = PolicyQuery(
        principal=call.principal,
        agent_id=call.agent_id,
        session_id=call.session_id,
        tool=spec,
        effect=effect,
        labels=decided.labels or call.proposed.labels,
        channels=call.channels,
        approver_reachable=decided.approver_reachable or decided.effect is None,
        now=decided.at,
        signals=decided.signals,
    )
    return _judge(gate, question, granted=decided.grant_id is not None)


def judge_hypothetical(
    gate: Gate,
    call: HypotheticalCall,
    spec: ToolSpec,
    *,
    effect: Effect | None = None,
    manifest: CapabilityManifest | None = None,
) -> Judgement:
    """Judge a hypothetical call; `effect` is the effect that the tool itself describes."""
    matching_effect = redact_effect(effect or effect_of_call(spec, call.arguments), call.arguments)
    document = {name: getattr(call, name) for name in ("risk", "paths", "hosts", "credentials", "command", "access")}
    matching_effect = msgspec.structs.replace(
        matching_effect, **{name: value for name, value in document.items() if value is not None}
    )
    if matching_effect.command and matching_effect.access is None:
        matching_effect = msgspec.structs.replace(matching_effect, access=FolderAccess.WRITE)
    if call.command is not None and call.risk is None:
        lowest = risk.highest([risk.of_command(call.command)], at_least=matching_effect.risk)
        matching_effect = msgspec.structs.replace(
            matching_effect, risk=Risk.LOW if matching_effect.access is FolderAccess.READ else lowest
        )
    question = PolicyQuery(
        principal=PrincipalId(call.principal),
        agent_id=AgentId(call.agent),
        session_id=SessionId(HYPOTHETICAL),
        tool=spec,
        effect=matching_effect,
        labels=(call.label,),
        channels=(call.channel,),
        approver_reachable=call.approver_reachable,
        now=_SOME_DAY,
        manifest=manifest,
        signals=call.signals,
    )
    return _judge(gate, question, granted=call.granted)


def _judge(gate: Gate, question: PolicyQuery, *, granted: bool) -> Judgement:
    """Judge with a grant that covers exactly this call, if requested."""
    if not granted:
        return gate.judge(question, ())
    effect = msgspec.structs.replace(question.effect, kind=question.effect.kind or HYPOTHETICAL)
    question = replace(question, effect=effect)
    answer = Grant(
        grant_id=HYPOTHETICAL,
        principal=question.principal,
        agent_id=question.agent_id,
        tool=question.tool.name,
        kind=effect.kind,
        policy_hash=gate.policy_hash,
        label=labels.least_trusted(question.labels),
        scope=ApprovalScope.ALWAYS,
        session_id=None,
        granted_at=question.now,
    )
    return gate.judge(question, [answer])
