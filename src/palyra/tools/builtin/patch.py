"""`files.patch`: change several files of the workspace by a diff, all of them or none."""

import asyncio
from typing import Annotated, Any

from msgspec import Meta

from palyra.core.errors import Invalid
from palyra.core.message import clean_text
from palyra.core.policy.effect import Effect
from palyra.core.text.escaping import escape_line
from palyra.core.text.secret_markers import markers_in
from palyra.core.tool import MarkerHandling, Risk
from palyra.sandbox.files.file_changes import MAX_CHANGES, FileChange, read_existing
from palyra.tools import unified_patch as patches
from palyra.tools.base import ToolContext, tool
from palyra.tools.file_changes import apply, effect_of, finished_before, summarize_changes, text_of

MAX_BYTES = 64 * 1024 * 1024
"""For all files that are changed together, before and after: this much is held in memory."""

MARK = "\ufeff"
"""The byte order mark."""


class FileNotUtf8(Invalid):
    """The file is not UTF-8 text, so it cannot be patched."""


class PatchTooLarge(Invalid):
    """The patch is too large: its files have more than 64 MiB before and after. Split it into several patches."""


class PatchPathRepeated(Invalid):
    """The patch names the same file twice. Patch it under one name."""


async def _preview(context: ToolContext, value: Any) -> Effect:
    changes = await _planned(context, value.patch)
    effect = await effect_of(context, "try to patch" if value.dry_run else "patch", changes)
    if not value.dry_run:
        return effect
    return Effect(risk=Risk.LOW, summary=effect.summary, detail=effect.detail, paths=effect.paths)


@tool(name="files.patch", risk=Risk.MEDIUM, repeatable=True, preview=_preview, markers=MarkerHandling.FILE)
async def patch(
    context: ToolContext,
    *,
    patch: Annotated[str, Meta(description="unified diff; several files may be named")],
    dry_run: Annotated[bool, Meta(description="only check if it applies")] = False,
) -> str:
    """Change workspace files by a diff: all of it is applied, or nothing."""
    if not dry_run and await finished_before(context):
        return "The patch is applied."
    changes = await _planned(context, patch)
    if not dry_run:
        await apply(context, changes)
    text = await asyncio.to_thread(summarize_changes, changes)
    return f"{'The patch applies:' if dry_run else 'Patched'} {text}."


async def _planned(context: ToolContext, text: str) -> list[FileChange]:
    file_patches = await asyncio.to_thread(patches.parse, clean_text(text, what="patch"))
    if len(file_patches) > MAX_CHANGES:
        raise PatchTooLarge(
            f"The patch names {len(file_patches)} files; the maximum is {MAX_CHANGES}. Split it into several patches."
        )
    changes: list[FileChange] = []
    held = 0
    for one in file_patches:
        change = await _change(context, one)
        changes.append(change)
        held += len(change.after or b"") + (
            len(change.existing.content.data) if change.existing.content is not None else 0
        )
        if held > MAX_BYTES:
            raise PatchTooLarge
    if len({change.existing.path for change in changes}) < len(changes):
        raise PatchPathRepeated
    return changes


async def _change(context: ToolContext, one: patches.FilePatch) -> FileChange:
    existing = await asyncio.to_thread(read_existing, context.workspace, one.path)
    before = text_of(existing.content.data) if existing.content is not None else None
    if existing.content is not None and before is None:
        raise FileNotUtf8(f"{escape_line(one.path)} is not UTF-8 text, so it cannot be patched.")
    displayed, has_markers = before, markers_in([line for hunk in one.hunks for line in (*hunk.old, *hunk.new)])
    if has_markers and before is not None:
        # The author of the patch has seen markers, which may change the line counts.
        displayed = await context.sealed.view(before, path=existing.path)
    try:
        after = await asyncio.to_thread(_applied, one, displayed)
    except patches.PatchConflict:
        # The error quotes the file.
        context.witness.read(existing.path)
        raise
    if has_markers and after is not None:
        after = await context.sealed.restore(after, path=existing.path, target=before)
    return FileChange(existing, None if after is None else after.encode())


def _applied(one: patches.FilePatch, before: str | None) -> str | None:
    try:
        return patches.apply(one, before)
    except patches.PatchConflict:
        # Some editors put an invisible mark before the first letter. It stays.
        if before is None or not before.startswith(MARK):
            raise
        after = patches.apply(one, before.removeprefix(MARK))
        return None if after is None else MARK + after
