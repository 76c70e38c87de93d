"""A turn that fails is tried again, given to the next model, shortened, or ended; and all of it is on the tape."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec.structs import replace

from palyra.core.events import (
    ContextAssembled,
    ModelTurnDiscarded,
    ModelTurnEnded,
    ModelTurnStarted,
    RunFailed,
    TapeEvent,
)
from palyra.core.message import AcceptedMessage, Inbound
from palyra.core.model.catalog import Capabilities, DialectName, ModelProvider, ProviderNotFound, RoutingRule, TaskClass
from palyra.core.model.prompt import CallProposed, ModelEvent, Prompt, ReasoningDelta, StopReason, TextDelta, TurnDone
from palyra.core.model.request_options import RequestOptions
from palyra.core.model.routing_plan import RoutingMode
from palyra.core.run.state import RunStatus
from palyra.core.spending.budget import Budget, BudgetAction
from palyra.core.spending.price import FREE, Price
from palyra.core.spending.usage import Usage
from palyra.providers import routing
from palyra.providers.base import FailureKind, Provider, ProviderFailed
from palyra.providers.local.llama import LlamaRuntime
from palyra.providers.local.provider import LocalProvider, model_card
from palyra.settings import ModelSettings, SpendingSettings
from tests.integration.cast import inputs
from tests.integration.conftest import Begin
from tests.support.builders import ANA
from tests.support.clock import midday
from tests.support.needs import OPENMP, needs
from tests.support.world import World

TABLE = ModelProvider(dialect=DialectName.OPENAI, model="m")

Speak = Callable[[Prompt, int], AsyncIterator[ModelEvent]]


class Named:
    """A provider whose answers depend on how often it was asked."""

    def __init__(self, name: str, speak: Speak, *, window_tokens: int = 100_000) -> None:
        self.name, self.model = name, "m"
        self.capabilities = Capabilities(window_tokens=window_tokens, max_output_tokens=1_000)
        self.prompts: list[Prompt] = []
        self._speak = speak

    def stream(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        self.prompts.append(prompt)
        return self._speak(prompt, len(self.prompts))


def done(text: str) -> list[ModelEvent]:
    return [TextDelta(text), TurnDone(stop=StopReason.END, usage=Usage(input_tokens=10, output_tokens=2))]


def fails(kind: FailureKind, *, times: int = 99, after: str = "", refused: bool = False) -> Speak:
    """Fail so many times, after some words if there are any, then answer."""

    async def speak(prompt: Prompt, asked: int) -> AsyncIterator[ModelEvent]:
        if asked <= times:
            if after:
                yield TextDelta(after)
            raise ProviderFailed(f"It fails ({asked}).", kind=kind, refused=refused)
        for event in done("All is well."):
            yield event

    return speak


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "FIRST_WAIT_SECONDS", 0.0)


async def world_of(begin: Begin, *providers: Named) -> World:
    world = await begin(providers[0], clock=midday())
    world.others = {provider.name: provider for provider in providers}
    world.models = ModelSettings(
        provider=providers[0].name,
        fallback=tuple(provider.name for provider in providers[1:]),
        providers={provider.name: TABLE for provider in providers},
    )
    return world


async def turns(world: World, said: AcceptedMessage) -> list[TapeEvent]:
    kinds = (ModelTurnStarted, ModelTurnDiscarded, ModelTurnEnded, RunFailed)
    return [event for event in await world.events(said) if isinstance(event, kinds)]


async def test_what_may_pass_is_tried_again_and_every_try_is_on_the_tape(begin: Begin) -> None:
    first = Named("first", fails(FailureKind.NETWORK, times=2))
    world = await world_of(begin, first)
    said = await world.say("Hello?")
    assert (await world.ended(said)).status is RunStatus.DONE
    kinds = [type(event) for event in await turns(world, said)]
    assert kinds == [ModelTurnStarted, ModelTurnDiscarded] * 2 + [ModelTurnStarted, ModelTurnEnded]
    plans = [event.plan for event in await turns(world, said) if isinstance(event, ModelTurnStarted)]
    assert [plan.attempt for plan in plans if plan is not None] == [1, 2, 3]


async def test_halves_are_never_taken_for_one_answer(begin: Begin) -> None:
    world = await world_of(begin, Named("first", fails(FailureKind.NETWORK, times=1, after="All is ")))
    said = await world.say("Hello?")
    assert (await world.ended(said)).status is RunStatus.DONE
    assert [message.text for message in await world.messages(said)] == ["Hello?", "All is well."]


def silent(*, times: int, first: CallProposed | None = None) -> Speak:
    """End so many times as if all were well, without a word, then answer; the `first` time there may be a call."""

    async def speak(prompt: Prompt, asked: int) -> AsyncIterator[ModelEvent]:
        if first is not None and asked == 1:
            yield first
            yield TurnDone(stop=StopReason.CALLS, usage=Usage(input_tokens=10, output_tokens=2))
        elif asked <= times:
            yield ReasoningDelta("Hm.")
            yield TextDelta("\n")
            yield TurnDone(stop=StopReason.END, usage=Usage(input_tokens=10, output_tokens=1))
        else:
            for event in done("All is well."):
                yield event

    return speak


async def test_a_turn_without_a_word_is_tried_again_and_takes_what_the_provider_counted(begin: Begin) -> None:
    world = await world_of(begin, Named("first", silent(times=1)))
    said = await world.say("Hello?")
    assert (await world.ended(said)).status is RunStatus.DONE
    assert [message.text for message in await world.messages(said)] == ["Hello?", "All is well."]
    (void,) = [event for event in await turns(world, said) if isinstance(event, ModelTurnDiscarded)]
    assert void.reason == "m of first stopped without an answer. Try again, or choose another model."
    assert void.usage == Usage(input_tokens=10, output_tokens=1)


async def test_a_run_in_which_no_word_was_ever_said_is_not_done(begin: Begin) -> None:
    first, second = Named("first", silent(times=99)), Named("second", silent(times=99))
    world = await world_of(begin, first, second)
    run = await world.ended(await world.say("Hello?"))
    assert run.status is RunStatus.FAILED
    assert "stopped without an answer" in (run.reason or "")
    assert (len(first.prompts), len(second.prompts)) == (3, 3)


@pytest.mark.parametrize(("times", "says"), [(2, "All is well."), (99, "")])
async def test_a_model_that_has_nothing_to_add_to_results_is_asked_once_more_and_then_believed(
    begin: Begin, times: int, says: str
) -> None:
    call = CallProposed(call_id="c1", tool="time.now", arguments={})
    model = Named("first", silent(times=times, first=call))
    world = await world_of(begin, model)
    said = await world.say("Hello?")
    assert (await world.ended(said)).status is RunStatus.DONE
    assert len(model.prompts) == 3
    assert (await world.messages(said))[-1].text.strip() == says


async def test_a_used_up_quota_is_the_next_providers_turn(begin: Begin) -> None:
    first, second = Named("first", fails(FailureKind.QUOTA)), Named("second", fails(FailureKind.QUOTA, times=0))
    world = await world_of(begin, first, second)
    said = await world.say("Hello?")
    assert (await world.ended(said)).status is RunStatus.DONE
    assert (len(first.prompts), len(second.prompts)) == (1, 1)
    last = [event for event in await turns(world, said) if isinstance(event, ModelTurnStarted)][-1]
    assert (last.provider, last.reason) == ("second", "the default; first/m: its quota is used up")


@needs(OPENMP)
async def test_what_is_missing_here_is_told_at_once(begin: Begin, tmp_path: Path) -> None:
    """A model file that is not there is not there after a pause, either."""
    table = ModelProvider(dialect=DialectName.LOCAL, path=str(tmp_path / "none.gguf"))
    llama = LlamaRuntime()
    here = LocalProvider("here", table, model_card(table), llama)
    world = await begin(here)
    try:
        said = await world.say("Hello?")
        run = await world.ended(said)
    finally:
        await llama.close()
    assert run.status is RunStatus.FAILED
    assert [type(event) for event in await turns(world, said)] == [ModelTurnStarted, ModelTurnDiscarded, RunFailed]
    assert "none.gguf cannot be read: No such file or directory. Set path to" in (run.reason or "")


async def test_a_run_that_nobody_answers_ends_with_the_last_reason_and_who_was_asked(begin: Begin) -> None:
    world = await world_of(begin, Named("first", fails(FailureKind.TIMEOUT)), Named("second", fails(FailureKind.AUTH)))
    said = await world.say("Hello?")
    run = await world.ended(said)
    assert (run.status, run.reason) == (RunStatus.FAILED, "It fails (1). Models tried: first/m, second/m.")
    ended = (await turns(world, said))[-1]
    assert isinstance(ended, RunFailed)
    assert ended.code == "model_auth"
    assert sum(isinstance(event, ModelTurnDiscarded) for event in await turns(world, said)) == 4


async def test_what_one_provider_refuses_for_its_content_is_not_carried_to_the_next(begin: Begin) -> None:
    second = Named("second", fails(FailureKind.NETWORK, times=0))
    world = await world_of(begin, Named("first", fails(FailureKind.CONTENT_POLICY)), second)
    said = await world.say("Hello?")
    assert (await world.ended(said)).status is RunStatus.FAILED
    assert not second.prompts


async def test_a_conversation_that_is_too_long_is_shortened_and_that_is_said(begin: Begin) -> None:
    """However wide we took the window for: half of what was shown is shown."""

    async def speak(prompt: Prompt, asked: int) -> AsyncIterator[ModelEvent]:
        if len(inputs(prompt)) > 3:
            raise ProviderFailed("Too long.", kind=FailureKind.CONTEXT_TOO_LONG, refused=True)
        for event in done("Fine."):
            yield event

    first = Named("first", speak)
    world = await world_of(begin, first)
    for number in range(3):
        await world.ask(f"Message number {number}.")
    said = await world.say("The last message.")
    assert (await world.ended(said)).status is RunStatus.DONE
    assert inputs(first.prompts[-1])[-1] == "The last message."
    shown = [event for event in await world.events(said) if isinstance(event, ContextAssembled)]
    assert [bool(event.narrowed) for event in shown] == [False, True]
    assert shown[1].dropped > shown[0].dropped


async def test_a_refused_try_costs_nothing_and_a_broken_one_its_estimate(begin: Begin) -> None:
    refused = Named("first", fails(FailureKind.RATE_LIMIT, times=1, refused=True))
    world = await world_of(begin, refused)
    said = await world.say("Hello?")
    await world.ended(said)
    void = next(event for event in await turns(world, said) if isinstance(event, ModelTurnDiscarded))
    assert void.usage.tokens == 0

    broken = Named("first", fails(FailureKind.NETWORK, times=1, after="Some words of an answer."))
    world = await world_of(begin, broken)
    said = await world.say("Hello?")
    await world.ended(said)
    void = next(event for event in await turns(world, said) if isinstance(event, ModelTurnDiscarded))
    assert void.usage.estimated
    # Nobody knows how far it came, or what it thought without showing it: all that was set aside counts.
    begun = next(event for event in await turns(world, said) if isinstance(event, ModelTurnStarted))
    assert begun.reserved is not None
    assert (void.usage.input_tokens, void.usage.output_tokens) == (
        begun.reserved.input_tokens,
        begun.reserved.output_tokens,
    )


@pytest.mark.parametrize(
    ("action", "ends"), [(BudgetAction.ASK, RunStatus.WAITING), (BudgetAction.BLOCK, RunStatus.FAILED)]
)
async def test_when_the_next_model_fails_the_owner_is_asked_for_the_one_that_costs_more(
    begin: Begin, action: BudgetAction, ends: RunStatus
) -> None:
    first, second = Named("first", fails(FailureKind.QUOTA, times=0)), Named("second", fails(FailureKind.QUOTA))
    world = await world_of(begin, first, second)
    world.inbox = True
    world.prices.tags = {"first/m": Price(input=Decimal(0), output=Decimal(1)), "second/m": FREE}
    world.spending = SpendingSettings(budgets={"daily": Budget(money=Decimal("0.000001"), action=action)})
    said = await world.say("Hello?")
    await world.reaches(said, ends)
    assert (len(first.prompts), len(second.prompts)) == (0, 1)
    if ends is RunStatus.FAILED:
        assert (await turns(world, said))[-1].code == "model_quota"  # type: ignore[union-attr]
        return
    (asked,) = await world.approvals.page(ANA, only_open=True, before=None, limit=10)
    await world.approvals.resolve(ANA, asked.approval_id, allow=True)
    assert (await world.ended(said)).status is RunStatus.DONE
    assert len(first.prompts) == 1


async def test_what_has_failed_is_remembered_over_a_crash(begin: Begin) -> None:
    first, second = Named("first", fails(FailureKind.QUOTA)), Named("second", fails(FailureKind.QUOTA, times=0))
    world = await world_of(begin, first, second)
    remembered = 0
    for commits in range(1, 7):
        world.dies_after(commits)
        said = await world.say("Hello?", key=f"session {commits}")
        died = await world.dies_before_end_of(said)
        failed = sum(isinstance(event, ModelTurnDiscarded) for event in await turns(world, said))
        asked = len(first.prompts)
        if died:
            await world.crash()
        assert (await world.ended(said)).status is RunStatus.DONE
        if died and failed:
            remembered += 1
            assert len(first.prompts) == asked
    assert remembered


async def test_who_fails_five_times_in_a_row_is_left_alone_for_a_while(begin: Begin) -> None:
    first = Named("first", fails(FailureKind.UNAVAILABLE))
    second = Named("second", fails(FailureKind.NETWORK, times=0))
    world = await world_of(begin, first, second)
    await world.ask("One.")
    await world.ask("Two.")
    asked = len(first.prompts)
    said = await world.say("Three.")
    await world.ended(said)
    assert len(first.prompts) == asked
    started = next(event for event in await turns(world, said) if isinstance(event, ModelTurnStarted))
    assert "is not used" in started.reason
    world.clock.advance(timedelta(seconds=60))
    await world.ask("Four.")
    assert len(first.prompts) > asked


async def test_a_model_that_the_settings_name_no_longer_ends_the_run_and_says_so(begin: Begin) -> None:
    world = await begin(Named("first", fails(FailureKind.NETWORK, times=0)))

    def build(settings: ModelSettings, name: str, model: str | None) -> Provider:
        raise ProviderNotFound(f"Unknown provider {name!r}.")

    world.build = build
    said = await world.say("Hello?")
    run = await world.ended(said)
    assert (run.status, run.reason) == (RunStatus.FAILED, "Unknown provider 'embedded'.")


async def test_a_caller_may_name_the_model_and_then_there_is_no_other(begin: Begin) -> None:
    first, second = Named("first", fails(FailureKind.NETWORK, times=0)), Named("second", fails(FailureKind.QUOTA))
    world = await world_of(begin, first, second)
    accepted = await world.intake.accept(Inbound(principal=ANA, text="Hello?", options=RequestOptions(model="second")))
    run = await world.ended(accepted)
    assert (run.status, run.reason) == (RunStatus.FAILED, "It fails (1).")
    started = next(event for event in await turns(world, accepted) if isinstance(event, ModelTurnStarted))
    assert (started.provider, started.reason) == ("second", "named by the caller")
    assert not first.prompts


async def test_rules_choose_by_what_the_work_is_for(begin: Begin) -> None:
    first, second = (Named(name, fails(FailureKind.NETWORK, times=0)) for name in ("first", "second"))
    world = await world_of(begin, first, second)
    rules = (RoutingRule(models=("second",), task=TaskClass.BACKGROUND),)
    world.models = replace(world.models, routing=RoutingMode.ENFORCE, rules=rules)
    for task, asked in ((TaskClass.INTERACTIVE, "first"), (TaskClass.BACKGROUND, "second")):
        accepted = await world.intake.accept(Inbound(principal=ANA, text="Hello?", options=RequestOptions(task=task)))
        await world.ended(accepted)
        started = next(event for event in await turns(world, accepted) if isinstance(event, ModelTurnStarted))
        assert started.provider == asked
