"""Call the model: choose one, assemble its context, reserve the cost of the turn, and stream the answer.

An attempt that fails is a discarded turn on the tape, with its reason. What follows is decided there, from all attempts
so far: the same model after a pause, the next one, or the end of the run. So a restart in between changes nothing.
"""

import asyncio
import logging
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import msgspec

from palyra.core.errors import Invalid
from palyra.core.events import ContextAssembled, Entry, ModelTurnDiscarded, ModelTurnStarted, RunEvent, RunFailed
from palyra.core.model.catalog import TaskClass
from palyra.core.model.prompt import Message, Prompt, Role
from palyra.core.model.routing_plan import RoutingPlan
from palyra.core.policy import labels
from palyra.core.run import discovered_tools
from palyra.core.run.state import FailedAttempt, RunState
from palyra.core.run.steps import CallModel
from palyra.core.spending.budget import Reservation
from palyra.core.tool import ToolSpec
from palyra.journal import tape
from palyra.journal.content import blobs
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import sessions
from palyra.memory.prompt_assembly import AssembledPrompt, PromptSources
from palyra.providers import routing
from palyra.providers.base import Provider, ProviderFailed
from palyra.providers.model_pool import full_name
from palyra.providers.routing import TurnNeeds
from palyra.runs.engine.models import ModelParts
from palyra.runs.engine.overdraft import OverdraftPolicy
from palyra.runs.engine.steps.model_turn import ModelOutputTooLarge, ModelTurn, TurnFailure, TurnRequest
from palyra.runs.recording.emit import Emit
from palyra.runs.services.agents import AgentMissing
from palyra.runs.services.budgets import BudgetExceeded
from palyra.runs.services.sealing import SecretSealer
from palyra.runs.system import System
from palyra.tools.toolbox import Toolbox

SEARCHED = ("model_turn_started", "tool_finished")
MAX_ENTRIES_BACK = 200
"""How many turns and results of a session are searched for its discovered tools."""
MODEL_MISSING = "model_missing"
NO_PICTURE = "[an image was left out: this model does not accept images]"
OLD_PICTURE = "[an image was left out: later images use all the space]"
MAX_PICTURE_BYTES = 20 * 1024 * 1024
"""The maximum size of all pictures in a prompt: what one message can bring, and no more than providers accept."""
NARROWED = "the model accepts less than expected: older messages were left out"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _OfferedTools:
    """The tools that a turn offers."""

    specs: tuple[ToolSpec, ...]
    labels: tuple[str, ...]
    """Where their descriptions come from, apart from Palyra itself."""


_NOTHING_OFFERED = _OfferedTools((), ())


