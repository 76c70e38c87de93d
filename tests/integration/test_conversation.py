"""One message, one answer, and what is recorded of them."""

import asyncio
from collections.abc import AsyncIterator

from palyra.core.events import InputMode, ModelText, RunAccepted
from palyra.core.model.prompt import Message, ModelEvent, Prompt, Role, TextDelta
from palyra.core.policy import labels
from palyra.core.projection.transcript import CANCELLED
from palyra.core.run.state import RunStatus
from palyra.core.session_events import SessionRenamed
from palyra.core.spending.usage import Usage
from palyra.providers.embedded.provider import EmbeddedProvider
from palyra.providers.scripted import Script, ScriptCall, ScriptStop, ScriptText
from tests.integration.cast import DONE, ECHO, first_calls, held, inputs, on_sqlite, said_by
from tests.integration.conftest import Begin
from tests.support.builders import ANA
from tests.support.world import Model


async def test_a_message_becomes_a_run_that_ends_with_an_answer(begin: Begin) -> None:
    world = await begin(ECHO)
    said = await world.say("Hello.")
    run = await world.ended(said)
    assert run.status is RunStatus.DONE
    assert await world.kinds(said) == [
        "run_accepted",
        "run_started",
        "context_assembled",
        "model_turn_started",
        "model_text",
        "model_turn_ended",
        "run_completed",
    ]
    assert await world.messages(said) == [
        Message(role=Role.USER, text="Hello."),
        Message(role=Role.ASSISTANT, text="You said: Hello."),
    ]


async def test_entries_are_counted_without_a_gap_by_session_and_by_run(begin: Begin) -> None:
    world = await begin(first_calls(ScriptCall(tool="time.now"), ScriptCall(tool="files.list")))
    first, second = await world.say("One."), await world.say("Two.")
    await world.all_ended([first, second])
    await world.quiet()
    entries = await world.tape(first.session_id)
    assert [entry.tape_seq for entry in entries] == [*range(1, len(entries) + 1)]
    for said in (first, second):
        run_seqs = [entry.run_seq for entry in await world.tape(said)]
        assert run_seqs == [*range(1, len(run_seqs) + 1)]


async def test_the_door_says_from_where_to_read_on(begin: Begin) -> None:
    world = await begin(ECHO)
    first = await world.say("One.")
    await world.ended(first)
    second = await world.say("Two.")
    await world.ended(second)
    assert first.after_seq == 1  # behind the creation of the session
    own = await world.tape(second)
    assert own[0].tape_seq == second.after_seq + 1


async def test_the_row_of_a_run_tells_what_it_took(begin: Begin) -> None:
    world = await begin(Script(default=(ScriptText(text="Here."), ScriptStop(input_tokens=30, output_tokens=7))))
    run = await world.ended(await world.say("Hello."))
    assert (run.turns, run.tool_calls, run.usage) == (1, 0, Usage(input_tokens=30, output_tokens=7))
    assert run.input == "Hello."
    assert run.reason is None


async def test_what_a_person_said_is_labelled_as_the_owners(begin: Begin) -> None:
    world = await begin(ECHO)
    said = await world.say("Hello.")
    await world.ended(said)
    events = await world.events(said)
    assert isinstance(events[0], RunAccepted)
    assert events[0].actor == "user:ana"
    assert all(event.labels == (labels.OWNER,) for event in events if isinstance(event, RunAccepted | ModelText))


