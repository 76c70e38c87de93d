"""What the model is shown: as much of the conversation as fits, and never a piece that makes no sense."""

import pytest

from palyra.core.events import ContextAssembled, InputMode
from palyra.core.message import AcceptedMessage
from palyra.core.model.prompt import ModelEvent, Prompt, Role, TextDelta, estimate_tokens
from palyra.core.policy import labels
from palyra.core.run.state import RunStatus
from palyra.core.tool import Risk
from palyra.memory import history
from palyra.providers.scripted import ScriptCall
from palyra.tools.base import Tool, ToolContext, tool
from tests.integration.cast import DONE, Door, a_call, first_calls, inputs, on_sqlite, results, said_by
from tests.integration.conftest import Begin
from tests.support.eventually import eventually
from tests.support.world import Model, World

WINDOW = 4_000


def assert_paired(prompt: Prompt) -> None:
    """Look whether each call is followed by its result, in the calls' order, and no result stands alone."""
    expected: list[str | None] = []
    for message in prompt.messages:
        if message.role is Role.TOOL:
            assert expected, "a result without its call"
            assert message.call_id == expected.pop(0)
        else:
            assert not expected, "a call without its result"
            expected = [call.call_id for call in message.calls]
    assert not expected
    assert prompt.messages[0].role is Role.USER


def a_book(size: int) -> Tool:
    """Return a tool that gives so many characters, and the page that was asked for."""

    @tool(name="book.read", risk=Risk.LOW, read_only=True, repeatable=True)
    async def read(context: ToolContext, *, page: int) -> str:
        """Read a page of the book."""
        return f"page {page} " + "x" * size

    return read


def reader(pages: int, *, at_once: int = 1, window: int = WINDOW) -> Model:
    """Return a model that reads so many pages, so many in each turn, and then says which pages it can see."""

    def speak(prompt: Prompt) -> list[ModelEvent]:
        seen = [int(text.split()[1]) for text in results(prompt) if text.startswith("page")]
        start = max(seen, default=0) + 1
        if start > pages or not prompt.tools:
            return [TextDelta(f"I see pages {seen}."), DONE]
        wanted = range(start, start + at_once)
        return [*(a_call("book.read", {"page": page}, call_id=str(page)) for page in wanted), DONE]

    return said_by(speak, window_tokens=window)


def agreeable() -> Model:
    """Return a model with a small window that agrees to everything."""
    return said_by(lambda prompt: [TextDelta("Yes."), DONE], window_tokens=WINDOW)


async def assembled(world: World, said: AcceptedMessage) -> list[ContextAssembled]:
    return [event for event in await world.events(said) if isinstance(event, ContextAssembled)]


async def test_a_long_history_is_cut_from_the_oldest_and_what_is_missing_is_counted(begin: Begin) -> None:
    world = await begin(agreeable())
    for number in range(12):
        said = await world.say(f"Number {number}. " + "x" * 2_000)
        await world.ended(said)
    shown = [text.split(".")[0] for text in inputs(world.prompts[-1])]
    assert 2 <= len(shown) < 12
    assert shown == [f"Number {number}" for number in range(12 - len(shown), 12)]
    (context,) = await assembled(world, said)
    assert context.messages == len(world.prompts[-1].messages) == 2 * len(shown) - 1
    assert context.messages + context.dropped == 23
    assert context.estimated_tokens <= WINDOW
    kinds = {entry.tape_seq: (entry.kind, entry.run_id) for entry in await world.tape(said.session_id)}
    assert kinds[context.first_seq or 0][0] == "run_started", "an input stands where its run started"
    assert kinds[context.last_seq or 0] == ("run_started", said.run_id)


async def test_a_message_that_is_longer_than_the_window_is_shown_all_the_same(begin: Begin) -> None:
    world = await begin(agreeable())
    await world.ask("Before.")
    long = "x" * 50_000
    assert await world.ask(long) == "Yes."
    assert inputs(world.prompts[-1]) == [long]
    await world.ask("After.")
    assert inputs(world.prompts[-1]) == ["After."]


async def test_nothing_is_dropped_that_fits(begin: Begin) -> None:
    world = await begin(said_by(lambda prompt: [TextDelta("Yes."), DONE]))
    for number in range(5):
        said = await world.say(f"Number {number}.")
        await world.ended(said)
    (context,) = await assembled(world, said)
    assert (context.messages, context.dropped) == (9, 0)
    assert context.labels == (labels.OWNER,)


@pytest.mark.parametrize("at_once", [1, 3])
@on_sqlite
async def test_a_run_that_outgrows_the_window_keeps_its_question_and_its_last_results(
    begin: Begin, at_once: int
) -> None:
    """Eight pages of 1,000 tokens do not fit; a model that did not see the last ones would read them again."""
    world = await begin(reader(9, at_once=at_once), tools=[a_book(4_000)])
    said = await world.say("Read the book.")
    run = await world.ended(said)
    assert run.status is RunStatus.DONE
    assert run.tool_calls == 9, "a page was read twice"
    for prompt in world.prompts:
        assert inputs(prompt) == ["Read the book."]
        assert_paired(prompt)
        shown = [text.split()[1] for text in results(prompt)]
        assert shown == sorted(shown)
    last = (await assembled(world, said))[-1]
    assert last.dropped > 0
    assert last.messages == len(world.prompts[-1].messages)


@on_sqlite
async def test_a_result_that_is_larger_than_the_window_is_shown_with_its_call(begin: Begin) -> None:
    world = await begin(reader(3, window=2_500), tools=[a_book(14_000)])
    said = await world.say("Read the book.")
    run = await world.ended(said)
    assert (run.status, run.tool_calls) == (RunStatus.DONE, 3)
    for prompt in world.prompts:
        assert_paired(prompt)
    assert [len(results(prompt)) for prompt in world.prompts] == [0, 1, 1, 1]


