"""Agents: who answers where, and how they are kept."""

import asyncio
from pathlib import Path

import pytest

from palyra.core.agent import Agent, AgentNotFound
from palyra.core.events import RunAccepted
from palyra.core.ids import AgentId, IdInvalid
from palyra.core.limits import Limits
from palyra.core.message import TextInvalid
from palyra.core.run.state import RunStatus
from palyra.core.session import SessionNotFound
from palyra.core.session_events import SessionAgentBound
from palyra.providers.scripted import ScriptCall
from palyra.runs.services.agents import AgentBusy, AgentDefault, AgentInvalid, AgentService
from palyra.sandbox.files.workspace import Workspace
from tests.integration.cast import ECHO, first_calls, held, on_sqlite, results
from tests.integration.conftest import Begin
from tests.support.builders import ANA
from tests.support.world import BEN, World

UNKNOWN = AgentId("01ARZ3NDEKTSV4RRFFQ69G5FAV")


def doors(world: World, workspace: Path) -> AgentService:
    return AgentService(world.engine, clock=world.clock, ids=world.ids, workspace=lambda _: Workspace((workspace,)))


def an_agent(name: str = "cook", **more: object) -> Agent:
    return Agent(agent_id=UNKNOWN, principal=BEN, name=name, instructions="Cook.", **more)  # type: ignore[arg-type]


async def test_an_agent_is_kept_listed_changed_and_forgotten(begin: Begin, workspace: Path) -> None:
    agents = doors(await begin(ECHO), workspace)
    cook = await agents.create(ANA, an_agent())
    assert (cook.principal, cook.is_default) == (ANA, False)
    assert cook.agent_id != UNKNOWN
    assert [agent.name for agent in await agents.list(ANA)] == ["cook", "main"]
    changed = await agents.update(ANA, Agent(agent_id=cook.agent_id, principal=BEN, name="chef", instructions="Cook!"))
    assert (changed.name, changed.principal) == ("chef", ANA)
    assert await agents.get(ANA, cook.agent_id) == changed
    await agents.delete(ANA, cook.agent_id)
    assert [agent.name for agent in await agents.list(ANA)] == ["main"]


async def test_an_agent_answers_where_it_is_bound_and_the_tape_says_why(begin: Begin, workspace: Path) -> None:
    world = await begin(ECHO)
    agents = doors(world, workspace)
    cook = await agents.create(ANA, an_agent(tools=("time.now",), limits=Limits(model_turns=3)))
    first = await world.say("Hello.")
    await world.ended(first)
    await agents.bind(ANA, cook.agent_id, first.session_id)
    assert await agents.resolve(ANA, first.session_id) == (cook, "bound to the session")
    second = await world.say("Hello again.")
    await world.ended(second)
    assert world.prompts[1].system.startswith("Cook.")
    assert [spec.name for spec in world.prompts[1].tools] == ["time.now"]
    accepted = (await world.events(second))[0]
    assert isinstance(accepted, RunAccepted)
    assert (accepted.agent_id, accepted.agent_reason) == (cook.agent_id, "bound to the session")
    assert accepted.limits.model_turns == 3
    await agents.unbind(ANA, first.session_id)
    assert (await agents.resolve(ANA, first.session_id))[1] == "the default agent"
    bound = [event.agent_id for event in await world.events(first.session_id) if isinstance(event, SessionAgentBound)]
    assert bound == [cook.agent_id, None]


async def test_the_default_answers_where_the_bound_one_was_deleted(begin: Begin, workspace: Path) -> None:
    world = await begin(ECHO)
    agents = doors(world, workspace)
    cook = await agents.create(ANA, an_agent())
    said = await world.say("Hello.")
    await world.ended(said)
    await agents.bind(ANA, cook.agent_id, said.session_id)
    await agents.delete(ANA, cook.agent_id)
    assert (await world.ended(await world.say("Again."))).status is RunStatus.DONE
    assert "was deleted" in (await agents.resolve(ANA, said.session_id))[1]


async def test_an_agent_at_work_and_the_default_one_are_not_deleted(begin: Begin, workspace: Path) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    agents = doors(world, workspace)
    cook = await agents.create(ANA, an_agent())
    main = (await agents.resolve(ANA, None))[0]
    with pytest.raises(AgentDefault):
        await agents.delete(ANA, main.agent_id)
    await agents.set_default(ANA, cook.agent_id)
    said = await world.say("Hello.")
    await agents.set_default(ANA, main.agent_id)
    with pytest.raises(AgentBusy):
        await agents.delete(ANA, cook.agent_id)
    gate.set()
    await world.ended(said)
    await agents.delete(ANA, cook.agent_id)
    assert [(agent.name, agent.is_default) for agent in await agents.list(ANA)] == [("main", True)]


