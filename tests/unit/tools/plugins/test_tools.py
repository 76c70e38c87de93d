"""What a call of a plugin's tool would do, and what comes of it, with real modules."""

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from palyra.core.policy.effect import Effect
from palyra.core.tool import CallOutcome, CallRuntime, Risk
from palyra.home import Home
from palyra.policy.gate import beyond_manifest
from palyra.sandbox.files.reserved_files import ReservedFiles
from palyra.sandbox.files.workspace import Workspace
from palyra.tools.arguments import CallProblem, check
from palyra.tools.base import Tool, ToolContext
from palyra.tools.catalog import ToolCatalog
from palyra.tools.execution import ToolResult, execute
from palyra.tools.plugins.tools import WorkspaceNotAllowed
from tests.support import modules
from tests.support.needs import Need, needs
from tests.support.plugins import EXAMPLES, TOOL, a_plugin, manifest, tools_from
from tests.unit.policy.asking import a_question
from tests.unit.tools.surroundings import StillClock, a_call

SALES = 'day,"price, net",note\n1,2.5,"said ""yes"""\n2,3.5,\n3,,x\n'
PRICE = {"name": "price, net", "filled": 2, "empty": 1, "numbers": 2, "min": 2.5, "max": 3.5, "mean": 3}
OPENS = """
[[tools]]
name = "run"
description = "Open it."

[tools.parameters]
type = "object"

[tools.parameters.properties]
file = { type = "string", format = "path" }
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "sales.csv").write_text(SALES)
    return ToolContext(workspace=Workspace((folder,)), clock=StillClock())


async def example(home: Home, name: str) -> Tool:
    """Install the example that a tool belongs to, and return the tool."""
    tools = await asyncio.to_thread(tools_from, home, EXAMPLES / name.split(".")[0])
    return next(tool for tool in tools if tool.spec.name == name)


async def installed(home: Home, folder: Path, module: bytes, text: str, *, given: dict[str, str] | None = None) -> Tool:
    """Install a plugin with one tool, and return that."""
    [tool] = await asyncio.to_thread(lambda: tools_from(home, a_plugin(folder, module, text=text), given=given))
    return tool


async def outcome(tool: Tool, context: ToolContext, **arguments: Any) -> ToolResult:
    call = a_call(tool.spec.name, arguments)
    finished = await execute(call, catalog=ToolCatalog([tool]), context=context, timeout_ms=10)
    assert isinstance(finished, ToolResult)
    return finished


async def effect(tool: Tool, context: ToolContext, **arguments: Any) -> Effect:
    given = check(ToolCatalog([tool]), a_call(tool.spec.name, arguments))
    assert not isinstance(given, CallProblem)
    return await tool.effect(context, given)


# -- the examples


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({"value": 42.195, "from": "km", "to": "mi"}, 26.2187574564),
        ({"value": -40, "from": "C", "to": "F"}, -40),
        ({"value": "1", "from": "GiB", "to": "MB"}, 1073.741824),
    ],
)
async def test_units_converts(home: Home, context: ToolContext, arguments: dict[str, Any], value: float) -> None:
    finished = await outcome((await example(home, "units.convert")), context, **arguments)
    assert finished.outcome is CallOutcome.OK
    assert json.loads(finished.text) == {"value": pytest.approx(value), "unit": arguments["to"]}


async def test_units_says_what_it_can_not_do(home: Home, context: ToolContext) -> None:
    convert = await example(home, "units.convert")
    finished = await outcome(convert, context, value=1, **{"from": "km", "to": "kg"})
    assert finished.outcome is CallOutcome.ERROR
    assert finished.text == ("units.convert failed: exit code 1.\nstderr:\nkm is a unit of length, and kg one of mass")
    listed = await outcome((await example(home, "units.list")), context)
    assert "nmi" in json.loads(listed.text)["length"]


async def test_csv_stats_reads_a_file_of_the_workspace(home: Home, context: ToolContext) -> None:
    describe, column = await example(home, "csv-stats.describe"), await example(home, "csv-stats.column")
    described = json.loads((await outcome(describe, context, file="sales.csv")).text)
    assert described["rows"] == 3
    assert [one["name"] for one in described["columns"]] == ["day", "price, net", "note"]
    for file in (
        "sales.csv",
        "/workspace/sales.csv",
        str(context.workspace.roots[0].trusted / "sales.csv"),
        "./x/../sales.csv",
    ):
        one = await outcome(column, context, file=file, column="price, net")
        assert json.loads(one.text) == PRICE | {"stdev": pytest.approx(0.70710678)}


async def test_csv_stats_says_what_is_missing(home: Home, context: ToolContext) -> None:
    describe, column = await example(home, "csv-stats.describe"), await example(home, "csv-stats.column")
    missing = await outcome(describe, context, file="none.csv")
    assert missing.outcome is CallOutcome.ERROR
    assert "/workspace/none.csv cannot be read: No such file or directory" in missing.text
    unknown = await outcome(column, context, file="sales.csv", column='pri"ce')
    assert 'there is no column of that name; the tool describe lists them: pri"ce' in unknown.text


CLANG = "14.0.6"


def lack_of_clang() -> str | None:
    """Another compiler would make other modules of the same sources."""
    if shutil.which("clang") is None or not Path("/usr/lib/wasm32-wasi/libc.a").exists():
        return "clang or the library of wasi is not installed"
    said = subprocess.run(["clang", "--version"], capture_output=True, text=True, check=True).stdout
    return None if f"Debian clang version {CLANG}" in said else f"the examples were built by version {CLANG}"


@needs(Need("clang for WebAssembly", lack_of_clang))
def test_the_modules_of_the_examples_are_built_from_their_sources(tmp_path: Path) -> None:
    subprocess.run([EXAMPLES / "build", "--into", tmp_path], check=True)
    for name in ("csv-stats", "units"):
        assert (tmp_path / f"{name}.wasm").read_bytes() == (EXAMPLES / name / f"{name}.wasm").read_bytes()


# -- what a call would do


async def test_a_tool_without_powers_reads_nothing_and_is_asked_about_by_its_arguments(
    home: Home, context: ToolContext
) -> None:
    convert = await example(home, "units.convert")
    assert (convert.spec.risk, convert.spec.read_only, convert.runtime) == (Risk.LOW, True, CallRuntime.WASM)
    found = await effect(convert, context, value=1, **{"from": "km", "to": "mi"})
    assert found.summary == 'units.convert {"value":1,"from":"km","to":"mi"}'
    assert (found.risk, found.paths) == (Risk.LOW, ())
    assert "sees no files" in found.detail
    assert found.kind.startswith("plugin:units 1.0.0 ")


async def test_the_effect_names_all_that_the_module_can_reach(home: Home, context: ToolContext) -> None:
    root = str(context.workspace.roots[0].trusted)
    found = await effect((await example(home, "csv-stats.describe")), context, file="sales.csv")
    assert found.paths == (root, f"{root}/sales.csv")
    assert f"may read {root}" in found.detail


@pytest.mark.parametrize("file", ["/etc/passwd", "../../etc/passwd", "/workspace/../etc/passwd", "/workspaces/x"])
async def test_a_path_outside_of_its_folders_is_beyond_the_manifest(
    home: Home, context: ToolContext, file: str
) -> None:
    tool = await example(home, "csv-stats.describe")
    assert tool.manifest is not None
    bounds = await asyncio.to_thread(tool.manifest, context)
    found = await effect(tool, context, file=file)
    question = a_question(tool=tool.spec.name, paths=found.paths)
    assert "csv-stats may not access /" in beyond_manifest(bounds, question)
    inside = await effect(tool, context, file="sales.csv")
    assert beyond_manifest(bounds, a_question(tool=tool.spec.name, paths=inside.paths)) == ""
    assert beyond_manifest(bounds, a_question(tool="files.read")).startswith("csv-stats may not call files.read")


async def test_a_path_that_is_tried_all_the_same_leads_nowhere(home: Home, context: ToolContext) -> None:
    tool = await example(home, "csv-stats.describe")
    (context.workspace.roots[0].trusted / "out").symlink_to("/etc/passwd")
    for file in ("/etc/passwd", "../../etc/passwd", "out"):
        assert (await outcome(tool, context, file=file)).outcome is CallOutcome.ERROR


async def test_arguments_are_checked_before_anything_else(home: Home, context: ToolContext) -> None:
    finished = await outcome((await example(home, "units.convert")), context, value="much", to="mi")
    assert finished.text.startswith("units.convert was not called: Object missing required field `from`.")


async def test_a_workspace_that_holds_palyras_home_is_not_shown(home: Home, tmp_path: Path) -> None:
    tool = await example(home, "csv-stats.describe")
    wide = Workspace((tmp_path,), forbidden=ReservedFiles((home.path,), (home.workspace,)))
    with pytest.raises(WorkspaceNotAllowed):
        await effect(tool, ToolContext(workspace=wide, clock=StillClock()), file="a.csv")


async def test_a_workspace_that_holds_a_link_to_palyras_home_is_not_shown(home: Home, tmp_path: Path) -> None:
    tool = await example(home, "csv-stats.describe")
    root = tmp_path / "u"
    root.mkdir()
    (root / ".palyra").symlink_to(home.path)
    linked = Workspace((root,), forbidden=ReservedFiles((root / ".palyra",), (home.workspace,)))
    with pytest.raises(WorkspaceNotAllowed):
        await effect(tool, ToolContext(workspace=linked, clock=StillClock()), file="a.csv")


async def test_each_run_sees_its_own_workspace_only(home: Home, context: ToolContext, tmp_path: Path) -> None:
    tool = await example(home, "csv-stats.describe")
    (tmp_path / "ben").mkdir()
    ben = ToolContext(workspace=Workspace((tmp_path / "ben",)), clock=StillClock())
    assert (await outcome(tool, ben, file="sales.csv")).outcome is CallOutcome.ERROR
    assert (await outcome(tool, context, file="sales.csv")).outcome is CallOutcome.OK


async def test_a_second_root_has_a_name_of_its_own(home: Home, context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.csv").write_text("a\n1\n")
    both = ToolContext(workspace=Workspace((*context.workspace.roots, tmp_path / "more")), clock=StillClock())
    tool = await example(home, "csv-stats.describe")
    for file in ("/workspace-2/b.csv", str(tmp_path / "more" / "b.csv")):
        assert json.loads((await outcome(tool, both, file=file)).text)["rows"] == 1


# -- folders that may be changed


@pytest.mark.parametrize(("claim", "risk", "made"), [("", Risk.MEDIUM, True), ("read_only = true\n", Risk.LOW, False)])
async def test_a_tool_that_says_it_changes_nothing_can_change_nothing(
    home: Home, context: ToolContext, tmp_path: Path, claim: str, risk: Risk, made: bool
) -> None:
    module = modules.opens("new", create=True)
    rest = TOOL + claim + '[[folders]]\nname = "data"\naccess = "write"\n'
    (tmp_path / "data").mkdir()
    given = {"data": str(tmp_path / "data")}
    tool = await installed(home, tmp_path / "p", module, manifest(module, rest=rest), given=given)
    assert tool.spec.risk is risk
    assert (await effect(tool, context)).paths == (str(tmp_path / "data"),)
    await outcome(tool, context)
    assert await asyncio.to_thread((tmp_path / "data" / "new").exists) is made


async def test_a_folder_that_was_exchanged_for_a_link_is_not_opened(
    home: Home, context: ToolContext, tmp_path: Path
) -> None:
    module = modules.opens("file")
    data = tmp_path / "data"
    data.mkdir()
    text = manifest(module, rest=TOOL + '[[folders]]\nname = "data"\n')
    tool = await installed(home, tmp_path / "p", module, text, given={"data": str(data)})
    data.rmdir()
    data.symlink_to("/etc")
    finished = await outcome(tool, context)
    assert finished.outcome is CallOutcome.ERROR
    assert "one of its folders cannot be opened" in finished.text


async def test_paths_are_handed_on_as_the_module_knows_them(home: Home, context: ToolContext, tmp_path: Path) -> None:
    rest = OPENS + '[[folders]]\nname = "data"\n[[folders]]\nname = "workspace"\n'
    (tmp_path / "data").mkdir()
    given = {"data": str(tmp_path / "data")}
    tool = await installed(home, tmp_path / "p", modules.ECHOES, manifest(rest=rest), given=given)
    for path, seen in (
        ("a/b.txt", "/data/a/b.txt"),
        ("/workspace/c", "/workspace/c"),
        (f"{context.workspace.roots[0].trusted}/c", "/workspace/c"),
        ("/database", "/database"),
        (".", "/data"),
    ):
        assert json.loads((await outcome(tool, context, file=path)).text) == {"file": seen}


async def test_an_answer_about_a_tool_that_changes_files_is_bound_to_what_the_call_names(
    home: Home, context: ToolContext, tmp_path: Path
) -> None:
    text = OPENS + 'mode = { type = "string" }\n' + '[[folders]]\nname = "workspace"\naccess = "write"\n'
    tool = await installed(home, tmp_path / "probe", modules.ECHOES, manifest(rest=text))
    root = context.workspace.roots[0].trusted

    async def kind(**arguments: Any) -> str:
        return (await effect(tool, context, **arguments)).kind

    assert await kind(file="a.txt") == await kind(file=f"{root}/b.txt", mode="x")
    assert (await kind(file="a.txt")).endswith(f" folder:{root}")
    assert (await kind(file="sub/a.txt")).endswith(f" folder:{root}/sub")
    assert (await kind(mode="wipe")).endswith(' with {"mode":"wipe"}')
    assert await kind(mode="x" * 300) == ""