class ModelStep:
    """Executes `CallModel`."""

    def __init__(
        self,
        engine: Engine,
        system: System,
        models: ModelParts,
        *,
        overdraft: OverdraftPolicy,
        seals: SecretSealer,
        toolbox: Toolbox,
    ) -> None:
        self._engine = engine
        self._config = system.config
        self._clock = system.clock
        self._ids = system.ids
        self._pool = models.pool
        self._prompts = models.prompts
        self._budgets = models.budgets
        self._overdraft = overdraft
        self._seals = seals
        self._toolbox = toolbox

    async def perform(self, state: RunState, step: CallModel, emit: Emit) -> None:
        """Make one attempt at a model turn."""
        pinned = state.options.model
        try:
            widest_tokens = self._pool.widest_tokens(pinned)
        except Invalid as error:
            # The settings have changed since the message was accepted.
            await emit([RunFailed(at=self._clock.now(), code=MODEL_MISSING, reason=error.detail)])
            return
        seen = await self._prompts.read(state, widest_tokens=widest_tokens)
        if seen is None:
            raise AgentMissing
        brought = await self._discovered_tools(state, seen.agent.tools)
        offered = _NOTHING_OFFERED if step.last else self._offered(state, seen, brought)
        tools = offered.specs
        requested_request = self._turn(state, seen, tools)
        refusals: dict[str, BudgetExceeded] = {}
        while (plan := self._pool.plan(requested_request, agent=seen.agent, pinned=pinned)).choice:
            if state.failures:
                await asyncio.sleep(routing.pause_seconds(plan.choice, state.failures))
            provider = self._pool.named(plan.choice)
            context = self._assemble(state, seen, offered, provider, plan)
            prompt = await self._with_pictures(context.prompt, provider) if context.window.pictured else context.prompt
            try:
                reserved = await self._begin(state, step, plan, provider, context, brought, emit)
            except BudgetExceeded as refusal:
                refusals[plan.choice] = refusal
                requested_request = replace(
                    requested_request, refused={name: one.detail for name, one in refusals.items()}
                )
                continue
            request = TurnRequest(
                provider,
                prompt,
                labels=context.window.labels,
                reserved=reserved,
                cost=partial(self._budgets.cost, full_name(provider)),
                # Whether a last turn has said enough is decided where the run ends.
                must_speak=not step.last and _must_speak(state, prompt),
            )
            broken = await self._stream(state, request, emit)
            if broken is not None:
                # A refusal that the owner can still be asked about does not end the run.
                final = {name: one.detail for name, one in refusals.items() if not one.can_ask}
                events = self._broken(state, seen, replace(requested_request, refused=final), provider, broken)
                await emit(events, also=broken.also)
            return
        if refusals:
            await emit([await self._overdraft.of(state, list(refusals.values()))])
        else:
            await emit([_unanswered(plan, state.failures, at=self._clock.now())])

    async def _begin(
        self,
        state: RunState,
        step: CallModel,
        plan: RoutingPlan,
        provider: Provider,
        context: AssembledPrompt,
        brought: tuple[str, ...],
        emit: Emit,
    ) -> Reservation:
        """Record the prompt and the start of the turn; reserve what the turn may use, and return the reservation."""
        window, at = context.window, self._clock.now()
        narrowed = routing.narrowings(state.failures, plan.choice) > 0
        maximum = context.prompt.options.max_output_tokens or provider.capabilities.max_output_tokens
        reserved = self._budgets.estimate(plan.choice, context.max_tokens, maximum)
        await emit(
            [
                ContextAssembled(
                    at=at,
                    labels=window.labels,
                    inputs=state.inputs,
                    first_seq=window.first_seq,
                    last_seq=window.last_seq,
                    messages=window.count,
                    dropped=window.dropped,
                    estimated_tokens=context.estimated_tokens,
                    window_tokens=provider.capabilities.window_tokens,
                    digest=context.digest,
                    narrowed=NARROWED if narrowed else "",
                ),
                ModelTurnStarted(
                    at=at,
                    labels=window.labels,
                    turn=state.turns + 1,
                    provider=provider.name,
                    model=provider.model,
                    reason=plan.reason,
                    last=step.last,
                    settings_hash=self._config.hash,
                    discovered_tools=brought,
                    plan=plan,
                    reserved=reserved,
                ),
            ],
            also=self._budgets.guard(state, plan.choice, reserved, at) if self._budgets.are_set else None,
        )
        return reserved

    async def _stream(self, state: RunState, request: TurnRequest, emit: Emit) -> TurnFailure | None:
        """Run the turn, and record the provider's health."""
        sealing = self._seals.sealing(state.principal)
        turn = ModelTurn(state, request, sealing, clock=self._clock, ids=self._ids)
        self._pool.note_attempt(request.provider)
        broken = await turn.take(emit)
        if broken is None:
            self._pool.answered(request.provider)
        else:
            self._pool.failed(request.provider, broken.error)
        return broken

    def _offered(self, state: RunState, seen: PromptSources, brought: tuple[str, ...]) -> _OfferedTools:
        catalog = None if state.options.plain else self._toolbox.offer(seen.agent.tools, brought, who=state.principal)
        own = catalog.specs() if catalog is not None else ()
        # The same object as before where nothing is added: measurements of it still hold.
        specs = (*own, *(tool.spec() for tool in state.options.tools)) if state.options.tools else own
        return _OfferedTools(specs, catalog.labels if catalog is not None else ())

    def _turn(self, state: RunState, seen: PromptSources, tools: tuple[ToolSpec, ...]) -> routing.RoutingRequest:
        text = seen.conversation.last_input
        return routing.RoutingRequest(
            need=TurnNeeds(
                tools=bool(tools),
                vision=seen.conversation.last_pictured,
                context_tokens=self._prompts.min_tokens(state, seen, tools),
            ),
            task=TaskClass.BACKGROUND if state.parent is not None else state.options.task,
            complexity=routing.complexity_of(turns=state.counted_turns, input_chars=len(text), has_code="```" in text),
            failures=state.failures,
        )

    def _assemble(
        self, state: RunState, seen: PromptSources, offered: _OfferedTools, provider: Provider, plan: RoutingPlan
    ) -> AssembledPrompt:
        can = provider.capabilities
        offered_tools = offered if can.tools else _NOTHING_OFFERED
        context = self._prompts.assemble(
            state,
            seen,
            offered_tools.specs,
            window_tokens=can.window_tokens,
            halved=routing.narrowings(state.failures, plan.choice),
        )
        maximum = self._pool.max_output_tokens
        requested = min(state.options.generation.max_output_tokens or maximum, maximum)
        room = max(1, can.window_tokens - context.estimated_tokens)
        options = msgspec.structs.replace(
            context.prompt.options, max_output_tokens=min(requested, can.max_output_tokens, room)
        )
        window = context.window
        if offered_tools.labels:
            window = replace(window, labels=labels.join(window.labels, offered_tools.labels))
        return replace(context, prompt=msgspec.structs.replace(context.prompt, options=options), window=window)

    async def _with_pictures(self, prompt: Prompt, provider: Provider) -> Prompt:
        """Return the prompt with the latest pictures of its messages, and a note for each one left out."""
        maximum = MAX_PICTURE_BYTES if provider.capabilities.vision else 0
        prompt = msgspec.structs.replace(prompt, messages=_within(prompt.messages, maximum=maximum))
        names = {image.digest for message in prompt.messages for image in message.images}
        matching_data = await self._engine.read(lambda conn: {digest: blobs.get(conn, digest) for digest in names})
        return msgspec.structs.replace(prompt, images={digest: data for digest, data in matching_data.items() if data})

    async def _discovered_tools(self, state: RunState, allowed: tuple[str, ...] | None) -> tuple[str, ...]:
        """Return the discovered tools: those of the run, and before its first turn those of the session."""
        if state.options.plain or state.turns > 0 or not self._toolbox.is_searched(allowed, who=state.principal):
            return state.discovered_tools

        def query(conn: Connection) -> list[Entry]:
            reset_seq, _ = sessions.scope(conn, state.session_id)
            return tape.latest(conn, state.session_id, SEARCHED, after_seq=reset_seq, limit=MAX_ENTRIES_BACK)

        entries = await self._engine.read(query)
        return discovered_tools.join_tools(
            discovered_tools.discovered_before(entry.event for entry in entries), state.discovered_tools
        )

    def _broken(
        self,
        state: RunState,
        seen: PromptSources,
        request: routing.RoutingRequest,
        provider: Provider,
        broken: TurnFailure,
    ) -> list[RunEvent]:
        """Return the events of a failed turn: it is discarded, and the run fails if no other model can be asked."""
        at, actor, error = self._clock.now(), f"model:{provider.name}", broken.error
        void = ModelTurnDiscarded(
            at=at,
            actor=actor,
            turn=state.turns + 1,
            reason=error.detail,
            failure=error.kind.value,
            retry_after_ms=int(error.retry_after.total_seconds() * 1000),
            refused=error.refused,
            usage=broken.usage,
            cost_micros=broken.micros,
        )
        failure = FailedAttempt(full_name(provider), error.kind.value, void.retry_after_ms, error.detail, error.refused)
        failures = (*state.failures, failure)
        if isinstance(error, ModelOutputTooLarge):
            _log_failure(state, provider, error, choice="", failures=failures)
            return [*broken.detail, void, _failed(failure, at=at)]
        plan = self._pool.plan(replace(request, failures=failures), agent=seen.agent, pinned=state.options.model)
        _log_failure(state, provider, error, choice=plan.choice, failures=failures)
        end = [] if plan.choice else [_unanswered(plan, failures, at=at)]
        return [*broken.detail, void, *end]