async def test_somebody_elses_agent_looks_like_one_that_does_not_exist(begin: Begin, workspace: Path) -> None:
    world = await begin(ECHO)
    agents = doors(world, workspace)
    his = await agents.create(BEN, an_agent())
    session = (await world.say("Hello.")).session_id
    for agent_id in (his.agent_id, UNKNOWN):
        for door in (
            agents.get(ANA, agent_id),
            agents.update(ANA, Agent(agent_id=agent_id, principal=ANA, name="mine", instructions="")),
            agents.delete(ANA, agent_id),
            agents.set_default(ANA, agent_id),
            agents.bind(ANA, agent_id, session),
        ):
            with pytest.raises(AgentNotFound):
                await door
    with pytest.raises(SessionNotFound):
        await agents.bind(BEN, his.agent_id, session)
    with pytest.raises(SessionNotFound):
        await agents.resolve(BEN, session)
    with pytest.raises(IdInvalid):
        await agents.get(ANA, "nonsense")


@on_sqlite
async def test_an_agent_that_can_not_work_is_refused(begin: Begin, workspace: Path) -> None:
    agents = doors(await begin(ECHO), workspace)
    for bad, why in (
        (an_agent(" "), "1 to 80 characters"),
        (an_agent("x" * 81), "1 to 80 characters"),
        (an_agent("main"), "already"),
        (an_agent(tools=("tiem.now",)), "Did you mean time.now"),
        (an_agent(limits=Limits(tool_calls=-1)), "tool_calls is -1. A limit cannot be negative"),
        (
            an_agent(limits=Limits(tool_timeout_ms=30_001)),
            r"tool_timeout_ms is 30001, but the maximum of this daemon is 30000 \(limits.tool_timeout_ms\)",
        ),
        (
            an_agent(limits=Limits(model_turns=10**12)),
            "model_turns is 1000000000000, but the maximum of this daemon is 24",
        ),
        (an_agent(limits=Limits(max_children=9)), "children is 9, but the maximum of this daemon is 8"),
    ):
        with pytest.raises(AgentInvalid, match=why):
            await agents.create(ANA, bad)
    with pytest.raises(TextInvalid):
        await agents.create(ANA, an_agent("a\0b"))


@on_sqlite
async def test_limits_of_an_agent_are_capped_by_those_of_the_daemon(begin: Begin, workspace: Path) -> None:
    world = await begin(ECHO, limits=Limits(model_turns=5, tool_timeout_ms=1_000))
    # Saved while the daemon allowed more.
    cook = await doors(world, workspace).create(ANA, an_agent(limits=Limits(model_turns=20, tool_calls=3)))
    await doors(world, workspace).set_default(ANA, cook.agent_id)

    accepted = (await world.events(await world.say("Hello.")))[0]

    assert isinstance(accepted, RunAccepted)
    assert accepted.limits == Limits(model_turns=5, tool_calls=3, tool_timeout_ms=1_000)


@on_sqlite
async def test_an_agent_sees_its_own_folders_only(begin: Begin, workspace: Path) -> None:
    (workspace / "kitchen").mkdir()
    (workspace / "kitchen" / "recipe.txt").write_text("Eggs.")
    world = await begin(first_calls(ScriptCall(tool="files.list")))
    agents = doors(world, workspace)
    for bad in ("/", str(workspace / "nowhere"), str(workspace / "..")):
        with pytest.raises(AgentInvalid, match="folder inside"):
            await agents.create(ANA, an_agent(workspace_roots=(bad,)))
    cook = await agents.create(ANA, an_agent(workspace_roots=(str(workspace / "kitchen"),)))
    await agents.set_default(ANA, cook.agent_id)
    await world.ask("What is there?")
    (listing,) = results(world.prompts[-1])
    assert "recipe.txt" in listing
    assert "notes.txt" not in listing


@on_sqlite
async def test_a_root_that_is_a_link_is_not_kept(begin: Begin, workspace: Path) -> None:
    agents = doors(await begin(ECHO), workspace)
    (workspace / "kitchen").mkdir()
    (workspace / "alias").symlink_to("kitchen")
    (workspace / "way-out").symlink_to("/etc")
    for bad in ("alias", "way-out", "way-out/ssl", "kitchen/../kitchen"):
        with pytest.raises(AgentInvalid, match="folder inside"):
            await agents.create(ANA, an_agent(workspace_roots=(f"{workspace}/{bad}",)))
    with pytest.raises(AgentInvalid, match="at most 16 workspace roots"):
        await agents.create(ANA, an_agent(workspace_roots=(str(workspace / "kitchen"),) * 17))


@on_sqlite
async def test_a_root_that_became_a_link_is_refused_at_each_use(begin: Begin, workspace: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "recipe.txt").write_text("Not for everybody.")
    (workspace / "kitchen").mkdir()
    world = await begin(first_calls(ScriptCall(tool="files.read", arguments={"path": "recipe.txt"})))
    agents = doors(world, workspace)
    cook = await agents.create(ANA, an_agent(workspace_roots=(str(workspace / "kitchen"),)))
    await agents.set_default(ANA, cook.agent_id)
    (workspace / "kitchen").rmdir()
    (workspace / "kitchen").symlink_to(outside)
    await world.ask("What is in it?")
    (result,) = results(world.prompts[-1])
    assert "'kitchen' in the path of the root is a symbolic link, so the root was not opened" in result
