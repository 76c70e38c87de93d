"""`files.list` and `files.read`: list and read files of the workspace."""

import asyncio
import os
from dataclasses import dataclass
from typing import Annotated, BinaryIO

from msgspec import Meta

from palyra.core.errors import OffsetBeyondEnd
from palyra.core.policy import labels
from palyra.core.text.escaping import escape_line
from palyra.core.tool import Risk
from palyra.sandbox.files.content_type import SNIFFED_BYTES, binary_kind
from palyra.sandbox.files.listing import EntryKind, FolderEntry
from palyra.sandbox.files.workspace import Workspace
from palyra.tools.base import ToolContext, tool

SLICE_BYTES = 15 * 1024
"""How much of a file is returned at once: what fits into a result after its header line."""
MAX_SKIPPED_BYTES = 256 * 1024 * 1024

_BLOCK = 64 * 1024


@tool(name="files.list", risk=Risk.LOW, repeatable=True, read_only=True, label=labels.OWNER)
async def list_files(
    context: ToolContext, *, folder: str = ".", limit: Annotated[int, Meta(ge=1, le=1000)] = 200
) -> str:
    """List a workspace folder with sizes."""
    context.witness.note_folder(await asyncio.to_thread(_resolved_path, context.workspace, folder or "."))
    return await asyncio.to_thread(_list, context.workspace, folder or ".", limit=limit)


@tool(name="files.read", risk=Risk.LOW, repeatable=True, read_only=True, label=labels.OWNER)
async def read(
    context: ToolContext,
    *,
    path: str,
    line: Annotated[int, Meta(ge=1, description="first line")] = 1,
    lines: Annotated[int, Meta(ge=1, description="how many")] = 500,
    byte: Annotated[int, Meta(ge=0, description="start here instead, for very long lines")] = 0,
) -> str:
    """Read a text file of the workspace, in slices if it is long."""
    # More lines than bytes never fit, and the system cannot take an unbounded number.
    lines = min(lines, SLICE_BYTES)
    context.witness.read(await asyncio.to_thread(_resolved_path, context.workspace, path))
    return await asyncio.to_thread(_read, context.workspace, path, line=line, lines=lines, byte=byte)


def _resolved_path(workspace: Workspace, path: str) -> str:
    with workspace.reach(path) as at:
        return at.path


def _list(workspace: Workspace, folder: str, *, limit: int) -> str:
    listing = workspace.list_dir(folder)
    count = len(listing.entries)
    lines = [
        f"{escape_line(folder)}: {count}{'' if listing.complete else ' or more'} {'entry' if count == 1 else 'entries'}"
    ]
    lines += [_entry(entry) for entry in listing.entries[:limit]]
    if count > limit:
        lines.append(f"[{count - limit} more; raise limit to see them]")
    return "\n".join(lines)


def _entry(entry: FolderEntry) -> str:
    name = escape_line(entry.name)
    match entry.kind:
        case EntryKind.FOLDER:
            return f"{name}/"
        case EntryKind.FILE:
            return f"{name} ({entry.size} bytes)"
        case EntryKind.LINK | EntryKind.OTHER:
            return f"{name} ({entry.kind})"


@dataclass(frozen=True, slots=True)
class _Slice:
    """A slice of a file: its text, its start, and the start of the next one, if there is more."""

    text: str
    first: str
    next: str | None


def _read(workspace: Workspace, path: str, *, line: int, lines: int, byte: int) -> str:
    with workspace.open_read(path) as file:
        size = os.fstat(file.fileno()).st_size
        if kind := binary_kind(file.read(SNIFFED_BYTES)):
            return f"{escape_line(path)} is {kind} of {size} bytes; its content is not shown."
        if size == 0:
            return f"{escape_line(path)} is empty."
        if byte >= size:
            raise OffsetBeyondEnd(f"{path!r} ends before byte {byte}.")
        file.seek(0)
        part = _from_byte(file, byte) if byte else _from_line(file, line, lines=lines, path=path)
    more = f"\n[more follows: read again with {part.next}]" if part.next else ""
    return f"{escape_line(path)}, {size} bytes, from {part.first}:\n{part.text}{more}"


def _from_byte(file: BinaryIO, byte: int) -> _Slice:
    file.seek(byte)
    raw = file.read(SLICE_BYTES)
    more = _has_more(file)
    data = _complete_chars(raw) if more else raw
    text = data[_tail_of_char(data) :].decode("utf-8", "replace")
    return _Slice(text, f"byte {byte}", f"byte={byte + len(data)}" if more else None)


def _from_line(file: BinaryIO, line: int, *, lines: int, path: str) -> _Slice:
    start = _seek_line(file, line, path=path)
    raw = file.read(SLICE_BYTES)
    if not raw and line > 1:
        raise OffsetBeyondEnd(f"{path!r} ends before line {line}.")
    pieces = raw.split(b"\n", lines)
    first = f"line {line}"
    if len(pieces) > lines:
        text = b"\n".join(pieces[:lines])
        more = bool(pieces[lines]) or _has_more(file)
        return _Slice(_text(text), first, f"line={line + lines}" if more else None)
    if not _has_more(file):
        return _Slice(_text(raw), first, None)
    if len(pieces) > 1:
        # The last line is cut, so it is left for the next slice, complete.
        return _Slice(_text(b"\n".join(pieces[:-1])), first, f"line={line + len(pieces) - 1}")
    data = _complete_chars(raw)
    return _Slice(_text(data), first, f"byte={start + len(data)}")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8-sig", "replace")


def _seek_line(file: BinaryIO, line: int, *, path: str) -> int:
    """Move to the beginning of a line, and return its offset. A long line is never held in memory as a whole."""
    index, count = 0, line - 1
    while count > 0:
        block = file.read(_BLOCK)
        if not block:
            raise OffsetBeyondEnd(f"{path!r} ends before line {line}.")
        if index > MAX_SKIPPED_BYTES:
            raise OffsetBeyondEnd(f"{path!r} is too long to count its lines. Use byte to say where to start.")
        ends = block.count(b"\n")
        if ends < count:
            count -= ends
            index += len(block)
            continue
        inside = -1
        for _ in range(count):
            inside = block.index(b"\n", inside + 1)
        index += inside + 1
        count = 0
    file.seek(index)
    return index


def _has_more(file: BinaryIO) -> bool:
    return bool(file.read(1))


def _tail_of_char(raw: bytes) -> int:
    """Count the bytes at the start that continue a character: a slice may begin in the middle of one."""
    count = next((index for index, byte in enumerate(raw[:4]) if not 0x80 <= byte < 0xC0), len(raw[:4]))
    # Four in a row are not UTF-8 at all.
    return count if count < 4 else 0


def _complete_chars(raw: bytes) -> bytes:
    """Return the bytes without a last character that is incomplete."""
    for back in range(1, min(4, len(raw) + 1)):
        lead = raw[-back]
        if lead >= 0xC0:
            needed = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return raw[:-back] if back < needed else raw
        if lead < 0x80:
            break
    return raw
