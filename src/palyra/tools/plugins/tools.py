"""Makes tools of a plugin: the effect of a call, and the call itself.

The module is started for each call with the name of the tool as its argument. It reads the arguments as JSON on its
standard input and writes its result to its standard output.
"""

import asyncio
import os
import posixpath
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec

from palyra.core.errors import Denied, Unavailable
from palyra.core.policy import labels
from palyra.core.policy.effect import Effect
from palyra.core.policy.manifest import CapabilityManifest
from palyra.core.text.escaping import escape_line, escape_start, quote
from palyra.core.tool import CallRuntime, FolderAccess, JsonObject, ToolSpec
from palyra.sandbox.processes import installation
from palyra.sandbox.processes.mounts import links_on_the_way
from palyra.sandbox.wasm.module import ModuleFolder, ModuleJob, ModuleOutcome
from palyra.sandbox.wasm.runner import COMPILE_SECONDS
from palyra.tools.base import Ready, Tool, ToolContext
from palyra.tools.call_slots import MODULES
from palyra.tools.json_schema import ArgumentSchema, ValidArguments
from palyra.tools.plugins.installed import Plugin
from palyra.tools.plugins.manifest import WORKSPACE, PluginTool

MAX_KIND_CHARS = 200
SUMMARY_CHARS = 100
PATH = "path"
"""The format of a text that names a file: it is looked up in the folders of the plugin."""


class PluginFailed(Unavailable):
    """The plugin failed."""


class WorkspaceNotAllowed(Denied):
    """No plugin may see this workspace: it contains Palyra's own home. Set workspace.root to a smaller folder."""


def tools_of(plugin: Plugin) -> Iterator[Tool]:
    """Return the tools of a plugin."""
    for entry in plugin.manifest.tools:
        yield _tool(plugin, entry)


def spec_of(plugin: Plugin, entry: PluginTool) -> ToolSpec:
    """Return a tool as a model sees it."""
    return ToolSpec(
        name=plugin.manifest.full_name(entry),
        description=" ".join(entry.description.split()),
        parameters=entry.parameters,
        risk=plugin.manifest.risk_of(entry),
        repeatable=entry.repeatable,
        read_only=entry.read_only,
    )


def _tool(plugin: Plugin, entry: PluginTool) -> Tool:
    spec = spec_of(plugin, entry)
    return Tool(
        spec=spec,
        arguments=ArgumentSchema(entry.parameters),
        run=_run(plugin, entry),
        timeout_ms=round((plugin.manifest.limits.seconds + COMPILE_SECONDS + 10) * 1000),
        preview=_preview(plugin, entry, spec),
        ready=_ready(plugin, entry),
        described_by=labels.TOOL,
        runtime=CallRuntime.WASM,
        pool=MODULES,
        manifest=lambda context: _bounds_of(plugin, context),
    )


def _run(plugin: Plugin, entry: PluginTool) -> Callable[[ToolContext, msgspec.Struct], Awaitable[str]]:
    async def run(context: ToolContext, record: msgspec.Struct) -> str:
        assert isinstance(record, ValidArguments)
        job = await asyncio.to_thread(_job, plugin, entry, context, record)
        outcome = await context.modules.run(job)
        return _result_text(plugin.manifest.full_name(entry), outcome)

    return run


def _preview(
    plugin: Plugin, entry: PluginTool, spec: ToolSpec
) -> Callable[[ToolContext, msgspec.Struct], Awaitable[Effect]]:
    async def preview(context: ToolContext, record: msgspec.Struct) -> Effect:
        assert isinstance(record, ValidArguments)
        folders = await asyncio.to_thread(_folders, plugin, entry, context)
        line = msgspec.json.encode(record.values).decode()
        return Effect(
            risk=spec.risk,
            summary=f"{spec.name} {escape_start(line, SUMMARY_CHARS)}",
            detail="\n".join((quote(msgspec.json.format(line, indent=2)), "", *_capability_lines(plugin, folders))),
            # It may change anything in its folders, whatever its arguments name.
            paths=tuple(dict.fromkeys((*(str(one.path) for one in folders), *_named(entry, record.values, folders)))),
            kind=_kind(plugin, entry, record.values, folders),
        )

    return preview


def _ready(plugin: Plugin, entry: PluginTool) -> Ready:
    async def ready(context: ToolContext, record: msgspec.Struct) -> None:
        assert isinstance(record, ValidArguments)
        await context.modules.check_ready(await asyncio.to_thread(_job, plugin, entry, context, record))

    return ready


def _job(plugin: Plugin, entry: PluginTool, context: ToolContext, valid_arguments: ValidArguments) -> ModuleJob:
    folders = _folders(plugin, entry, context)
    return ModuleJob(
        # Read and compared with its pin for each call: what runs is what was installed.
        module=plugin.module(),
        input=msgspec.json.encode(_placed(entry, valid_arguments.values, folders)),
        argv=(plugin.manifest.name, entry.name),
        folders=folders,
        bounds=plugin.manifest.limits.bounds,
    )