@pytest.mark.parametrize(("at_once", "size"), [(1, 4_000), (3, 4_000), (1, 14_000), (2, 600)])
@on_sqlite
async def test_what_is_remembered_and_what_is_read_anew_are_the_same(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, at_once: int, size: int
) -> None:
    """In the first session the conversation is kept in memory; in the second it is forgotten after each turn."""
    world = await begin(reader(6, at_once=at_once), tools=[a_book(size)])
    asked: list[list[list[str]]] = []
    for remembered in (history.MAX_SESSIONS, 0):
        monkeypatch.setattr(history, "MAX_SESSIONS", remembered)
        del world.prompts[:]
        for number in range(4):
            await world.ask(f"Read the book for the time number {number}.", key=f"{remembered}")
        asked.append([[message.text for message in prompt.messages] for prompt in world.prompts])
        for prompt in world.prompts:
            assert_paired(prompt)
    assert asked[0] == asked[1]


@on_sqlite
async def test_what_was_said_long_ago_in_a_run_is_read_again_with_its_end(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_SESSIONS", 0)
    door = Door()

    def speak(prompt: Prompt) -> list[ModelEvent]:
        if not results(prompt) and len(inputs(prompt)) == 1:
            return [a_call("door.wait"), DONE]
        seen = sum(text.startswith("page") for text in results(prompt))
        if len(world.prompts) > 8:
            return [TextDelta(f"I see {seen} pages."), DONE]
        return [a_call("book.read", {"page": len(world.prompts)}), DONE]

    world = await begin(said_by(speak, window_tokens=WINDOW), tools=[door.tool, a_book(4_000)])
    said = await world.say("One.")
    await eventually(lambda: door.came)
    await world.say("Two.", mode=InputMode.STEER)
    door.open.set()
    await world.ended(said)
    assert inputs(world.prompts[-1]) == ["One.", "Two."]
    assert_paired(world.prompts[-1])


@on_sqlite
async def test_what_was_said_meanwhile_stands_behind_the_results(begin: Begin) -> None:
    door = Door()
    world = await begin(first_calls(ScriptCall(tool="door.wait"), then="Done."), tools=[door.tool])
    said = await world.say("One.")
    await eventually(lambda: door.came)
    await world.say("Two.", mode=InputMode.STEER)
    await world.say("Three.", mode=InputMode.STEER)
    door.open.set()
    await world.ended(said)
    assert_paired(world.prompts[1])
    assert [message.text for message in world.prompts[1].messages] == ["One.", "", "came in", "Two.", "Three."]


@on_sqlite
async def test_calls_that_a_cancelled_run_left_unanswered_get_a_stand_in(begin: Begin) -> None:
    door = Door(read_only=True)
    calls = [a_call("time.now", call_id="1"), a_call("door.wait", call_id="2")]

    def speak(prompt: Prompt) -> list[ModelEvent]:
        return [*calls, DONE] if inputs(prompt)[-1] == "Go." else [TextDelta("Yes."), DONE]

    world = await begin(said_by(speak), tools=[door.tool])
    said = await world.say("Go.")
    await world.seen(said, "tool_finished")
    await world.cancel(said)
    await world.ended(said)
    await world.ask("And now?")
    assert_paired(world.prompts[-1])
    assert "UTC" in results(world.prompts[-1])[0]
    assert results(world.prompts[-1])[1] == history.NOT_RUN


@on_sqlite
async def test_the_tape_has_a_digest_of_what_the_model_was_told_and_never_the_text(begin: Begin) -> None:
    world = await begin(said_by(lambda prompt: [TextDelta("Yes."), DONE]))
    said = await world.say("The code word is marmalade.")
    await world.ended(said)
    entry = next(entry for entry in await world.tape(said) if entry.kind == "context_assembled")
    assert "marmalade" not in entry.content
    (context,) = await assembled(world, said)
    assert len(context.digest) == 64
    assert context.window_tokens == 100_000
    prompt = world.prompts[0]
    assert context.estimated_tokens >= estimate_tokens(prompt.system)


async def test_what_was_seen_at_the_beginning_is_not_taken_for_all_there_is(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the commit that begins a run and its first turn, others may push its conversation out of memory."""
    world = await begin(said_by(lambda prompt: [TextDelta("Yes."), DONE]))
    for number in range(3):
        await world.ask(f"message {number}", key="long")
        await world.ask(f"aside {number}", key="other")
    monkeypatch.setattr(history, "MAX_SESSIONS", 1)
    for number in range(3, 6):
        runs = [await world.say(f"message {number}", key="long"), await world.say(f"aside {number}", key="other")]
        await world.all_ended(runs)
        for prompt in world.prompts[-2:]:
            word = inputs(prompt)[-1].split()[0]
            assert inputs(prompt) == [f"{word} {place}" for place in range(number + 1)]


async def test_a_damaged_message_keeps_no_other_one_out(begin: Begin) -> None:
    world = await begin(said_by(lambda prompt: [TextDelta("Yes."), DONE]))
    said = await world.say("one")
    await world.ended(said)
    (*_, answer) = await world.tape(said)

    async def write_calls(calls: str) -> None:
        await world.engine.write(
            lambda conn: conn.execute(
                "UPDATE messages SET calls = :calls WHERE session_id = :session_id AND role = 'assistant'"
                " AND tape_seq <= :last",
                {"calls": calls, "session_id": said.session_id, "last": answer.tape_seq},
            )
        )

    await write_calls("{")
    assert (await world.ended(await world.say("two"))).status is RunStatus.FAILED
    await write_calls("[]")
    assert await world.ask("three") == "Yes."
    assert inputs(world.prompts[-1]) == ["one", "two", "three"]
