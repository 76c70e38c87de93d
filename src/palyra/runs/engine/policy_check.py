"""Checks a call against the policy: its effect, the reachable approvers, and earlier grants."""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from palyra.core.clock import Clock
from palyra.core.errors import PalyraError
from palyra.core.events import Entry, InputSteered, RunAccepted, ToolProposed
from palyra.core.ids import CallId
from palyra.core.policy import labels
from palyra.core.policy.approval import Grant
from palyra.core.policy.effect import Effect
from palyra.core.run.state import RunState
from palyra.core.tool import ToolCall, Verdict
from palyra.policy.effect_redaction import redact_effect
from palyra.policy.gate import Gate, Judgement
from palyra.policy.query import PolicyQuery
from palyra.runs.engine.unsealing import CallUnsealer
from palyra.runs.services.approvers import ApproverPresence
from palyra.tools.arguments import CallProblem, check
from palyra.tools.base import Tool, ToolContext
from palyra.tools.catalog import ToolCatalog
from palyra.tools.sealed_values import SecretMarkerNotAllowed

MIN_QUOTED_CHARS = 3
_CLINGS = re.compile(r"[\w./\\~@:$%#=&?+*-]")
"""Characters right before a value that make it the end of something longer."""
_GOES_ON = re.compile(r"\w|[/\\@$%#=&?+*~-]|[.:]\w")
"""Characters right after a value that make it the start of something longer; a full stop alone ends a sentence."""


@dataclass(frozen=True, slots=True)
class PolicyJudgement:
    """The policy's decision on a call, and the grounds for it."""

    effect: Effect
    judgement: Judgement
    labels: tuple[str, ...]
    approver_reachable: bool
    manifest_hash: str | None = None
    approval_expired: bool = False
    """Whether an approver was waited for, and did not come."""


@dataclass(frozen=True, slots=True)
class ProposedCall:
    """A call, and what it would work with."""

    call: ToolCall
    catalog: ToolCatalog
    context: ToolContext
    seals: CallUnsealer


class PolicyJudge:
    """Asks the gate, with everything it must know."""

    def __init__(self, gate: Callable[[], Gate], channels: ApproverPresence, *, clock: Clock) -> None:
        """`gate` returns the one in force; it is called each time."""
        self._gate = gate
        self._channels = channels
        self._clock = clock

    @property
    def policy_hash(self) -> str:
        """The hash that identifies the policies in force."""
        return self._gate().policy_hash

    async def judge(
        self,
        state: RunState,
        proposed: ProposedCall,
        *,
        grants: Sequence[Grant],
        origin: tuple[str, ...],
        answered: bool = False,
        patient: bool = True,
        signals: tuple[str, ...] = (),
    ) -> PolicyJudgement | CallProblem:
        """Return the decision on the call; `origin` says where its arguments come from.

        A call with a marker that cannot go where the call would send it is refused before anything else.

        A call that a person has `answered` needs no reachable approver. Without `patient`, an approver who may be about
        to connect is not waited for.
        """
        call, catalog, context, seals = proposed.call, proposed.catalog, proposed.context, proposed.seals
        if isinstance(fit := check(catalog, call), CallProblem):
            return fit
        tool = catalog.get(call.tool)
        assert tool is not None
        try:
            opened = await seals.opened(tool)
            arguments = check(catalog, opened)
            if isinstance(arguments, CallProblem):
                return arguments
            effect = await tool.effect(replace(context, sealed=seals), arguments)
            manifest = await asyncio.to_thread(tool.manifest, context) if tool.manifest is not None else None
            effect = await asyncio.to_thread(
                redact_effect, effect, opened.arguments, recorded=call.arguments, runtime=tool.runtime
            )
        except SecretMarkerNotAllowed as error:
            return CallProblem(error.detail, rule=error.code)
        except PalyraError as error:
            # A call that cannot be checked cannot be executed either. The error may quote file contents.
            return CallProblem(await seals.reseal(error.detail))
        effect = await seals.marked(effect)
        approver_reachable = answered or self._channels.reachable(state.principal, state.session_id)
        question = PolicyQuery(
            principal=state.principal,
            agent_id=state.agent_id,
            session_id=state.session_id,
            tool=tool.spec,
            effect=effect,
            labels=origin,
            channels=state.channels,
            approver_reachable=approver_reachable,
            now=self._clock.now(),
            manifest=manifest,
            signals=signals,
        )
        judgement, nobody_came = await self._ask(question, grants), False
        if judgement.verdict is Verdict.DENY and not approver_reachable and patient:
            # An approver may be about to connect, and only that may be missing.
            with_approver = await self._ask(replace(question, approver_reachable=True), grants)
            if with_approver.verdict is not Verdict.DENY:
                approver_reachable = await self._channels.wait_for(state.principal, state.session_id)
                judgement, nobody_came = with_approver if approver_reachable else judgement, not approver_reachable
        # An allowed call is tried at once, and reports problems itself.
        if judgement.verdict is Verdict.ASK and (unready := await _unready(tool, context, arguments)):
            return CallProblem(await seals.reseal(unready.detail), rule=unready.code)
        manifest_hash = manifest.digest if manifest is not None else None
        return PolicyJudgement(effect, judgement, origin, approver_reachable, manifest_hash, nobody_came)

    async def _ask(self, question: PolicyQuery, grants: Sequence[Grant]) -> Judgement:
        # Off the event loop: the first judgement loads the engine.
        return await asyncio.to_thread(self._gate().judge, question, grants)


