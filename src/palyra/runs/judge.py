"""Puts a call before the policy: what it would do, who could be asked, and what was allowed earlier."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from palyra.core import labels
from palyra.core.approval import Grant
from palyra.core.clock import Clock
from palyra.core.effect import Effect
from palyra.core.errors import PalyraError
from palyra.core.events import Entry, InputSteered, RunAccepted, ToolProposed
from palyra.core.ids import CallId
from palyra.core.manifest import Manifest
from palyra.core.run import RunState
from palyra.core.tool import ToolCall, Verdict
from palyra.policy.gate import Gate, Judgement, Question
from palyra.policy.leaks import guard
from palyra.runs.channels import Channels
from palyra.runs.dispatch import CallSeals
from palyra.tools.arguments import BadCall, check
from palyra.tools.base import Tool, ToolContext
from palyra.tools.catalog import Catalog
from palyra.tools.sealed import SealedElsewhere

SHORTEST_SAID = 3
_CLINGS = re.compile(r"[\w./\\~@:$%#=&?+*-]")
"""What stands right before a value, if that is the rest of something longer."""
_GOES_ON = re.compile(r"\w|[/\\@$%#=&?+*~-]|[.:]\w")
"""What stands right behind it, if it goes on; a full stop alone ends a sentence."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What the policy says of a call, and on what grounds."""

    effect: Effect
    judgement: Judgement
    labels: tuple[str, ...]
    has_channel: bool
    manifest_hash: str | None = None
    nobody_came: bool = False
    """Somebody who could be asked was waited for, in vain."""


class Judge:
    """Asks the gate, with everything that it must know."""

    def __init__(self, gate: Callable[[], Gate], channels: Channels, *, clock: Clock) -> None:
        """`gate` returns the one in force; it is asked for each time."""
        self._gate = gate
        self._channels = channels
        self._clock = clock

    @property
    def policy_hash(self) -> str:
        """What tells the policies in force from others."""
        return self._gate().policy_hash

    async def judge(
        self,
        state: RunState,
        call: ToolCall,
        *,
        catalog: Catalog,
        context: ToolContext,
        seals: CallSeals,
        grants: Sequence[Grant],
        origin: tuple[str, ...],
        answered: bool = False,
        patient: bool = True,
        signals: tuple[str, ...] = (),
    ) -> Judged | BadCall:
        """Return what may be done about the call; `origin` says where its arguments come from.

        A call with a marker that cannot go where the call would take it is refused before anything else.

        One that a person has `answered` about needs nobody who could be asked. Whoever is not `patient` does not wait
        for somebody who may be on the way.
        """
        if isinstance(fit := check(catalog, call), BadCall):
            return fit
        tool = catalog.get(call.tool)
        assert tool is not None
        try:
            opened = await seals.opened(tool)
            arguments = check(catalog, opened)
            if isinstance(arguments, BadCall):
                return arguments
            effect = await tool.effect(replace(context, sealed=seals), arguments)
            manifest = await asyncio.to_thread(tool.manifest, context) if tool.manifest is not None else None
            effect = await asyncio.to_thread(
                guard, effect, opened.arguments, recorded=call.arguments, runtime=tool.runtime
            )
        except SealedElsewhere as error:
            return BadCall(error.detail, rule=error.code)
        except PalyraError as error:
            # What can not even be looked at can not be carried out either. It may quote what is there.
            return BadCall(await seals.shown(error.detail))
        effect = await seals.marked(effect)
        has_channel = answered or self._channels.reachable(state.principal, state.session_id)

        def ask(has_channel: bool) -> Awaitable[Judgement]:
            return self._ask(state, tool, effect, grants, origin, manifest, signals, has_channel=has_channel)

        judgement, nobody_came = await ask(has_channel), False
        if judgement.verdict is Verdict.DENY and not has_channel and patient:
            # Somebody may be on the way here, and that may be all that is missing.
            with_channel = await ask(True)
            if with_channel.verdict is not Verdict.DENY:
                has_channel = await self._channels.wait_for(state.principal, state.session_id)
                judgement, nobody_came = with_channel if has_channel else judgement, not has_channel
        # What is allowed is tried at once and says so itself.
        if judgement.verdict is Verdict.ASK and (unready := await _unready(tool, context, arguments)):
            return BadCall(await seals.shown(unready.detail), rule=unready.code)
        manifest_hash = manifest.digest if manifest is not None else None
        return Judged(effect, judgement, origin, has_channel, manifest_hash, nobody_came)

    async def _ask(
        self,
        state: RunState,
        tool: Tool,
        effect: Effect,
        grants: Sequence[Grant],
        origin: tuple[str, ...],
        manifest: Manifest | None,
        signals: tuple[str, ...],
        *,
        has_channel: bool,
    ) -> Judgement:
        question = Question(
            principal=state.principal,
            agent_id=state.agent_id,
            session_id=state.session_id,
            tool=tool.spec,
            effect=effect,
            labels=origin,
            channels=state.channels,
            has_channel=has_channel,
            now=self._clock.now(),
            manifest=manifest,
            signals=signals,
        )
        # Off the event loop: the first judgement loads the engine.
        return await asyncio.to_thread(self._gate().judge, question, grants)


async def _unready(tool: Tool, context: ToolContext, arguments: msgspec.Struct) -> PalyraError | None:
    """Return what keeps a call from being carried out now, if anything does."""
    try:
        if tool.ready is not None:
            await tool.ready(context, arguments)
    except PalyraError as error:
        return error
    return None


def origins(entries: Iterable[Entry], calls: Iterable[CallId]) -> dict[CallId, tuple[str, ...]]:
    """Return where the arguments of each call come from, given the entries of its run.

    What the model wrote has the labels of all that it had read, unless every value of it stands literally in what the
    owner said: then the owner said it. A part of a longer word or path is not what the owner said, and values of which
    none has more than a letter or two are found by chance.
    """
    wanted, said, found = set(calls), list[str](), dict[CallId, tuple[str, ...]]()
    for entry in entries:
        match entry.event:
            case RunAccepted(text=text, labels=of) | InputSteered(text=text, labels=of) if of == (labels.OWNER,):
                said.append(text)
            case ToolProposed(call_id=call_id, arguments=arguments, labels=of) if call_id in wanted:
                values = [value for part in arguments.values() for value in _texts(part)]
                spoken = _tells(values) and all(any(_stands_in(text, value) for text in said) for value in values)
                found[call_id] = (labels.OWNER,) if spoken else of
            case _:
                pass
    return found


def _tells(values: Iterable[str]) -> bool:
    """Tell whether any value is long enough to have been meant: "a" and "1" stand in nearly everything."""
    return any(len(value.strip()) >= SHORTEST_SAID for value in values)


def _stands_in(text: str, value: str) -> bool:
    """Tell whether a value stands in a text by itself, with nothing before or behind it that belongs to it."""
    place = text.find(value) if value else 0
    while place >= 0:
        before, after = text[:place][-1:], text[place + len(value) :][:2]
        if not value or not (_CLINGS.match(before) or _GOES_ON.match(after)):
            return True
        place = text.find(value, place + 1)
    return False


def _texts(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, part in value.items():
            # Names within an argument are the model's own; those of the arguments are the tool's.
            yield name
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
    elif value is not None and not isinstance(value, bool):
        yield msgspec.json.encode(value).decode()
