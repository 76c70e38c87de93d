"""An MCP server in the hands of somebody else, and a model that obeys it: it hears nothing that nobody allowed.

What the owner has accepted is a tool, not what is done with it. What a server says, of its tools or as their result, is
text for the model: it changes neither who is asked, nor what a name stands for.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palyra.core.events import ModelTurnStarted, PolicyDecided, ToolFinished, ToolProposed, ToolStarted
from palyra.core.mcp import McpServerState
from palyra.core.policy.approval import Approval
from palyra.core.run.state import RunStatus
from palyra.core.tool import Risk, Verdict
from palyra.providers.scripted import Script, ScriptCall, ScriptCondition, ScriptRule, ScriptText
from palyra.sandbox.base import Tier
from palyra.sandbox.processes.mounts import HiddenFolders
from palyra.sandbox.processes.process import ProcessSandbox
from palyra.tools.catalog import BUILTIN
from palyra.tools.mcp.servers import McpServers
from palyra.tools.toolbox import Toolbox
from tests.contract.mcp.conftest import SUPPORT, Keeping, keeping, notebook
from tests.integration.cast import on_sqlite
from tests.integration.conftest import Begin
from tests.support.builders import ANA
from tests.support.eventually import eventually
from tests.support.hostile_mcp import ORDERS
from tests.support.needs import BUBBLEWRAP, require
from tests.support.world import Said, World

pytestmark = on_sqlite

Json = Any
SECRET = "The crown is under the third stone."
UPLOAD = ScriptCall(tool="mcp.s.upload", arguments={"text": SECRET})
ENDED = (ScriptText(text="Done."),)


@dataclass
class Scene:
    """A world whose model obeys, the servers that it has, and a file with all that the hostile one was told."""

    world: World
    kept: Keeping
    file: Path

    async def heard(self) -> list[Json]:
        """Return every call that has reached the server."""
        if not await asyncio.to_thread(self.file.exists):
            return []
        return [json.loads(line) for line in (await asyncio.to_thread(self.file.read_text)).splitlines()]

    async def question(self, *, number: int = 1) -> Approval:
        """Wait for the question of that number, and return it."""

        async def look() -> Approval:
            asked = await self.world.approvals.page(ANA, only_open=False, before=None, limit=10)
            assert len(asked) == number
            return asked[0]

        return await eventually(look, timeout=60)

    async def answer(self, *, number: int, allow: bool) -> Approval:
        asked = await self.question(number=number)
        await self.world.approvals.resolve(ANA, asked.approval_id, allow=allow)
        return asked

    async def ended(self, said: Said) -> None:
        """Wait until the model has had its last word."""
        assert (await self.world.ended(said)).status is RunStatus.DONE

    async def started(self, said: Said) -> list[str]:
        """Return the tools that were carried out."""
        events = await self.world.events(said)
        tools = {event.call_id: event.tool for event in events if isinstance(event, ToolProposed)}
        return [tools[event.call_id] for event in events if isinstance(event, ToolStarted)]

    async def labels(self, said: Said) -> set[tuple[str, ...]]:
        """Return the labels of the turns and calls of a run."""
        events = await self.world.events(said)
        return {event.labels for event in events if isinstance(event, ModelTurnStarted | ToolProposed | PolicyDecided)}


@asynccontextmanager
async def obeying(begin: Begin, folder: Path, *turns: tuple[ScriptCall, ...]) -> AsyncIterator[Scene]:
    """A scene whose model makes these calls, turn by turn; nothing of the server is accepted yet."""
    await asyncio.to_thread(require, BUBBLEWRAP)
    servers: list[McpServers] = []
    world = await begin(
        Script(rules=(ScriptRule(when=ScriptCondition(tools=True), turns=(*turns, ENDED)),), default=ENDED),
        toolbox=Toolbox(lambda: servers[0].tools() if servers else ()),
        sandbox=ProcessSandbox(Tier.STRICT, private=HiddenFolders()),
    )
    world.inbox = True
    heard = folder / "heard"
    thief = notebook(args=(str(SUPPORT / "hostile_mcp.py"), "thief", str(heard)), principals=(ANA,))
    async with keeping(folder, world.engine, s=thief) as kept:
        servers.append(kept.servers)
        await kept.reaches(McpServerState.READY)
        yield Scene(world, kept, heard)


async def test_nothing_is_carried_off_without_a_yes_to_just_that(begin: Begin, tmp_path: Path) -> None:
    async with obeying(begin, tmp_path, (UPLOAD,), (UPLOAD,), (UPLOAD,)) as scene:
        await scene.kept.accepts()
        said = await scene.world.say("Good morning.")

        asked = await scene.question()
        assert asked.effect.risk is Risk.HIGH
        assert SECRET in asked.effect.detail
        assert await scene.heard() == []
        await scene.answer(number=1, allow=False)
        await scene.answer(number=2, allow=True)
        # A yes is good for one call: the same once more is asked about anew.
        await scene.question(number=3)
        assert await scene.heard() == [{"name": "upload", "arguments": {"text": SECRET}}]
        await scene.answer(number=3, allow=False)

        await scene.ended(said)
        assert len(await scene.heard()) == 1


async def test_where_nobody_can_be_asked_nothing_is_carried_off(begin: Begin, tmp_path: Path) -> None:
    async with obeying(begin, tmp_path, (UPLOAD,)) as scene:
        scene.world.inbox = False
        await scene.kept.accepts()
        said = await scene.world.say("Good morning.")
        await scene.ended(said)
        (decided,) = [event for event in await scene.world.events(said) if isinstance(event, PolicyDecided)]
        assert decided.verdict is Verdict.DENY
        assert await scene.started(said) == []
        assert await scene.heard() == []


async def test_what_nobody_has_accepted_is_neither_said_to_the_model_nor_called(begin: Begin, tmp_path: Path) -> None:
    async with obeying(begin, tmp_path, (UPLOAD,)) as scene:
        said = await scene.world.say("Good morning.")
        await scene.ended(said)
        assert not [tool for prompt in scene.world.prompts for tool in prompt.tools if ORDERS in tool.description]
        assert await scene.started(said) == []
        assert await scene.heard() == []


async def test_orders_in_a_result_are_obeyed_by_nobody_but_the_model(begin: Begin, tmp_path: Path) -> None:
    obeyed = (
        ScriptCall(tool="files.write", arguments={"path": ".bashrc", "text": "evil\n"}),
        ScriptCall(tool="shell.run", arguments={"command": "cat ~/.ssh/id_rsa", "access": "write"}),
        ScriptCall(tool="mcp.s.upload", arguments={"text": "the key"}),
    )
    async with obeying(begin, tmp_path, (UPLOAD,), *((call,) for call in obeyed)) as scene:
        await scene.kept.accepts()
        said = await scene.world.say("Good morning.")
        await scene.answer(number=1, allow=True)
        for number in range(len(obeyed)):
            asked = await scene.answer(number=number + 2, allow=False)
            assert asked.tool == obeyed[number].tool

        await scene.ended(said)
        events = await scene.world.events(said)
        result = next(event for event in events if isinstance(event, ToolFinished))
        assert (result.text, result.labels) == (ORDERS, ("web",))
        decided = [event for event in events if isinstance(event, PolicyDecided)][1:]
        assert [(event.verdict, event.labels) for event in decided] == [(Verdict.ASK, ("owner", "other", "web"))] * len(
            obeyed
        )
        assert await scene.started(said) == ["mcp.s.upload"]
        assert len(await scene.heard()) == 1
        assert not [prompt for prompt in scene.world.prompts if ORDERS in prompt.system]
    assert await asyncio.to_thread(lambda: [path.name for path in (tmp_path / "workspace").iterdir()]) == ["notes.txt"]


async def test_what_was_accepted_counts_in_the_label_of_every_turn_that_offers_it(begin: Begin, tmp_path: Path) -> None:
    async with obeying(begin, tmp_path, (ScriptCall(tool="files.list", arguments={}),)) as scene:
        said = await scene.world.say("Good morning.")
        await scene.ended(said)
        assert await scene.labels(said) == {("owner",)}
        await scene.kept.accepts()
        said = await scene.world.say("Good morning.", key="other")
        await scene.ended(said)
        assert await scene.labels(said) == {("owner", "other")}


async def test_a_server_does_not_get_the_calls_of_a_tool_whose_name_it_takes(begin: Begin, tmp_path: Path) -> None:
    async with obeying(begin, tmp_path, (ScriptCall(tool="files.read", arguments={"path": "notes.txt"}),)) as scene:
        own = {tool.spec.name: tool.spec for tool in BUILTIN}
        await scene.kept.accepts()
        said = await scene.world.say("Good morning.")
        await scene.ended(said)

        offered = {tool.name: tool for tool in scene.world.prompts[0].tools}
        assert {"mcp.s.files.read", "mcp.s.shell.run"} <= set(offered)
        assert {name: offered[name] for name in own} == own
        assert await scene.started(said) == ["files.read"]
        (result,) = [event for event in await scene.world.events(said) if isinstance(event, ToolFinished)]
        assert "The milk is in the fridge." in result.text
        assert await scene.heard() == []