async def _unready(tool: Tool, context: ToolContext, arguments: msgspec.Struct) -> PalyraError | None:
    """Return the reason why a call cannot be executed now, if there is one."""
    try:
        if tool.ready is not None:
            await tool.ready(context, arguments)
    except PalyraError as error:
        return error
    return None


def origins(entries: Iterable[Entry], calls: Iterable[CallId]) -> dict[CallId, tuple[str, ...]]:
    """Return where the arguments of each call come from, taken from the entries of its run.

    What the model wrote has the labels of everything it had read, unless each of its values occurs literally in the
    owner's messages: then the owner said it. A part of a longer word or path does not count, and neither do values that
    are all only a letter or two long: those occur by chance.
    """
    call_ids, texts, matches = set(calls), list[str](), dict[CallId, tuple[str, ...]]()
    for entry in entries:
        match entry.event:
            case RunAccepted(text=text, labels=of) | InputSteered(text=text, labels=of) if of == (labels.OWNER,):
                texts.append(text)
            case ToolProposed(call_id=call_id, arguments=arguments, labels=of) if call_id in call_ids:
                values = [value for part in arguments.values() for value in _texts(part)]
                spoken = _is_informative(values) and all(
                    any(_occurs_in(text, value) for text in texts) for value in values
                )
                matches[call_id] = (labels.OWNER,) if spoken else of
            case _:
                pass
    return matches


def _is_informative(values: Iterable[str]) -> bool:
    """Tell whether any value is long enough to be meant: "a" and "1" occur in nearly every text."""
    return any(len(value.strip()) >= MIN_QUOTED_CHARS for value in values)


def _occurs_in(text: str, value: str) -> bool:
    """Tell whether a value occurs in a text by itself, with nothing before or after it that belongs to it."""
    index = text.find(value) if value else 0
    while index >= 0:
        before, after = text[:index][-1:], text[index + len(value) :][:2]
        if not value or not (_CLINGS.match(before) or _GOES_ON.match(after)):
            return True
        index = text.find(value, index + 1)
    return False


def _texts(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, part in value.items():
            # Keys within an argument are the model's own; the names of the arguments are the tool's.
            yield name
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
    elif value is not None and not isinstance(value, bool):
        yield msgspec.json.encode(value).decode()
