"""Five hundred tools beside the built-in ones: the prompt stays small, and what is found can be used."""

from datetime import timedelta

import msgspec

from palyra.core.events import ContextAssembled, ModelTurnStarted, PolicyDecided, ToolFinished
from palyra.core.model.prompt import ModelEvent, Prompt, TextDelta, estimate_tokens
from palyra.core.run.state import RunStatus
from palyra.core.tool import CallOutcome, Risk, Verdict
from palyra.journal import tape
from palyra.tools.base import Tool
from palyra.tools.toolbox import Toolbox
from tests.integration.cast import DONE, a_call, inputs, on_sqlite, results, said_by
from tests.integration.conftest import Begin
from tests.support.builders import ANA
from tests.support.many_tools import a_tool, crowd
from tests.support.world import Model, World

MAX_TOKENS = 2_000
WANTED = "mcp.tracker.create_issue"


def names(prompt: Prompt) -> list[str]:
    return [spec.name for spec in prompt.tools]


def obedient() -> Model:
    """Return a model that does what it is told: `search WORDS`, `call NAME`, or answers."""

    def speak(prompt: Prompt) -> list[ModelEvent]:
        orders = inputs(prompt)[-1].split("; ")
        done = sum(message.call_id is not None for message in prompt.messages[last_input(prompt) :])
        if done == len(orders) or not prompt.tools:
            return [TextDelta(results(prompt)[-1] if results(prompt) else "Hello."), DONE]
        deed, _, rest = orders[done].partition(" ")
        if deed == "search":
            return [a_call("tools.search", {"query": rest}), DONE]
        if deed == "call":
            return [a_call(rest, {"id": "1"}), DONE]
        return [TextDelta("Hello."), DONE]

    return said_by(speak)


def last_input(prompt: Prompt) -> int:
    return max(place for place, message in enumerate(prompt.messages) if message.role == "user")


def many(tools: list[Tool] | None = None) -> Toolbox:
    found = crowd() if tools is None else tools
    return Toolbox(lambda: found)


async def finished(world: World, text: str, *, key: str = "main") -> list[ToolFinished]:
    said = await world.say(text, key=key)
    assert (await world.ended(said)).status is RunStatus.DONE
    return [event for event in await world.events(said) if isinstance(event, ToolFinished)]


async def test_the_prompt_for_hi_stays_small(begin: Begin) -> None:
    for toolbox in (Toolbox(), many()):
        world = await begin(obedient(), toolbox=toolbox)
        said = await world.say("hi")
        await world.ended(said)
        (shown,) = [event for event in await world.events(said) if isinstance(event, ContextAssembled)]
        prompt = world.prompts[-1]
        assert shown.estimated_tokens < MAX_TOKENS
        # The whole of it, counted once more from what the model was really given.
        whole = msgspec.json.encode(prompt).decode()
        assert estimate_tokens(whole) < MAX_TOKENS
        assert not any(name.startswith("mcp.") for name in names(prompt))
        await world.stop()


async def test_what_is_found_can_be_called_in_the_next_turn(begin: Begin) -> None:
    world = await begin(obedient(), toolbox=many())
    search, call = await finished(world, f"search create an issue in the tracker; call {WANTED}")
    first, second, third = world.prompts
    assert "tools.search" in names(first)
    assert search.discovered_tools[0] == WANTED
    assert names(second) == [*names(first), *search.discovered_tools]
    assert names(third) == names(second)
    assert (call.outcome, call.text) == (CallOutcome.OK, f"{WANTED} was called")
    assert call.discovered_tools == ()


async def test_it_is_there_in_the_next_runs_of_the_session_and_in_no_other(begin: Begin) -> None:
    world = await begin(obedient(), toolbox=many())
    (search,) = await finished(world, "search create an issue in the tracker")
    await finished(world, "hi")
    (call,) = await finished(world, f"call {WANTED}")
    assert call.outcome is CallOutcome.OK
    (more,) = await finished(world, "search delete a webhook of the shop")
    await finished(world, "hi")
    assert names(world.prompts[-1])[-len(search.discovered_tools) - len(more.discovered_tools) :] == [
        *search.discovered_tools,
        *more.discovered_tools,
    ]
    assert await finished(world, f"call {WANTED}", key="other") == []
    assert WANTED not in names(world.prompts[-1])


async def test_it_is_there_after_a_crash(begin: Begin) -> None:
    world = await begin(obedient(), toolbox=many())
    said = await world.say(f"search create an issue in the tracker; call {WANTED}")
    await world.seen(said, "tool_finished")
    await world.crash()
    await world.ended(said)
    results_of = [event for event in await world.events(said) if isinstance(event, ToolFinished)]
    assert [event.outcome for event in results_of] == [CallOutcome.OK, CallOutcome.OK]
    await world.crash()
    (call,) = await finished(world, f"call {WANTED}")
    assert call.outcome is CallOutcome.OK
    started = [event for event in await world.events(said) if isinstance(event, ModelTurnStarted)]
    assert [WANTED in event.discovered_tools for event in started] == [False] + [True] * (len(started) - 1)


