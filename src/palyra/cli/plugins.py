"""`palyra plugins`: tools that are WebAssembly modules. All commands work with the daemon up or down."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from palyra.cli.errors import ConfirmationRequired
from palyra.cli.exit_codes import Exit
from palyra.cli.options import Invocation, PalyraGroup
from palyra.cli.terminal.output import date_time, facts, fold, paint, plural, screen_width, show, show_json, table
from palyra.cli.terminal.printable import printable_line
from palyra.core.errors import PalyraError
from palyra.core.text.escaping import escape_line
from palyra.tools.plugins import installed
from palyra.tools.plugins.capabilities import CapabilityDifference, difference, plugin_capabilities
from palyra.tools.plugins.installed import FaultyPlugin, Plugin, PluginChanged, PluginNotFound, PluginSource


@click.group(cls=PalyraGroup, default="list")
def plugins() -> None:
    """Install and remove plugins (tools in WebAssembly). Without a command, lists them.

    A plugin's manifest lists the capabilities that it may use. Installing pins its content: a plugin that was changed
    afterwards is not run.
    """


@plugins.command("install")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--folder", "pairs", multiple=True, metavar="NAME=PATH", help="Folder that the plugin gets as NAME; repeatable."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def install(invocation: Invocation, folder: Path, *, pairs: tuple[str, ...], yes: bool) -> None:
    """Install or upgrade the plugin in FOLDER. Shows its capabilities first."""
    from palyra.daemon.process.system_clock import SystemClock
    from palyra.sandbox.wasm.runner import WasmRunner

    source = installed.read_offered_plugin(folder)
    before = _before(invocation, source.manifest.name)
    earlier = before.pin.folders if before is not None else {}
    folders = installed.folders_for(invocation.home, source.manifest, _folder_options(pairs), before=earlier)
    asyncio.run(WasmRunner().check(source.module))
    changes = difference(source.manifest, folders, before)
    if not yes:
        _print_capabilities(source, before, changes)
        if sys.stdin is None or not sys.stdin.isatty():
            raise ConfirmationRequired(
                "Nothing was installed: no terminal is attached to confirm it. Pass `--yes` once you have read it."
            )
        click.confirm("Install it", abort=True, err=True)
    plugin = installed.install(invocation.home, source, folders, at=SystemClock().now())
    used = _reload_daemon(invocation)
    if invocation.json:
        show_json(
            {"plugin": _fields(plugin), "added": changes.added, "removed": changes.removed, "daemon": used or "down"}
        )
        return
    print(f"Installed {plugin.manifest.name} {plugin.manifest.version}. {_reload_text(used)}")
    if yes:
        show(_lines(changes, is_new=before is None))


@plugins.command("list")
def list_plugins(invocation: Invocation) -> None:
    """List installed plugins."""
    result = [_examined(one) for one in installed.load_all(invocation.home)]
    rows = [
        [one.name, "", "disabled", one.error.detail]
        if isinstance(one, FaultyPlugin)
        else [
            one.manifest.name,
            one.manifest.version,
            plural(len(one.manifest.tools), "tool"),
            one.manifest.description,
        ]
        for one in result
    ]
    listed = table(["NAME", "VERSION", "CAPABILITIES", "DESCRIPTION"], rows)
    none = "No plugins. Install one with `palyra plugins install FOLDER`."
    invocation.report({"plugins": [_state(one) for one in result]}, listed if rows else none)


@plugins.command("show")
@click.argument("name")
def show_plugin(invocation: Invocation, name: str) -> None:
    """Show a plugin: its tools, capabilities and pinned digest."""
    plugin = installed.load(invocation.home, name)
    if invocation.printed_json({"plugin": _fields(plugin)}):
        return
    manifest, pin = plugin.manifest, plugin.pin
    show(
        facts(
            ("name", f"{manifest.name} {manifest.version}"),
            ("description", manifest.description),
            ("installed", date_time(pin.installed_at)),
            ("module", f"{manifest.module}, sha256 {pin.module_sha256}"),
            ("pinned as", plugin.digest),
        )
    )
    print("\nCapabilities:")
    show(f"  {printable_line(line)}" for line in plugin_capabilities(manifest, pin.folders))
    print("\nTools:")
    show(f"  {manifest.full_name(tool)}  {printable_line(tool.description)}" for tool in manifest.tools)


@plugins.command("remove")
@click.argument("name")
def remove(invocation: Invocation, name: str) -> None:
    """Remove a plugin. Agents can no longer use its tools."""
    installed.remove(invocation.home, name)
    used = _reload_daemon(invocation)
    invocation.report(
        {"removed": name, "daemon": used or "down"}, f"Removed plugin {printable_line(name)}. {_reload_text(used)}"
    )


@plugins.command("verify")
@click.argument("name", required=False)
def verify(invocation: Invocation, name: str | None) -> Exit:
    """Verify that plugins are unchanged since they were installed: NAME, or all.

    \b
    Exit codes: 0 unchanged, 1 changed.
    """
    result = [_examined(one) for one in installed.load_all(invocation.home) if name in (None, _name(one))]
    if name is not None and not result:
        raise PluginNotFound(f"Unknown plugin {name!r}. List them with `palyra plugins`.")
    faulty = [one for one in result if isinstance(one, FaultyPlugin)]
    if not invocation.printed_json({"ok": not faulty, "plugins": [_state(one) for one in result]}):
        for one in result:
            if isinstance(one, FaultyPlugin):
                print(f"{paint('changed', 'red')}  {one.name}: {printable_line(one.error.detail)}")
            else:
                print(f"{paint('ok', 'green')}       {one.manifest.name} {one.manifest.version}, {one.digest}")
        if not result:
            print("No plugins.")
    return Exit.FAILED if faulty else Exit.DONE


def _before(invocation: Invocation, name: str) -> Plugin | None:
    """Return the plugin that is replaced; one that was changed counts as none, so that everything is shown again."""
    try:
        return installed.load(invocation.home, name)
    except (PluginNotFound, PluginChanged):
        return None


def _folder_options(pairs: tuple[str, ...]) -> dict[str, str]:
    values: dict[str, str] = {}
    for pair in pairs:
        name, sign, path = pair.partition("=")
        if not name or not sign or not path:
            raise click.BadParameter(f"{pair!r} is not of the form NAME=/path/to/folder", param_hint="--folder")
        values[name] = path
    return values


def _print_capabilities(source: PluginSource, before: Plugin | None, changes: CapabilityDifference) -> None:
    manifest = source.manifest
    show(_rows(f"{manifest.name} {manifest.version}: {manifest.description}", ""))
    if before is not None:
        print(f"Replaces {before.manifest.name} {before.manifest.version}.")
    print("\nCapabilities:" if before is None else "\nCapabilities, compared with the installed version:")
    show(_lines(changes, is_new=before is None))
    print()


def _lines(changes: CapabilityDifference, *, is_new: bool) -> list[str]:
    if is_new:
        return [row for line in changes.added for row in _rows(line, "  ")]
    lines = [paint(row, "yellow") for line in changes.added for row in _rows(line, "  + ")]
    lines += [paint(row, "dim") for line in changes.removed for row in _rows(line, "  - ")]
    return [*lines, *(row for line in changes.unchanged for row in _rows(line, "    "))]


def _rows(line: str, sign: str) -> list[str]:
    """Return a capability as rows; the plugin wrote some of the text, and none of it may begin a row."""
    return fold(escape_line(line), screen_width(), first=sign, rest="        ")


def _examined(one: Plugin | FaultyPlugin) -> Plugin | FaultyPlugin:
    """Check the module too."""
    if isinstance(one, FaultyPlugin):
        return one
    try:
        one.module()
    except PalyraError as error:
        return FaultyPlugin(one.manifest.name, error)
    return one


def _name(one: Plugin | FaultyPlugin) -> str:
    return one.name if isinstance(one, FaultyPlugin) else one.manifest.name


def _state(one: Plugin | FaultyPlugin) -> dict[str, Any]:
    if isinstance(one, FaultyPlugin):
        return {"name": one.name, "ok": False, "code": one.error.code, "detail": one.error.detail}
    return {**_fields(one), "ok": True}


def _fields(plugin: Plugin) -> dict[str, Any]:
    manifest, pin = plugin.manifest, plugin.pin
    return {
        "name": manifest.name,
        "version": manifest.version,
        "description": manifest.description,
        "digest": plugin.digest,
        "module_sha256": pin.module_sha256,
        "manifest_sha256": pin.manifest_sha256,
        "installed_at": pin.installed_at,
        "tools": [manifest.full_name(tool) for tool in manifest.tools],
        "folders": pin.folders,
        "powers": list(plugin_capabilities(manifest, pin.folders)),
    }


def _reload_daemon(invocation: Invocation) -> str:
    """Make a running daemon reload its plugins; return the result, empty if there is no daemon."""
    from palyra.gateway.client.target import find_daemon

    if find_daemon(invocation.home) is None:
        return ""
    try:
        invocation.client.reload_config()
    except PalyraError as error:
        return f"not yet: {error.detail}"
    return "in force"


def _reload_text(used: str) -> str:
    match used:
        case "":
            return "The daemon is not running; the change applies at the next start."
        case "in force":
            return "The daemon uses it now."
        case _:
            return f"The daemon does not use it yet ({used}). Try again with `palyra config reload`."
