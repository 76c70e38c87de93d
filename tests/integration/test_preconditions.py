"""A call that cannot be carried out fails before anybody is asked about it, and says what to do."""

import asyncio
import os
from pathlib import Path

import pytest

from palyra.core.events import PolicyDecided, ToolFinished, ToolStarted
from palyra.core.mcp import McpServerState
from palyra.core.policy.approval import Approval
from palyra.core.run.state import RunStatus
from palyra.core.tool import CallOutcome, Risk, Verdict
from palyra.home import Home
from palyra.providers.scripted import ScriptCall
from palyra.sandbox.base import Tier
from palyra.sandbox.network.egress import Egress
from palyra.sandbox.processes import launch, tiers
from palyra.sandbox.processes.mounts import HiddenFolders
from palyra.sandbox.processes.process import ProcessSandbox
from palyra.tools.mcp import server
from palyra.tools.plugins.tools import tools_of
from palyra.tools.toolbox import Toolbox
from tests.contract.mcp.conftest import keeping, notebook
from tests.integration.cast import first_calls, on_sqlite, results
from tests.integration.conftest import Begin
from tests.support import modules
from tests.support.builders import ANA
from tests.support.needs import BUBBLEWRAP, require
from tests.support.plugins import TOOL, a_plugin, installed_from, manifest
from tests.support.world import Said, World

COMMAND = ScriptCall(tool="shell.run", arguments={"command": "touch made", "access": "write"})
BROKEN = "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n"


@pytest.fixture
def sandbox() -> ProcessSandbox:
    require(BUBBLEWRAP)
    return ProcessSandbox(Tier.STRICT, private=HiddenFolders())


def lose_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it had been uninstalled."""
    for module in (tiers, launch):
        monkeypatch.setattr(module, "find", lambda name: None)


def break_bubblewrap(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As if the kernel did not let it make namespaces any more."""
    folder.mkdir()
    (folder / "bwrap").write_text(BROKEN)
    (folder / "bwrap").chmod(0o755)
    (folder / "prlimit").symlink_to(tiers.find("prlimit") or "")
    monkeypatch.setattr(tiers, "SEARCHED", str(folder))


async def questions(world: World) -> list[Approval]:
    return await world.approvals.page(ANA, only_open=False, before=None, limit=10)


async def refused(world: World, said: Said) -> PolicyDecided:
    """Return why the one call of a run was refused, after a look that nobody was asked and nothing was run."""
    assert (await world.ended(said)).status is RunStatus.DONE
    assert await questions(world) == []
    events = await world.events(said)
    assert not [event for event in events if isinstance(event, ToolStarted)]
    [decided] = [event for event in events if isinstance(event, PolicyDecided)]
    assert decided.verdict is Verdict.DENY
    assert results(world.prompts[-1]) == [f"[denied] {decided.reason}"]
    return decided


async def asked(world: World, said: Said) -> Approval:
    await world.reaches(said, RunStatus.WAITING)
    [question] = await questions(world)
    return question


async def test_a_command_is_not_asked_about_if_the_sandbox_is_not_installed(
    begin: Begin, sandbox: ProcessSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await begin(first_calls(COMMAND), sandbox=sandbox)
    lose_bubblewrap(monkeypatch)
    decided = await refused(world, await world.say("Make it."))
    assert decided.policies == ("sandbox_unavailable",)
    assert "bwrap is not installed" in decided.reason
    assert "apt install bubblewrap" in decided.reason


@on_sqlite
async def test_a_command_is_not_asked_about_if_the_kernel_does_not_let_the_sandbox_be_set_up(
    begin: Begin, sandbox: ProcessSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await begin(first_calls(COMMAND), sandbox=sandbox)
    await asyncio.to_thread(break_bubblewrap, monkeypatch, tmp_path / "tools")
    decided = await refused(world, await world.say("Make it."))
    assert "unprivileged_userns_clone" in decided.reason


async def test_a_sandbox_that_goes_between_question_and_answer_is_the_result(
    begin: Begin, sandbox: ProcessSandbox, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await begin(first_calls(COMMAND), sandbox=sandbox)
    said = await world.say("Make it.")
    question = await asked(world, said)
    lose_bubblewrap(monkeypatch)
    await world.approvals.resolve(ANA, question.approval_id, allow=True)
    assert (await world.ended(said)).status is RunStatus.DONE
    [finished] = [event for event in await world.events(said) if isinstance(event, ToolFinished)]
    assert finished.outcome is CallOutcome.DENIED
    assert "bwrap is not installed" in finished.text
    assert "apt install bubblewrap" in finished.text
    assert not await asyncio.to_thread((workspace / "made").exists)


@on_sqlite
async def test_a_sandbox_that_stops_to_work_is_noticed_by_the_next_call(
    begin: Begin, sandbox: ProcessSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await begin(first_calls(COMMAND), sandbox=sandbox)
    said = await world.say("Make it.")
    question = await asked(world, said)
    await asyncio.to_thread(break_bubblewrap, monkeypatch, tmp_path / "tools")
    # Nothing shows that it is broken before a program is to run in it.
    await world.approvals.resolve(ANA, question.approval_id, allow=True)
    await world.ended(said)
    [finished] = [event for event in await world.events(said) if isinstance(event, ToolFinished)]
    assert finished.outcome is CallOutcome.ERROR
    assert "unprivileged_userns_clone" in finished.text
    again = await world.say("Make it.", key="again")
    assert (await world.ended(again)).status is RunStatus.DONE
    assert len(await questions(world)) == 1


@on_sqlite
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"url": "http://127.0.0.1:8080/"}, "No tool may reach it"),
        ({"url": "http://[::1]/"}, "No tool may reach it"),
        ({"url": "https://example.org/", "headers": {"Host": "other"}}, "is set by the connection"),
    ],
)
async def test_a_request_that_would_be_refused_is_not_asked_about(
    begin: Begin, arguments: dict[str, object], reason: str
) -> None:
    world = await begin(first_calls(ScriptCall(tool="http.fetch", arguments=arguments)))
    world.inbox = True  # there is somebody who could be asked
    assert reason in (await refused(world, await world.say("Fetch."))).reason


