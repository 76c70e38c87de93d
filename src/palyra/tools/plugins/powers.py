"""What a plugin may do, in words for a person who must decide: one line for each power, so that two sets compare."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from palyra.core.tool import Access
from palyra.tools.plugins.installed import Plugin
from palyra.tools.plugins.manifest import WORKSPACE, PluginManifest


@dataclass(frozen=True, slots=True)
class Difference:
    """What a plugin may do that an earlier one might not, and the other way round."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    kept: tuple[str, ...]


def powers(manifest: PluginManifest, folders: Mapping[str, str]) -> Iterator[str]:
    """Return what a plugin may do, given its folders."""
    for tool in manifest.tools:
        what = "may change its folders" if manifest.may_write(tool) else "changes nothing"
        yield f"tool {manifest.full_name(tool)}: {manifest.risk_of(tool)} risk, {what}"
    for folder in manifest.folders:
        what = "change" if folder.access is Access.WRITE else "read"
        where = "the workspace of whoever calls" if folder.name == WORKSPACE else folders[folder.name]
        yield f"folder {folder.name}: may {what} {where}{f' ({folder.purpose})' if folder.purpose else ''}"
    if not manifest.folders:
        yield "no files"
    yield "no network"
    limits = manifest.limits
    yield f"each call: {limits.seconds} s, {limits.memory_mb} MB, {limits.fuel} steps, {limits.output_kb} KB of output"


def difference(manifest: PluginManifest, folders: Mapping[str, str], before: Plugin | None) -> Difference:
    """Compare what a plugin may do with what the installed one may."""
    new = list(powers(manifest, folders))
    old = list(powers(before.manifest, before.pin.folders)) if before is not None else []
    return Difference(
        added=tuple(line for line in new if line not in old),
        removed=tuple(line for line in old if line not in new),
        kept=tuple(line for line in new if line in old),
    )