def _kind(plugin: Plugin, entry: PluginTool, values: JsonObject, folders: tuple[ModuleFolder, ...]) -> str:
    """Return the class of a call: this exact plugin, and where it may change files, what the call is about.

    That is the folder of the files that are named; if none is, all of the arguments, as long as they are readable.
    """
    kind = f"plugin:{plugin.manifest.name} {plugin.manifest.version} {plugin.digest[:16]}"
    if not any(folder.writable for folder in folders) or not values:
        return kind
    named = {posixpath.dirname(path) for path in _named(entry, values, folders)}
    if len(named) == 1:
        return f"{kind} folder:{named.pop()}"
    text = msgspec.json.encode(values, order="sorted").decode()
    return f"{kind} with {text}" if not named and len(text) <= MAX_KIND_CHARS else ""


def _capability_lines(plugin: Plugin, folders: tuple[ModuleFolder, ...]) -> Iterator[str]:
    manifest = plugin.manifest
    yield f"by the plugin {manifest.name} {manifest.version} ({plugin.digest[:16]}), without network"
    for folder in folders:
        yield f"{'may change' if folder.writable else 'may read'} {escape_line(str(folder.path))}"
    if not folders:
        yield "sees no files"


def _bounds_of(plugin: Plugin, context: ToolContext) -> CapabilityManifest:
    """Return the bounds of calls of the plugin's tools: those of this run, if it requested the workspace."""
    paths = set(plugin.pin.folders.values())
    if any(folder.name == WORKSPACE for folder in plugin.manifest.folders):
        paths.update(str(root.real_path()) for root in context.workspace.roots)
    return CapabilityManifest(
        name=plugin.manifest.name,
        digest=plugin.digest,
        tools=frozenset(plugin.manifest.full_name(tool) for tool in plugin.manifest.tools),
        paths=frozenset(paths),
    )


def _folders(plugin: Plugin, entry: PluginTool, context: ToolContext) -> tuple[ModuleFolder, ...]:
    """Return the folders that the module sees: read-only, while a tool runs that declares no changes."""
    module_folders: list[ModuleFolder] = []
    for folder in plugin.manifest.folders:
        writable = folder.access is FolderAccess.WRITE and not entry.read_only
        if folder.name != WORKSPACE:
            module_folders.append(ModuleFolder(Path(plugin.pin.folders[folder.name]), folder.module_path, writable))
            continue
        for index, root in enumerate(context.workspace.root_paths(), 1):
            if any(_holds(root, own) for own in context.workspace.forbidden.folders):
                raise WorkspaceNotAllowed
            module_folders.append(
                ModuleFolder(root, folder.module_path if index == 1 else f"{folder.module_path}-{index}", writable)
            )
    for module_folder in module_folders:
        if module_folder.writable:
            installation.refuse_around(module_folder.path.resolve())
    return tuple(module_folders)


def _holds(root: Path, own: Path) -> bool:
    """Tell whether a folder of Palyra's, or a link on the way to it, is inside a root."""
    return any(path.is_relative_to(root) for path in (Path(os.path.realpath(own)), *links_on_the_way(own)))


def _placed(entry: PluginTool, values: JsonObject, folders: tuple[ModuleFolder, ...]) -> JsonObject:
    """Return the arguments with each path as the module sees it."""
    return {
        name: _inside(value, folders)[0] if _is_path(entry, name, value) else value for name, value in values.items()
    }


def _named(entry: PluginTool, values: JsonObject, folders: tuple[ModuleFolder, ...]) -> Iterator[str]:
    """Return the paths that the arguments name, as they are outside of the module."""
    return (_inside(value, folders)[1] for name, value in values.items() if _is_path(entry, name, value))


def _is_path(entry: PluginTool, name: str, value: object) -> bool:
    schema = entry.parameters.get("properties", {}).get(name)
    return isinstance(schema, dict) and schema.get("format") == PATH and isinstance(value, str)


def _inside(text: str, folders: tuple[ModuleFolder, ...]) -> tuple[str, str]:
    """Return a path as the module sees it and as it is outside. One in no folder is the same on both sides.

    A relative path is in the first folder; an absolute path of the system is accepted if it is in a folder.
    """
    path = posixpath.normpath(posixpath.join(folders[0].name if folders else "/", text))
    for folder in folders:
        for start, other in ((folder.name, str(folder.path)), (str(folder.path), folder.name)):
            if path == start or path.startswith(f"{start}/"):
                target = other + path[len(start) :]
                return (path, target) if start == folder.name else (target, path)
    return path, path


def _result_text(name: str, outcome: ModuleOutcome) -> str:
    sent_text = outcome.stdout.text.rstrip("\n")
    remarks = outcome.stderr.text.rstrip("\n")
    if outcome.ok:
        return f"{sent_text}\nstderr:\n{remarks}" if remarks else sent_text or "(no output)"
    how = outcome.stopped if outcome.exit_code is None else f"exit code {outcome.exit_code}"
    parts = [f"{name} failed: {how}."]
    parts += [f"{stream}:\n{text}" for stream, text in (("stderr", remarks), ("stdout", sent_text)) if text]
    raise PluginFailed("\n".join(parts))