async def test_a_reset_forgets_it(begin: Begin) -> None:
    world = await begin(obedient(), toolbox=many())
    said = await world.say("search create an issue in the tracker")
    await world.ended(said)
    await world.sessions.reset(ANA, said.session_id)
    await finished(world, "hi")
    assert WANTED not in names(world.prompts[-1])


async def test_a_call_of_what_was_not_found_is_answered_with_how_to_find_it(begin: Begin) -> None:
    world = await begin(obedient(), toolbox=many())
    said = await world.say(f"call {WANTED}")
    await world.ended(said)
    (decided,) = [event for event in await world.events(said) if isinstance(event, PolicyDecided)]
    assert decided.verdict is Verdict.DENY
    assert "Find it with tools.search, then call it" in results(world.prompts[-1])[0]


async def test_a_found_tool_that_nobody_answered_about_is_proposed_once_more(begin: Begin) -> None:
    safe = a_tool("vault.open_safe", "Open the safe.", risk=Risk.MEDIUM)
    world = await begin(obedient(), toolbox=many([*crowd(), safe]))
    said = await world.say("search open the safe; call vault.open_safe")
    await world.reaches(said, RunStatus.WAITING)
    (old,) = await world.approvals.page(ANA, only_open=True, before=None, limit=2)
    world.clock.advance(world.expires + timedelta(seconds=1))
    await world.ended(said)
    again = await world.intake.reissue(ANA, old.approval_id)
    await world.reaches(again, RunStatus.WAITING)
    (new,) = await world.approvals.page(ANA, only_open=True, before=None, limit=2)
    await world.approvals.resolve(ANA, new.approval_id, allow=True)
    await world.ended(again)
    (done,) = [event for event in await world.events(again) if isinstance(event, ToolFinished)]
    assert (done.outcome, done.text) == (CallOutcome.OK, "vault.open_safe was called")


async def test_an_agent_finds_only_what_it_may_use(begin: Begin) -> None:
    world = await begin(obedient(), toolbox=many())
    shop = tuple(tool.spec.name for tool in crowd(("shop",)))
    await world.change_agent(tools=("time.now", *shop))
    (search,) = await finished(world, "search create an issue in the tracker")
    assert search.discovered_tools
    assert set(search.discovered_tools) <= set(shop)
    assert names(world.prompts[0]) == ["time.now", "tools.search"]


@on_sqlite
async def test_tools_that_come_and_go_are_offered_when_they_are_there(begin: Begin) -> None:
    tools = crowd()
    world = await begin(obedient(), toolbox=Toolbox(lambda: tools))
    (search,) = await finished(world, "search create an issue in the tracker")
    kept, tools[:] = tools[:], []
    await finished(world, "hi")
    assert "tools.search" not in names(world.prompts[-1])
    assert WANTED not in names(world.prompts[-1])
    tools[:] = kept
    await finished(world, "hi")
    assert names(world.prompts[-1])[-len(search.discovered_tools) :] == list(search.discovered_tools)


@on_sqlite
async def test_a_few_tools_cost_no_search_and_no_look_at_the_tape(begin: Begin) -> None:
    few = crowd(("tracker",))[:2]
    world = await begin(obedient(), toolbox=many(few))
    (call,) = await finished(world, f"call {few[0].spec.name}")
    assert call.outcome is CallOutcome.OK
    assert "tools.search" not in names(world.prompts[0])


async def test_the_latest_entries_of_a_kind_are_read_from_the_end(begin: Begin) -> None:
    world = await begin(obedient(), toolbox=many())
    said = await world.say("hi")
    await world.ended(said)
    again = await world.say("hi")
    await world.ended(again)

    async def kinds(*wanted: str, after_seq: int = 0, limit: int = 10) -> list[tuple[str, int]]:
        entries = await world.engine.read(
            lambda conn: tape.latest(conn, said.session_id, wanted, after_seq=after_seq, limit=limit)
        )
        return [(entry.kind, entry.tape_seq) for entry in entries]

    every = await kinds("run_accepted", "run_completed")
    assert [kind for kind, _ in every] == ["run_completed", "run_accepted", "run_completed", "run_accepted"]
    assert await kinds("run_accepted", "run_completed", limit=1) == every[:1]
    assert await kinds("run_accepted", after_seq=every[1][1] - 1) == [every[1]]
