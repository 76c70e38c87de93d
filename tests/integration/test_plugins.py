"""Plugins in runs: their tools are judged by their manifest, and whatever a module does, the run goes on."""

import asyncio
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from palyra.core.attestation import Statement
from palyra.core.event import Event
from palyra.core.events import PolicyDecided, ToolFinished, ToolStarted
from palyra.core.run.state import RunStatus
from palyra.core.tool import CallOutcome, CallRuntime, JsonObject, Verdict
from palyra.home import Home
from palyra.providers.scripted import ScriptCall
from palyra.tools.base import Tool
from palyra.tools.plugins.installed import Plugin
from palyra.tools.plugins.tools import tools_of
from tests.integration.cast import first_calls, on_sqlite, results
from tests.integration.conftest import Begin
from tests.support import modules
from tests.support.plugins import EXAMPLES, TOOL, a_plugin, installed_from, manifest
from tests.support.world import Said, World

E = TypeVar("E", bound=Event)

LIMITS = "[limits]\nfuel = 50_000_000\nseconds = 1\nmemory_mb = 8\noutput_kb = 8\n"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


async def plugin(home: Home, folder: Path) -> Plugin:
    return await asyncio.to_thread(installed_from, home, folder)


async def probe(home: Home, folder: Path, module: bytes, *, rest: str = TOOL + LIMITS) -> Plugin:
    """Install a plugin with one tool that runs the module."""
    made = await asyncio.to_thread(a_plugin, folder, module, text=manifest(module, rest=rest))
    return await plugin(home, made)


def tools(*plugins: Plugin) -> list[Tool]:
    return [tool for one in plugins for tool in tools_of(one)]


async def called(begin: Begin, name: str, of: Plugin, arguments: JsonObject | None = None) -> tuple[World, str]:
    """Have a model call a tool, and return the world and the run that came to its end."""
    world = await begin(first_calls(ScriptCall(tool=name, arguments=arguments or {})), tools=tools(of))
    said = await world.say("Go.")
    await world.ended(said)
    assert (await world.run(said)).status is RunStatus.DONE
    return world, said.run_id


async def of_kind(world: World, run: Said, kind: type[E]) -> list[E]:
    return [event for event in await world.events(run) if isinstance(event, kind)]


async def test_a_plugins_tool_runs_and_the_manifest_is_on_the_tape(begin: Begin, home: Home) -> None:
    units = await plugin(home, EXAMPLES / "units")
    world, run = await called(begin, "units.convert", units, {"value": 42.195, "from": "km", "to": "mi"})
    [decided] = await of_kind(world, run, PolicyDecided)
    assert (decided.verdict, decided.manifest_hash) == (Verdict.ALLOW, units.digest)
    [started] = await of_kind(world, run, ToolStarted)
    assert started.runtime is CallRuntime.WASM
    [finished] = await of_kind(world, run, ToolFinished)
    assert finished.outcome is CallOutcome.OK
    assert results(world.prompts[-1]) == ['{"value": 26.2187574565, "unit": "mi"}']


@on_sqlite
async def test_what_held_the_module_is_attested(begin: Begin, home: Home) -> None:
    units = await plugin(home, EXAMPLES / "units")
    world, run = await called(begin, "units.list", units)
    [finished] = await of_kind(world, run, ToolFinished)
    assert finished.attestation is not None
    [ran] = msgspec.json.decode(finished.attestation.statement, type=Statement).programs
    assert (ran.tier, ran.exit_code) == ("wasm", 0)
    assert ran.limits == units.manifest.limits.bounds.enforced()


@on_sqlite
async def test_a_built_in_tool_has_no_manifest(begin: Begin, home: Home) -> None:
    world = await begin(first_calls(ScriptCall(tool="files.list")))
    said = await world.say("Go.")
    await world.ended(said)
    [decided] = await of_kind(world, said, PolicyDecided)
    assert decided.manifest_hash is None


