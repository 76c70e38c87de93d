"""Budgets, held by the whole loop on either engine: what a turn may take is set aside before it begins."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal

import pytest

from palyra.core.events import ApprovalRequested, BudgetWarned, InputMode, RunFailed
from palyra.core.ids import PrincipalId
from palyra.core.model.prompt import ModelEvent, Prompt, Role, StopReason, TextDelta, TurnDone
from palyra.core.policy.approval import Approval, ApprovalScope
from palyra.core.projection.ledger import RESERVED, LedgerTurn
from palyra.core.run.state import RunStatus
from palyra.core.spending.budget import Budget, BudgetAction, BudgetPeriod, BudgetSubject
from palyra.core.spending.price import Price
from palyra.core.spending.usage import Usage
from palyra.journal.ledger import accounts
from palyra.journal.ledger import turns as usage
from palyra.providers.base import FailureKind, ProviderFailed
from palyra.runs.services.approvals import (
    ApprovalAnswerInvalid,
    ApprovalExpired,
    ApprovalNotReissuable,
    ApprovalScopeInvalid,
)
from palyra.settings import ModelSettings, SpendingSettings
from tests.integration.cast import a_call, said_by
from tests.integration.conftest import Begin
from tests.support.administrators import administers
from tests.support.builders import ANA
from tests.support.clock import midday
from tests.support.eventually import eventually
from tests.support.world import BEN, Model, Said, World

NAME = "function/of the prompt"
MOST = 100
"""Tokens of an answer: with the price below, a turn sets aside a hundred millionths."""
USED = 2
TAG = Price(input=Decimal(0), output=Decimal(1))
DONE = TurnDone(stop=StopReason.END, usage=Usage(input_tokens=10, output_tokens=USED))


def micros(count: int) -> Decimal:
    return Decimal(count) / 1_000_000


def money(count: int, **more: object) -> Budget:
    return Budget(money=micros(count), **more)  # type: ignore[arg-type]


async def priced(begin: Begin, model: Model | None = None, owner: PrincipalId = ANA, **budgets: Budget) -> World:
    world = await begin(model or said_by(lambda prompt: [TextDelta("Well."), DONE]), clock=midday())
    world.prices.tags[NAME] = TAG
    world.models = ModelSettings(max_output_tokens=MOST)
    world.spending = SpendingSettings(budgets=budgets)
    await administers(world, owner)
    return world


async def turns(world: World, of: Said) -> list[LedgerTurn]:
    state = await world.state(of)
    return await world.engine.read(lambda conn: usage.of_run(conn, state.root_run_id, state.run_id))


async def failure(world: World, of: Said) -> RunFailed:
    await world.ended(of)
    last = (await world.events(of))[-1]
    assert isinstance(last, RunFailed), last
    return last


async def asked(world: World, of: Said) -> Approval:
    await world.reaches(of, RunStatus.WAITING)
    (found,) = await world.approvals.page(ANA, only_open=True, before=None, limit=10)
    return found


# -- what is written down


async def test_a_turn_is_in_the_ledger_from_its_beginning_on(begin: Begin) -> None:
    gate = asyncio.Event()

    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        yield TextDelta("Well.")
        await gate.wait()
        yield DONE

    world = await priced(begin, Model(speak))
    said = await world.say("Hi.", origin="http")
    await world.seen(said, "model_text")
    (held,) = await turns(world, said)
    assert (held.state, held.reserved_output, held.reserved_micros) == (RESERVED, MOST, MOST)
    assert held.reserved_input > 0
    gate.set()
    await world.ended(said)
    (settled,) = await turns(world, said)
    assert (settled.state, settled.input_tokens, settled.output_tokens, settled.micros) == ("settled", 10, USED, USED)
    assert (settled.cause, settled.step, settled.task) == ("http", "input", "interactive")


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("昨天晚上我和朋友去了一家新开的火锅店。" * 50, 34 * 50),
        ("3.14159265358979 " * 50, 17 * 50),
        ("9f86d081" * 99, 8 * 99),
    ],
    ids=["Chinese", "digits", "hex"],
)
async def test_no_less_is_set_aside_for_a_prompt_than_tokenizers_count(begin: Begin, text: str, counted: int) -> None:
    world = await priced(begin)

    async def reserved(text: str, key: str) -> int:
        said = await world.say(text, key=key)
        await world.ended(said)
        (turn,) = await turns(world, said)
        return turn.reserved_input

    bare = await reserved("Hi.", "elsewhere")
    assert await reserved(text, "here") >= bare + counted
    assert await reserved("Hi.", "here") >= bare + counted, "it is part of the next prompt, too"


async def test_an_answer_that_nobody_counted_is_taken_for_what_it_can_come_to(begin: Begin) -> None:
    text, counted = "昨天晚上我和朋友去了火锅店。", 20
    guess = TurnDone(stop=StopReason.END, usage=Usage(input_tokens=1, output_tokens=9, estimated=True))
    world = await priced(begin, said_by(lambda prompt: [TextDelta(text), guess]))
    said = await world.say("Hi.")
    await world.ended(said)
    (turn,) = await turns(world, said)
    assert counted <= turn.output_tokens <= MOST


async def test_each_turn_names_what_led_to_it(begin: Begin) -> None:
    def speak(prompt: Prompt) -> list[ModelEvent]:
        results = [message for message in prompt.messages if message.role is Role.TOOL]
        return [TextDelta("Done."), DONE] if results else [a_call("clock.now"), DONE]

    world = await priced(begin, said_by(speak))
    said = await world.say("What time is it?")
    await world.ended(said)
    assert [turn.step for turn in await turns(world, said)] == ["input", "results"]


# -- block


async def test_a_turn_that_a_budget_has_no_room_for_does_not_begin(begin: Begin) -> None:
    world = await priced(begin, daily=money(MOST))
    first = await world.say("One.")
    assert (await world.ended(first)).status is RunStatus.DONE
    second = await world.say("Two.")
    failed = await failure(world, second)
    assert failed.code == "budget_exceeded"
    assert "'daily'" in failed.reason
    assert "resets at" in failed.reason
    assert "config.toml" in failed.reason
    assert await turns(world, second) == []
    assert len(world.prompts) == 1


async def test_what_was_set_aside_and_not_used_is_there_for_the_next_turn(begin: Begin) -> None:
    world = await priced(begin, daily=money(MOST + USED))
    for text in ("One.", "Two."):
        said = await world.say(text)
        assert (await world.ended(said)).status is RunStatus.DONE
    assert (await failure(world, await world.say("Three."))).code == "budget_exceeded"


async def test_the_budget_of_a_day_resets_with_the_next(begin: Begin) -> None:
    world = await priced(begin, daily=money(MOST))
    await world.ended(await world.say("One."))
    await failure(world, await world.say("Two."))
    world.clock.sleep(timedelta(days=1))
    said = await world.say("Three.")
    assert (await world.ended(said)).status is RunStatus.DONE


async def test_a_budget_that_is_set_at_noon_knows_the_morning(begin: Begin) -> None:
    world = await priced(begin)
    for text in ("One.", "Two."):
        await world.ended(await world.say(text))
    world.spending = SpendingSettings(budgets={"daily": money(MOST + 2 * USED - 1)})
    assert (await failure(world, await world.say("Three."))).code == "budget_exceeded"
    world.spending = SpendingSettings(budgets={"daily": money(MOST + 2 * USED)})
    said = await world.say("Four.")
    assert (await world.ended(said)).status is RunStatus.DONE


async def test_each_principal_has_a_budget_of_its_own(begin: Begin) -> None:
    world = await priced(begin, each=money(MOST, subject=BudgetSubject.PRINCIPAL))
    await world.ended(await world.say("One."))
    theirs = await world.say("One.", who=BEN)

    async def look() -> bool:
        assert (await world.run(theirs, who=BEN)).status is RunStatus.DONE
        return True

    _: bool = await eventually(look)
    await failure(world, await world.say("Two."))


async def test_a_budget_can_be_for_one_agent_by_its_name(begin: Begin) -> None:
    world = await priced(
        begin,
        main=money(MOST, subject=BudgetSubject.AGENT, only="main"),
        other=money(1, subject=BudgetSubject.AGENT, only="somebody else"),
    )
    assert (await world.ended(await world.say("One."))).status is RunStatus.DONE
    assert "'main'" in (await failure(world, await world.say("Two."))).reason


async def test_tokens_are_capped_too(begin: Begin) -> None:
    world = await priced(begin, daily=Budget(tokens=50))
    failed = await failure(world, await world.say("Hi."))
    assert "50 tokens per day" in failed.reason


async def test_a_model_without_a_price_is_not_asked_under_a_cap_in_money(begin: Begin) -> None:
    world = await priced(begin, daily=money(10**9))
    world.prices.tags[NAME] = None
    failed = await failure(world, await world.say("Hi."))
    assert failed.code == "budget_exceeded"
    assert f"{NAME} has no price" in failed.reason
    assert "prices.toml" in failed.reason


async def test_a_model_that_costs_nothing_may_be_asked_when_all_is_spent(begin: Begin) -> None:
    world = await priced(begin, daily=money(0))
    await failure(world, await world.say("One."))
    del world.prices.tags[NAME]
    said = await world.say("Two.")
    assert (await world.ended(said)).status is RunStatus.DONE


async def test_what_a_child_spends_counts_for_the_run_and_the_session_it_works_for(begin: Begin) -> None:
    def speak(prompt: Prompt) -> list[ModelEvent]:
        if any(message.role is Role.TOOL for message in prompt.messages):
            return [TextDelta("Done."), DONE]
        if prompt.messages[-1].text == "Delegate.":
            return [a_call("agent.delegate", {"task": "Do it."}), DONE]
        return [TextDelta("Did it."), DONE]

    # The first turn and the child's fit, and the turn after them does not.
    room = MOST + 2 * USED - 1
    world = await priced(
        begin, said_by(speak), run=money(room, period=BudgetPeriod.RUN), talk=money(room, subject=BudgetSubject.SESSION)
    )
    said = await world.say("Delegate.")
    failed = await failure(world, said)
    assert failed.code == "budget_exceeded"
    child = await world.child_of(said)
    (spent,) = await turns(world, child)
    assert (spent.root_run_id, spent.root_session_id) == (said.run_id, said.session_id)
    assert spent.cause == "run"


# -- warn


async def test_a_budget_that_warns_is_told_of_once_in_its_period(begin: Begin) -> None:
    world = await priced(begin, low=money(1, action=BudgetAction.WARN))
    first, second = await world.say("One."), await world.say("Two.", key="other")
    await world.all_ended([first, second])
    told = [event for said in (first, second) for event in await world.events(said) if isinstance(event, BudgetWarned)]
    assert [event.overrun.budget for event in told] == ["low"]
    world.clock.sleep(timedelta(days=1))
    third = await world.say("Three.")
    await world.ended(third)
    assert "budget_warned" in await world.kinds(third)


# -- ask


async def test_a_run_waits_for_a_word_and_goes_on_beyond_the_budget(begin: Begin) -> None:
    world = await priced(begin, daily=money(1, action=BudgetAction.ASK))
    world.inbox = True
    said = await world.say("Hi.")
    question = await asked(world, said)
    assert "exceed the budget daily" in question.effect.summary
    assert question.call_id == ""
    await world.crash()
    await world.approvals.resolve(ANA, question.approval_id, allow=True)
    assert (await world.ended(said)).status is RunStatus.DONE
    assert (await world.state(said)).lifted == ("daily",)
    # The word was for this run alone.
    await world.reaches(await world.say("Hi again."), RunStatus.WAITING)


async def test_one_question_is_about_all_budgets_that_are_not_enough(begin: Begin) -> None:
    world = await priced(
        begin, daily=money(1, action=BudgetAction.ASK), run=money(1, period=BudgetPeriod.RUN, action=BudgetAction.ASK)
    )
    world.inbox = True
    said = await world.say("Hi.")
    question = await asked(world, said)
    await world.approvals.resolve(ANA, question.approval_id, allow=True)
    assert (await world.ended(said)).status is RunStatus.DONE


async def test_a_run_that_may_not_go_on_fails_with_the_reason(begin: Begin) -> None:
    world = await priced(begin, daily=money(1, action=BudgetAction.ASK))
    world.inbox = True
    said = await world.say("Hi.")
    question = await asked(world, said)
    await world.approvals.resolve(ANA, question.approval_id, allow=False, reason="too much")
    failed = await failure(world, said)
    assert failed.code == "budget_denied"
    assert "too much" in failed.reason
    assert not world.prompts


async def test_a_question_that_nobody_answers_ends_the_run(begin: Begin) -> None:
    world = await priced(begin, daily=money(1, action=BudgetAction.ASK))
    world.inbox, world.expires = True, timedelta(minutes=1)
    said = await world.say("Hi.")
    question = await asked(world, said)
    world.clock.sleep(timedelta(minutes=2))
    with pytest.raises(ApprovalExpired):
        await world.approvals.resolve(ANA, question.approval_id, allow=True)
    await world.crash()
    assert (await failure(world, said)).code == "budget_denied"
    with pytest.raises(ApprovalNotReissuable):
        await world.intake.reissue(ANA, question.approval_id)


async def test_other_words_withdraw_the_question_and_it_is_asked_anew(begin: Begin) -> None:
    world = await priced(begin, daily=money(1, action=BudgetAction.ASK))
    world.inbox = True
    said = await world.say("Hi.")
    first = await asked(world, said)
    await world.say("Be quick.", mode=InputMode.STEER)
    await world.seen(said, "approval_requested", times=2)
    second = await asked(world, said)
    assert second.approval_id != first.approval_id
    assert (await world.approvals.get(ANA, first.approval_id)).decision == "withdrawn"
    await world.approvals.resolve(ANA, second.approval_id, allow=True)
    assert (await world.ended(said)).status is RunStatus.DONE


async def test_a_cancel_withdraws_the_question(begin: Begin) -> None:
    world = await priced(begin, daily=money(1, action=BudgetAction.ASK))
    world.inbox = True
    said = await world.say("Hi.")
    question = await asked(world, said)
    await world.cancel(said)
    assert (await world.ended(said)).status is RunStatus.CANCELLED
    assert (await world.approvals.get(ANA, question.approval_id)).decision == "withdrawn"


async def test_if_nobody_can_be_asked_the_run_ends(begin: Begin) -> None:
    world = await priced(begin, daily=money(1, action=BudgetAction.ASK))
    failed = await failure(world, await world.say("Hi."))
    assert failed.code == "budget_denied"
    assert "No approver is reachable" in failed.reason


async def test_an_answer_about_a_budget_has_no_scope_and_no_arguments(begin: Begin) -> None:
    world = await priced(begin, daily=money(1, action=BudgetAction.ASK))
    world.inbox = True
    question = await asked(world, await world.say("Hi."))
    with pytest.raises(ApprovalAnswerInvalid):
        await world.approvals.resolve(ANA, question.approval_id, allow=True, arguments={})
    with pytest.raises(ApprovalScopeInvalid):
        await world.approvals.resolve(ANA, question.approval_id, allow=True, scope=ApprovalScope.ALWAYS)


async def test_a_question_of_a_child_is_put_to_whoever_looks_at_the_run_that_it_works_for(begin: Begin) -> None:
    def speak(prompt: Prompt) -> list[ModelEvent]:
        if any(message.role is Role.TOOL for message in prompt.messages):
            return [TextDelta("Done."), DONE]
        if prompt.messages[-1].text == "Delegate.":
            return [a_call("agent.delegate", {"task": "Do it."}), DONE]
        return [TextDelta("Did it."), DONE]

    world = await priced(
        begin, said_by(speak), run=money(MOST + USED - 1, period=BudgetPeriod.RUN, action=BudgetAction.ASK)
    )
    said = await world.say("Delegate.")
    follower = world.tail.follow(said.session_id, after_seq=0)
    try:
        child = await world.child_of(said)
        question = await asked(world, child)
        assert question.run_id == child.run_id
        await world.approvals.resolve(ANA, question.approval_id, allow=True)
        assert (await world.ended(child)).status is RunStatus.DONE
        # A yes is for the run that asked: the one above it asks for itself.

        async def look() -> Approval:
            found = await world.approvals.page(ANA, only_open=True, before=None, limit=10)
            assert [one.run_id for one in found] == [said.run_id]
            return found[0]

        own: Approval = await eventually(look)
        await world.approvals.resolve(ANA, own.approval_id, allow=True)
        assert (await world.ended(said)).status is RunStatus.DONE
    finally:
        follower.close()


# -- who is told what of a budget that several spend from


@pytest.mark.parametrize("of", [BudgetSubject.EVERYTHING, BudgetSubject.MODEL])
async def test_who_may_not_administer_is_not_told_what_others_have_spent(begin: Begin, of: BudgetSubject) -> None:
    world = await priced(begin, owner=BEN, shared=Budget(subject=of, tokens=5_432))
    await world.ended(await world.say("Hi."))
    told = await failure(world, await world.say("Hi. " * 2_000))
    assert told.code == "budget_exceeded"
    assert "'shared'" in told.reason
    assert "An administrator of this daemon can raise it." in told.reason
    assert "5,432" not in told.reason
    await administers(world, ANA)
    known = await failure(world, await world.say("Hi. " * 2_000))
    assert "allows 5,432 tokens per day" in known.reason
    assert "12 tokens are spent" in known.reason


async def test_a_question_does_not_tell_what_others_have_spent(begin: Begin) -> None:
    world = await priced(begin, owner=BEN, shared=Budget(tokens=5_432, action=BudgetAction.ASK))
    world.inbox = True
    await world.ended(await world.say("Hi."))
    said = await world.say("Hi. " * 2_000)
    await world.reaches(said, RunStatus.WAITING)
    (question,) = await world.approvals.page(ANA, only_open=True, before=None, limit=10)
    assert "The shared budget" in question.effect.detail
    assert "5,432" not in question.effect.detail
    (event,) = [event for event in await world.events(said) if isinstance(event, ApprovalRequested)]
    assert [(one.cap, one.spent, one.hidden) for one in event.budgets] == [(0, 0, True)]


async def test_a_warning_does_not_tell_what_others_have_spent(begin: Begin) -> None:
    world = await priced(begin, owner=BEN, shared=Budget(tokens=5_432, action=BudgetAction.WARN))
    await world.ended(await world.say("Hi."))
    said = await world.say("Hi. " * 2_000)
    await world.ended(said)
    (event,) = [event for event in await world.events(said) if isinstance(event, BudgetWarned)]
    assert (event.overrun.cap, event.overrun.spent, event.overrun.hidden) == (0, 0, True)


async def test_who_is_told_of_a_budget_of_its_own_sees_all_of_it(begin: Begin) -> None:
    world = await priced(
        begin,
        owner=BEN,
        own=Budget(subject=BudgetSubject.PRINCIPAL, tokens=100),
        each=Budget(period=BudgetPeriod.RUN, tokens=200),
    )
    told = await failure(world, await world.say("Hi."))
    assert "allows 100 tokens per day for the principal" in told.reason
    assert "allows 200 tokens per run" in told.reason


# -- races and crashes


async def test_of_sixty_four_runs_only_as_many_begin_as_there_is_room_for(begin: Begin) -> None:
    gate, begun = asyncio.Event(), 0

    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        nonlocal begun
        begun += 1
        await gate.wait()
        yield TextDelta("Well.")
        yield DONE

    world = await priced(begin, Model(speak), daily=money(5 * MOST + MOST // 2))
    said = await asyncio.gather(*(world.say("Hi.", key=f"s{number}") for number in range(64)))

    async def look() -> bool:
        ended = [run for run in await world.runs() if run.ended_at is not None]
        assert len(ended) == 59
        return True

    _: bool = await eventually(look, timeout=60)
    assert begun == 5
    gate.set()
    ended = await world.all_ended(said)
    assert sorted(run.status for run in ended) == [RunStatus.DONE] * 5 + [RunStatus.FAILED] * 59
    (amount,) = [amount for _, amount in await world.engine.read(accounts.all_of)]
    assert (amount.settled_micros, amount.reserved_micros) == (5 * USED, 0)


async def test_a_turn_that_a_crash_left_open_is_settled_at_what_was_set_aside(begin: Begin) -> None:
    asked = 0

    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        nonlocal asked
        asked += 1
        if asked == 1:
            await asyncio.Event().wait()
        yield TextDelta("Well.")
        yield DONE

    world = await priced(begin, Model(speak), daily=money(2 * MOST))
    said = await world.say("Hi.")
    await world.seen(said, "model_turn_started")
    await world.crash()
    assert (await world.ended(said)).status is RunStatus.DONE
    first, second = await turns(world, said)
    assert (first.state, first.micros, first.output_tokens, first.estimated) == ("discarded", MOST, MOST, 1)
    assert (second.state, second.step, second.micros) == ("settled", "retry", USED)
    ((_, amount),) = await world.engine.read(accounts.all_of)
    assert (amount.settled_micros, amount.reserved_micros) == (MOST + USED, 0)
    # What nobody knows the end of is spent: there is no room for a third.
    assert (await failure(world, await world.say("Hi again."))).code == "budget_exceeded"


async def test_a_cancel_in_the_middle_of_a_turn_settles_it(begin: Begin) -> None:
    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        yield TextDelta("Well.")
        await asyncio.Event().wait()
        yield DONE

    world = await priced(begin, Model(speak), daily=money(MOST))
    said = await world.say("Hi.")
    await world.seen(said, "model_text")
    await world.cancel(said)
    await world.ended(said)
    (turn,) = await turns(world, said)
    assert (turn.state, turn.micros) == ("discarded", MOST)


async def test_a_turn_that_broke_off_is_settled_at_what_was_set_aside(begin: Begin) -> None:
    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        yield TextDelta("Well.")
        raise ProviderFailed("It broke off.", kind=FailureKind.NETWORK)

    world = await priced(begin, Model(speak), daily=money(2 * MOST - 1))
    said = await world.say("Hi.")
    assert (await failure(world, said)).code == "model_network"
    (turn,) = await turns(world, said)
    assert (turn.state, turn.micros, turn.output_tokens, turn.estimated) == ("discarded", MOST, MOST, 1)
    assert (await failure(world, await world.say("Hi again."))).code == "budget_exceeded"


async def test_a_provider_that_does_not_count_is_taken_to_have_read_all_of_the_prompt(begin: Begin) -> None:
    guess = TurnDone(stop=StopReason.END, usage=Usage(input_tokens=1, output_tokens=USED, estimated=True))
    world = await priced(begin, said_by(lambda prompt: [TextDelta("Well."), guess]))
    said = await world.say("Hi.")
    await world.ended(said)
    (turn,) = await turns(world, said)
    assert turn.input_tokens == turn.reserved_input > 1


async def test_the_question_on_the_tape_says_what_is_at_stake(begin: Begin) -> None:
    world = await priced(begin, daily=money(1, action=BudgetAction.ASK))
    world.inbox = True
    said = await world.say("Hi.")
    await asked(world, said)
    (event,) = [one for one in await world.events(said) if isinstance(one, ApprovalRequested)]
    (short,) = event.budgets
    assert (short.budget, short.cap, short.spent, short.requested, short.unit) == ("daily", 1, 0, MOST, "USD")
    assert short.model == NAME