@on_sqlite
async def test_no_name_server_hears_of_a_host_before_the_answer(begin: Begin) -> None:
    heard: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        heard.append(host)
        return []

    call = ScriptCall(tool="http.fetch", arguments={"url": "https://what-i-know.example.org/"})
    world = await begin(first_calls(call), egress=Egress(resolve=resolve))
    said = await world.say("Fetch.")
    question = await asked(world, said)
    assert heard == []
    await world.approvals.resolve(ANA, question.approval_id, allow=True)
    await world.ended(said)
    assert heard == ["what-i-know.example.org"]


@on_sqlite
async def test_a_file_in_a_folder_that_may_not_be_written_is_not_asked_about(
    begin: Begin, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shut = workspace / "shut"
    shut.mkdir()
    # As on a file system that is mounted read-only: permissions do not keep root, who may run this, from anything.
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(shut))
    world = await begin(first_calls(ScriptCall(tool="files.write", arguments={"path": "shut/a/b.txt", "text": "x"})))
    assert f"permissions of {shut}" in (await refused(world, await world.say("Write."))).reason


@on_sqlite
async def test_a_file_that_would_be_too_large_is_not_asked_about(begin: Begin, workspace: Path) -> None:
    (workspace / "long.txt").write_bytes(b"a" * (8 * 1024 * 1024))
    append = {"path": "long.txt", "text": "more", "mode": "append"}
    world = await begin(first_calls(ScriptCall(tool="files.write", arguments=append)))
    assert "8 MiB" in (await refused(world, await world.say("Write."))).reason


@on_sqlite
async def test_what_is_no_module_is_not_asked_about(begin: Begin) -> None:
    world = await begin(first_calls(ScriptCall(tool="wasm.run", arguments={"module": "notes.txt"})))
    assert "Name a .wasm file" in (await refused(world, await world.say("Run."))).reason


@on_sqlite
async def test_a_plugin_whose_folder_is_gone_is_not_asked_about(begin: Begin, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    rest = TOOL + '[[folders]]\nname = "data"\naccess = "write"\n'
    folder = a_plugin(tmp_path / "p", modules.ECHOES, text=manifest(modules.ECHOES, rest=rest))
    plugin = await asyncio.to_thread(installed_from, Home(tmp_path / "home"), folder, given={"data": str(data)})
    data.rmdir()
    world = await begin(first_calls(ScriptCall(tool="probe.run")), tools=list(tools_of(plugin)))
    assert f"{data} does not exist" in (await refused(world, await world.say("Run."))).reason


@on_sqlite
async def test_a_tool_of_a_server_that_is_down_is_not_asked_about(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FIRST_PAUSE", 300.0)  # it stays down
    tools = Toolbox(lambda: kept.servers.tools())
    world = await begin(first_calls(ScriptCall(tool="mcp.s.note", arguments={"text": "a"})), toolbox=tools)
    world.inbox = True
    async with keeping(tmp_path, world.engine, s=notebook(principals=(ANA,), risk=Risk.HIGH)) as kept:
        await kept.accepts()
        await kept.call("mcp.s.end")
        await kept.reaches(McpServerState.FAILED)
        decided = await refused(world, await world.say("Note."))
        assert "The MCP server s is not available: " in decided.reason