@on_sqlite
@pytest.mark.parametrize("file", ["/etc/passwd", "../../../etc/passwd"])
async def test_a_call_beyond_the_manifest_is_denied_whatever_the_policies_say(
    begin: Begin, home: Home, file: str
) -> None:
    stats = await plugin(home, EXAMPLES / "csv-stats")
    world, run = await called(begin, "csv-stats.describe", stats, {"file": file})
    [decided] = await of_kind(world, run, PolicyDecided)
    assert (decided.verdict, decided.policies) == (Verdict.DENY, ("manifest",))
    assert decided.manifest_hash == stats.digest
    assert decided.reason.startswith("csv-stats may not access /")
    assert await of_kind(world, run, ToolStarted) == []
    assert "it is not in a folder that its manifest lists" in results(world.prompts[-1])[0]


@on_sqlite
async def test_arguments_that_do_not_fit_go_back_to_the_model(begin: Begin, home: Home) -> None:
    units = await plugin(home, EXAMPLES / "units")
    world, run = await called(begin, "units.convert", units, {"value": "a lot", "from": "km", "to": "mi"})
    [decided] = await of_kind(world, run, PolicyDecided)
    assert (decided.verdict, decided.policies) == (Verdict.DENY, ("arguments",))
    assert "Expected `number`, got `string` - at `$.value`" in results(world.prompts[-1])[0]


@on_sqlite
@pytest.mark.parametrize(
    ("module", "words"),
    [
        (modules.LOOPS, "it used more than 50000000 steps (fuel)"),
        (modules.SLEEPS, "it took longer than 1 s"),
        (modules.GROWS, "it failed: unreachable"),
        (modules.FLOODS, "it wrote more than 8192 bytes"),
        (modules.TRAPS, "it failed: unreachable"),
        (modules.RECURSES, "it failed: stack overflow"),
        (modules.LARGE_MEMORY, "exceeds memory limits"),
        (modules.IMPORTS, "it imports env.system"),
        (b"\0asm\1\0\0\0\xff\xff", "malformed section id"),
        (modules.exits(3), "exit code 3"),
    ],
    ids=["loops", "sleeps", "grows", "floods", "traps", "recurses", "large", "imports", "bytes", "exits"],
)
async def test_whatever_a_module_does_is_told_and_the_run_goes_on(
    begin: Begin, home: Home, tmp_path: Path, module: bytes, words: str
) -> None:
    world, run = await called(begin, "probe.run", await probe(home, tmp_path / "p", module))
    [finished] = await of_kind(world, run, ToolFinished)
    assert finished.outcome is CallOutcome.ERROR
    assert words in finished.text
    assert words in results(world.prompts[-1])[0]


@on_sqlite
@pytest.mark.parametrize("file", ["probe.wasm", "plugin.toml"])
async def test_a_plugin_that_was_changed_after_it_was_installed_is_not_run(
    begin: Begin, home: Home, tmp_path: Path, file: str
) -> None:
    made = await probe(home, tmp_path / "p", modules.ECHOES)
    content = await asyncio.to_thread((made.path / file).read_bytes)
    await asyncio.to_thread((made.path / file).write_bytes, content + b"\n")
    world, run = await called(begin, "probe.run", made)
    [finished] = await of_kind(world, run, ToolFinished)
    assert finished.outcome is CallOutcome.ERROR
    assert f"Plugin probe is not run: {file} is not what was installed" in finished.text


@on_sqlite
async def test_a_tool_that_may_change_a_folder_is_asked_about(begin: Begin, home: Home, tmp_path: Path) -> None:
    rest = TOOL + '[[folders]]\nname = "workspace"\naccess = "write"\n' + LIMITS
    made = await probe(home, tmp_path / "p", modules.opens("made", create=True), rest=rest)
    world = await begin(first_calls(ScriptCall(tool="probe.run")), tools=tools(made))
    said = await world.say("Go.")
    await world.seen(said, "approval_requested")
    [decided] = await of_kind(world, said, PolicyDecided)
    assert decided.verdict is Verdict.ASK
    assert decided.effect is not None
    assert f"may change {tmp_path / 'workspace'}" in decided.effect.detail
    assert not await asyncio.to_thread((tmp_path / "workspace" / "made").exists)