def _log_failure(
    state: RunState, provider: Provider, error: ProviderFailed, *, choice: str, failures: tuple[FailedAttempt, ...]
) -> None:
    """Log one line about a failed attempt, and what follows.

    The reason on the tape may quote the server, and so the conversation; the log has our own words only. Each attempt
    has its line: the attempts of a turn are few, and the breaker makes them fewer while a provider is down.
    """
    full, wait = full_name(provider), routing.pause_seconds(choice, failures) if choice else 0.0
    if not choice:
        follows, words = "fail", "the run fails"
    elif choice == full:
        follows, words = "retry", f"retrying in {wait:.1f} s"
    else:
        follows, words = "failover", f"switching to {choice}"
    log.warning(
        "%s failed (%s%s): %s",
        full,
        f"model_{error.kind.value}",
        f", {error.cause or f'status {error.status}'}" if error.cause or error.status else "",
        words,
        extra={
            "run_id": state.run_id,
            "provider": provider.name,
            "model": provider.model,
            "code": f"model_{error.kind.value}",
            "status": error.status or None,
            "cause": error.cause,
            "turn": state.turns + 1,
            "attempt": len(failures),
            "next": follows,
            "next_model": choice,
            "retry_seconds": round(wait, 3),
        },
    )


def _must_speak(state: RunState, prompt: Prompt) -> bool:
    """Tell whether a turn without text counts as a failed answer.

    Models sometimes stop without text. After tool results a model may have nothing to add: it is asked once more, and
    then believed. A stop sequence set by the caller may also be the first thing the model writes.
    """
    if prompt.options.stop:
        return False
    return not state.failures or not prompt.messages or prompt.messages[-1].role is not Role.TOOL