@on_sqlite
async def test_the_first_text_is_recorded_at_once_and_the_rest_in_groups(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    said = await world.say("Hello.")
    await world.seen(said, "model_text")
    assert (await world.run(said)).status is RunStatus.IN_PROGRESS
    gate.set()
    await world.ended(said)
    texts = [event.text for event in await world.events(said) if isinstance(event, ModelText)]
    assert texts == ["Well, ", "you said: Hello."]


@on_sqlite
async def test_a_burst_of_text_is_one_entry(begin: Begin) -> None:
    world = await begin(Script(default=(ScriptText(text="a" * 500, chunk=10),)))
    said = await world.say("Hello.")
    await world.ended(said)
    texts = [event.text for event in await world.events(said) if isinstance(event, ModelText)]
    assert "".join(texts) == "a" * 500
    assert len(texts) <= 2


@on_sqlite
async def test_empty_pieces_of_text_are_passed_over(begin: Begin) -> None:
    world = await begin(said_by(lambda prompt: [TextDelta(""), TextDelta("Hi"), TextDelta(""), DONE]))
    assert await world.ask("Hello.") == "Hi"


@on_sqlite
async def test_an_answer_may_begin_with_nothing(begin: Begin) -> None:
    """Many models send an empty piece first, and think before the next."""
    gate = asyncio.Event()

    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        yield TextDelta("")
        await gate.wait()
        yield TextDelta("Hi")
        yield DONE

    world = await begin(Model(speak))
    said = await world.say("Hello.")
    await world.seen(said, "model_turn_started")
    gate.set()
    assert (await world.ended(said)).status is RunStatus.DONE


async def test_what_no_text_may_hold_is_mended_before_it_is_recorded(begin: Begin) -> None:
    world = await begin(said_by(lambda prompt: [TextDelta("a\0b\ud800c"), DONE]))
    assert await world.ask("Hello.") == "a�b?c"


async def test_a_session_gets_a_title_after_its_first_exchange(begin: Begin) -> None:
    world = await begin(ECHO)
    said = await world.say("Where is the milk? I need it for the coffee.")
    await world.ended(said)
    await world.quiet()
    assert (await world.session(said)).title == "Where is the milk?"
    second = await world.say("And the sugar?")
    await world.ended(second)
    renamed = [event for event in await world.events(said.session_id) if isinstance(event, SessionRenamed)]
    assert [(event.title, event.actor) for event in renamed] == [("Where is the milk?", "system")]


async def test_the_title_that_a_person_gave_stays(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    said = await world.say("Where is the milk?")
    await world.sessions.rename(ANA, said.session_id, "Milk")
    gate.set()
    await world.ended(said)
    await world.quiet()
    assert (await world.session(said)).title == "Milk"


async def test_a_question_about_an_earlier_message_is_answered_from_history(begin: Begin) -> None:
    world = await begin(EmbeddedProvider())
    await world.ask("The code word is marmalade.")
    await world.ask("And the number is 7.")
    assert "The code word is marmalade." in await world.ask("What did I say first?")
    assert inputs(world.prompts[-1]) == ["The code word is marmalade.", "And the number is 7.", "What did I say first?"]


async def test_sessions_do_not_hear_one_another(begin: Begin) -> None:
    world = await begin(EmbeddedProvider())
    await world.ask("The code word is marmalade.", key="one")
    assert "marmalade" not in await world.ask("What did I say first?", key="two")


async def story_teller(prompt: Prompt) -> AsyncIterator[ModelEvent]:
    if inputs(prompt)[-1] == "Tell a story.":
        yield TextDelta("Once upon a time ")
        await asyncio.Event().wait()
    yield TextDelta("Yes.")
    yield DONE


async def test_the_model_sees_a_cancelled_answer_as_far_as_it_was_said(begin: Begin) -> None:
    world = await begin(Model(story_teller))
    await world.ask("Hello.")
    said = await world.say("Tell a story.")
    await world.seen(said, "model_text")
    await world.cancel(said)
    await world.ended(said)
    await world.ask("Never mind. What is two and two?")
    assert [(message.role, message.text) for message in world.prompts[-1].messages] == [
        (Role.USER, "Hello."),
        (Role.ASSISTANT, "Yes."),
        (Role.USER, "Tell a story."),
        (Role.ASSISTANT, f"Once upon a time\n\n{CANCELLED}"),
        (Role.USER, "Never mind. What is two and two?"),
    ]


async def test_a_message_that_was_interrupted_before_a_word_was_said_is_not_left_unanswered(begin: Begin) -> None:
    async def hang(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        if len(inputs(prompt)) == 1:
            await asyncio.Event().wait()
        yield TextDelta("Yes.")
        yield DONE

    world = await begin(Model(hang))
    first = await world.say("Delete the old files.")
    await world.seen(first, "model_turn_started")
    second = await world.say("No, wait.", mode=InputMode.INTERRUPT)
    await world.ended(second)
    assert [message.text for message in world.prompts[-1].messages] == [
        "Delete the old files.",
        CANCELLED,
        "No, wait.",
    ]
    (window,) = [entry for entry in await world.tape(second) if entry.kind == "context_assembled"]
    assert window.event.labels == (labels.OWNER,), "what the daemon itself says makes nothing less trusted"


async def test_a_run_that_was_cancelled_in_the_queue_is_no_part_of_the_conversation(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    first = await world.say("One.")
    await world.seen(first, "model_turn_started")
    second = await world.say("Two.")
    await world.cancel(second)
    gate.set()
    await world.ended(first)
    await world.ask("Three.")
    assert [message.text for message in world.prompts[-1].messages if message.role is Role.USER] == ["One.", "Three."]
