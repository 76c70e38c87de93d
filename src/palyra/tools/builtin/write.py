"""`files.write` and `files.delete`: change one file of the workspace."""

import asyncio
from typing import Annotated, Any, Literal

from msgspec import Meta

from palyra.core.display import escape_line
from palyra.core.effect import Effect
from palyra.core.errors import Conflict
from palyra.core.message import clean_text
from palyra.core.tool import Markers, Risk
from palyra.sandbox.workspace import PathNotFound, Workspace
from palyra.sandbox.writing import Change, look
from palyra.tools.base import ToolContext, tool
from palyra.tools.changes import apply, effect_of, finished_before, text_of

Mode = Literal["create", "replace", "append"]


class FileExistsAlready(Conflict):
    """There is a file of that name already. Use mode replace or append, or another name."""


async def _preview_write(context: ToolContext, given: Any) -> Effect:
    change = await _planned(context, given.path, text=given.text, mode=given.mode)
    return await effect_of(context, "append to" if given.mode == "append" else "write", [change])


async def _preview_delete(context: ToolContext, given: Any) -> Effect:
    change = await asyncio.to_thread(_removal, context.workspace, given.path)
    return await effect_of(context, "delete", [change])


@tool(name="files.write", risk=Risk.MEDIUM, repeatable=True, preview=_preview_write, markers=Markers.FILE)
async def write(
    context: ToolContext,
    *,
    path: str,
    text: str,
    mode: Annotated[Mode, Meta(description="create fails if it exists")] = "create",
) -> str:
    """Write a text file of the workspace."""
    if await finished_before(context):
        return f"{escape_line(path)} is written."
    change = await _planned(context, path, text=text, mode=mode)
    if _is_idle(change):
        return f"{escape_line(path)} holds this already; nothing was changed."
    await apply(context, [change])
    assert change.after is not None
    return f"{escape_line(path)} is written: {len(change.after)} bytes."


@tool(name="files.delete", risk=Risk.HIGH, repeatable=True, preview=_preview_delete)
async def delete(context: ToolContext, *, path: str) -> str:
    """Delete a file of the workspace."""
    if not await finished_before(context):
        await apply(context, [await asyncio.to_thread(_removal, context.workspace, path)])
    return f"{escape_line(path)} is deleted."


async def _planned(context: ToolContext, path: str, *, text: str, mode: Mode) -> Change:
    clean_text(text, what="text")
    found = await asyncio.to_thread(look, context.workspace, path)
    there = text_of(found.content.data) if found.content is not None else None
    data = (await context.sealed.restore(text, path=found.path, there=there)).encode()
    if found.content is None:
        return Change(found, data)
    if mode == "append":
        return Change(found, found.content.data + data)
    if mode == "create" and found.content.data != data:
        raise FileExistsAlready(f"{path!r} exists already. Use mode replace or append, or another name.")
    return Change(found, data)


def _removal(workspace: Workspace, path: str) -> Change:
    found = look(workspace, path)
    if found.content is None:
        raise PathNotFound(f"There is no {path[:200]!r} in the workspace. List the folder to see what there is.")
    return Change(found, None)


def _is_idle(change: Change) -> bool:
    return change.found.content is not None and change.found.content.data == change.after