def _unanswered(plan: RoutingPlan, failures: tuple[FailedAttempt, ...], *, at: datetime) -> RunFailed:
    """Say why the run ends without an answer: the last failed attempt, or why there could be none."""
    if not failures:
        return RunFailed(at=at, code=MODEL_MISSING, reason=f"{plan.reason[:1].upper()}{plan.reason[1:]}.")
    last = failures[-1]
    tried = list(dict.fromkeys(failure.model for failure in failures))
    if len(tried) == 1:
        return _failed(last, at=at)
    return _failed(msgspec.structs.replace(last, reason=f"{last.reason} Models tried: {', '.join(tried)}."), at=at)


def _failed(failure: FailedAttempt, *, at: datetime) -> RunFailed:
    actor = f"model:{failure.model.partition('/')[0]}"
    return RunFailed(at=at, actor=actor, code=f"model_{failure.kind}", reason=failure.reason)


def _within(messages: tuple[Message, ...], *, maximum: int) -> tuple[Message, ...]:
    """Return the messages with at most this many bytes of pictures, latest first; none for models without vision."""
    instead, left, stored = OLD_PICTURE if maximum else NO_PICTURE, maximum, []
    for message in reversed(messages):
        left -= sum(image.size for image in message.images)
        stored.append(_without_pictures(message, instead) if left < 0 and message.images else message)
    return tuple(reversed(stored))


def _without_pictures(message: Message, instead: str) -> Message:
    text = "\n".join((message.text, *(instead for _ in message.images)))
    return msgspec.structs.replace(message, text=text, images=())
