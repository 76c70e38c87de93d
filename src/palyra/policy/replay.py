"""Calls judged once more: as they were recorded, or as somebody imagines them."""

from dataclasses import replace
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from palyra.core import labels
from palyra.core.approval import Grant, Scope
from palyra.core.call import DecidedCall
from palyra.core.channel import UNKNOWN
from palyra.core.effect import Effect
from palyra.core.ids import AgentId, PrincipalId, SessionId
from palyra.core.manifest import Manifest
from palyra.core.tool import Access, JsonObject, Risk, ToolSpec
from palyra.policy import risk
from palyra.policy.calls import of_call
from palyra.policy.gate import MANIFEST, Gate, Judgement, Question
from palyra.policy.leaks import guard

IMAGINED = "imagined"
"""Stands where an imagined call has no id, or no class of arguments."""
OWNER = "user:owner"
"""Whoever set the home up, on whose behalf things are done if nobody else is named."""
_SOME_DAY = datetime(2000, 1, 1, tzinfo=UTC)


class Imagined(Struct, frozen=True, kw_only=True):
    """A call that nobody made: what is not said has the most harmless value."""

    tool: str
    arguments: JsonObject = {}
    risk: Risk | None = None
    """The risk, and what it touches; by the arguments if nothing is said."""
    paths: tuple[str, ...] | None = None
    hosts: tuple[str, ...] | None = None
    credentials: tuple[str, ...] | None = None
    command: str | None = None
    access: Access | None = None
    """What the command may do; `write` if nothing is said."""
    label: str = labels.OWNER
    signals: tuple[str, ...] = ()
    channel: str = UNKNOWN
    has_channel: bool = True
    granted: bool = False
    principal: str = OWNER
    agent: str = IMAGINED


def judge_again(gate: Gate, call: DecidedCall, spec: ToolSpec) -> Judgement:
    """Judge a recorded call as if it were proposed now.

    An earlier answer that covered it then covers it now: what is asked is what the policies make of the same facts.
    """
    decided = call.decided
    if decided.policies == (MANIFEST,):
        # No policy had a say, and none would have now.
        risk_then = decided.risk or spec.risk
        return Judgement(decided.verdict, risk_then, decided.reason, decided.policies, gate.policy_hash)
    effect = decided.effect
    if effect is None:
        # Recorded before effects were: the arguments tell what they can.
        effect = of_call(spec, call.proposed.arguments)
        effect = msgspec.structs.replace(effect, risk=decided.risk or effect.risk)
    question = Question(
        principal=call.principal,
        agent_id=call.agent_id,
        session_id=call.session_id,
        tool=spec,
        effect=effect,
        labels=decided.labels or call.proposed.labels,
        channels=call.channels,
        has_channel=decided.has_channel or decided.effect is None,
        now=decided.at,
        signals=decided.signals,
    )
    return _judge(gate, question, granted=decided.grant_id is not None)


def judge_imagined(
    gate: Gate, call: Imagined, spec: ToolSpec, *, effect: Effect | None = None, manifest: Manifest | None = None
) -> Judgement:
    """Judge a call that somebody thinks of; `effect` is what the tool itself says that it would do."""
    found = guard(effect or of_call(spec, call.arguments), call.arguments)
    said = {name: getattr(call, name) for name in ("risk", "paths", "hosts", "credentials", "command", "access")}
    found = msgspec.structs.replace(found, **{name: value for name, value in said.items() if value is not None})
    if found.command and found.access is None:
        found = msgspec.structs.replace(found, access=Access.WRITE)
    if call.command is not None and call.risk is None:
        lowest = risk.highest([risk.of_command(call.command)], at_least=found.risk)
        found = msgspec.structs.replace(found, risk=Risk.LOW if found.access is Access.READ else lowest)
    question = Question(
        principal=PrincipalId(call.principal),
        agent_id=AgentId(call.agent),
        session_id=SessionId(IMAGINED),
        tool=spec,
        effect=found,
        labels=(call.label,),
        channels=(call.channel,),
        has_channel=call.has_channel,
        now=_SOME_DAY,
        manifest=manifest,
        signals=call.signals,
    )
    return _judge(gate, question, granted=call.granted)


def _judge(gate: Gate, question: Question, *, granted: bool) -> Judgement:
    """Judge with an answer that covers exactly this call, if there is to be one."""
    if not granted:
        return gate.judge(question, ())
    effect = msgspec.structs.replace(question.effect, kind=question.effect.kind or IMAGINED)
    question = replace(question, effect=effect)
    answer = Grant(
        grant_id=IMAGINED,
        principal=question.principal,
        agent_id=question.agent_id,
        tool=question.tool.name,
        kind=effect.kind,
        policy_hash=gate.policy_hash,
        label=labels.least_trusted(question.labels),
        scope=Scope.ALWAYS,
        session_id=None,
        granted_at=question.now,
    )
    return gate.judge(question, [answer])
