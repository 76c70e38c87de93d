"""`files.write` and `files.delete`: change one file of the workspace."""

import asyncio
from typing import Annotated, Any, Literal

from msgspec import Meta

from palyra.core.errors import FileExists
from palyra.core.message import clean_text
from palyra.core.policy.effect import Effect
from palyra.core.text.escaping import escape_line
from palyra.core.tool import MarkerHandling, Risk
from palyra.sandbox.files.file_changes import FileChange, read_existing
from palyra.sandbox.files.workspace import PathNotFound, Workspace
from palyra.tools.base import ToolContext, tool
from palyra.tools.file_changes import apply, effect_of, finished_before, text_of

Mode = Literal["create", "replace", "append"]


async def _preview_write(context: ToolContext, value: Any) -> Effect:
    change = await _planned(context, value.path, text=value.text, mode=value.mode)
    return await effect_of(context, "append to" if value.mode == "append" else "write", [change])


async def _preview_delete(context: ToolContext, value: Any) -> Effect:
    change = await asyncio.to_thread(_removal, context.workspace, value.path)
    return await effect_of(context, "delete", [change])


@tool(name="files.write", risk=Risk.MEDIUM, repeatable=True, preview=_preview_write, markers=MarkerHandling.FILE)
async def write(
    context: ToolContext,
    *,
    path: str,
    text: str,
    mode: Annotated[Mode, Meta(description="create fails if it exists")] = "create",
) -> str:
    """Write a text file of the workspace."""
    if await finished_before(context):
        return f"{escape_line(path)} was written."
    change = await _planned(context, path, text=text, mode=mode)
    if _is_idle(change):
        return f"{escape_line(path)} already has this content; nothing was changed."
    await apply(context, [change])
    assert change.after is not None
    return f"{escape_line(path)} was written: {len(change.after)} bytes."


@tool(name="files.delete", risk=Risk.HIGH, repeatable=True, preview=_preview_delete)
async def delete(context: ToolContext, *, path: str) -> str:
    """Delete a file of the workspace."""
    if not await finished_before(context):
        await apply(context, [await asyncio.to_thread(_removal, context.workspace, path)])
    return f"{escape_line(path)} was deleted."


async def _planned(context: ToolContext, path: str, *, text: str, mode: Mode) -> FileChange:
    clean_text(text, what="text")
    existing = await asyncio.to_thread(read_existing, context.workspace, path)
    target = text_of(existing.content.data) if existing.content is not None else None
    data = (await context.sealed.restore(text, path=existing.path, target=target)).encode()
    if existing.content is None:
        return FileChange(existing, data)
    if mode == "append":
        return FileChange(existing, existing.content.data + data)
    if mode == "create" and existing.content.data != data:
        raise FileExists(f"{path!r} already exists. Use mode replace or append, or another name.")
    return FileChange(existing, data)


def _removal(workspace: Workspace, path: str) -> FileChange:
    existing = read_existing(workspace, path)
    if existing.content is None:
        raise PathNotFound(f"There is no {path[:200]!r} in the workspace. List the folder to see what there is.")
    return FileChange(existing, None)


def _is_idle(change: FileChange) -> bool:
    return change.existing.content is not None and change.existing.content.data == change.after
