"""Describes a plugin's capabilities to the person who decides: one line for each, so that two sets can be compared."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from palyra.core.tool import FolderAccess
from palyra.tools.plugins.installed import Plugin
from palyra.tools.plugins.manifest import WORKSPACE, PluginManifest


@dataclass(frozen=True, slots=True)
class CapabilityDifference:
    """The capabilities that a plugin has and an earlier one did not, and the reverse."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: tuple[str, ...]


def plugin_capabilities(manifest: PluginManifest, folders: Mapping[str, str]) -> Iterator[str]:
    """Return the capabilities of a plugin with these folders."""
    for tool in manifest.tools:
        what = "may change its folders" if manifest.may_write(tool) else "changes nothing"
        yield f"tool {manifest.full_name(tool)}: {manifest.risk_of(tool)} risk, {what}"
    for folder in manifest.folders:
        what = "change" if folder.access is FolderAccess.WRITE else "read"
        where = "the workspace of the caller" if folder.name == WORKSPACE else folders[folder.name]
        yield f"folder {folder.name}: may {what} {where}{f' ({folder.purpose})' if folder.purpose else ''}"
    if not manifest.folders:
        yield "no files"
    yield "no network"
    limits = manifest.limits
    yield f"each call: {limits.seconds} s, {limits.memory_mb} MB, {limits.fuel} steps, {limits.output_kb} KB of output"


def difference(manifest: PluginManifest, folders: Mapping[str, str], before: Plugin | None) -> CapabilityDifference:
    """Compare the capabilities of a plugin with those of the installed one."""
    new = list(plugin_capabilities(manifest, folders))
    old = list(plugin_capabilities(before.manifest, before.pin.folders)) if before is not None else []
    return CapabilityDifference(
        added=tuple(line for line in new if line not in old),
        removed=tuple(line for line in old if line not in new),
        unchanged=tuple(line for line in new if line in old),
    )
