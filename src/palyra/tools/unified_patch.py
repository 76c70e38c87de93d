"""Parses and applies unified diffs: pure, and strict.

Every line that a patch expects must be there, exactly. Only the line numbers may be off: a hunk is searched for at
its position first, then nearby, and refused if two positions are equally near. Anything in a patch that is not
understood is refused as well, so that nothing is silently left out.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from palyra.core.errors import Conflict, Invalid
from palyra.tools.diff import lines_of

MAX_LINE_OFFSET = 500
"""How many lines a hunk may be off its position."""

_ESCAPED = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_LETTERS = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_PLAIN = ("diff --git ", "diff -", "index ", "new file mode 100644", "deleted file mode ", "=====")
_REFUSED = {
    "rename ": "renames",
    "copy ": "copies",
    "similarity ": "renames",
    "old mode": "changes of permissions",
    "new mode": "changes of permissions",
    "new file mode": "files with other permissions than 644",
    "GIT binary patch": "binary files",
    "Binary files": "binary files",
}


class PatchInvalid(Invalid):
    """The patch cannot be parsed. Send a unified diff, as `diff -u` or `git diff` writes it."""


class PatchConflict(Conflict):
    """The patch does not apply. Read the file and write the patch again; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines that are expected, and lines that replace them, each with its newline unless it has none."""

    start: int
    """The index of the first of them, from 0."""
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FilePatch:
    """The change of one file."""

    path: str
    creates: bool
    deletes: bool
    hunks: tuple[Hunk, ...]


def parse(text: str) -> tuple[FilePatch, ...]:
    """Parse a patch of any number of files."""
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    patches: list[FilePatch] = []
    index = 0
    while index < len(lines):
        line = lines[index]
        if _begins_file(lines, index):
            patch, index = _file(lines, index)
            patches.append(patch)
            continue
        if line.startswith(("new file mode 100644", "deleted file mode ")) and _is_empty(lines, index):
            patches.append(_empty_file(lines, index))
        _require_idle(line, index)
        index += 1
    if not patches:
        raise PatchInvalid("The patch names no file: it needs `--- a/PATH` and `+++ b/PATH` before its hunks.")
    path, times = Counter(patch.path for patch in patches).most_common(1)[0]
    if times > 1:
        raise PatchInvalid(f"The patch names {path!r} more than once. Put all its hunks under one header.")
    return tuple(patches)


def apply(patch: FilePatch, text: str | None) -> str | None:
    """Return the file with the patch applied, None if it is deleted. None stands for no file."""
    if patch.creates and text is not None:
        raise PatchConflict(f"The patch creates {patch.path!r}, which already exists.")
    if not patch.creates and text is None:
        raise PatchConflict(f"There is no file {patch.path!r} to patch.")
    lines = lines_of(text or "")
    result: list[str] = []
    done, off = 0, 0
    for number, hunk in enumerate(patch.hunks, 1):
        start = _locate(hunk, lines, after=done, expected=hunk.start + off)
        if start is None:
            raise PatchConflict(_misfit(patch, hunk, number, lines, near=hunk.start + off))
        off = start - hunk.start
        result += [*lines[done:start], *hunk.new]
        done = start + len(hunk.old)
    result += lines[done:]
    # Only the last line of a file may lack its newline; a patch could put such a line into the middle.
    if any(not line.endswith("\n") for line in result[:-1]):
        raise PatchConflict(f"The patch leaves a line of {patch.path!r} without its newline in the middle of the file.")
    if patch.deletes and result:
        raise PatchConflict(f"The patch deletes {patch.path!r}, but does not list all of its lines.")
    return None if patch.deletes else "".join(result)


def _require_idle(line: str, index: int) -> None:
    for start, what in _REFUSED.items():
        if line.startswith(start) and not line.startswith(_PLAIN):
            raise PatchInvalid(f"Line {index + 1} of the patch: {what} are not supported here.")
    if line.strip() and not line.startswith(_PLAIN):
        raise PatchInvalid(f"Line {index + 1} of the patch cannot be parsed: {line[:60]!r}.")


def _begins_file(lines: Sequence[str], index: int) -> bool:
    return lines[index].startswith("--- ") and index + 1 < len(lines) and lines[index + 1].startswith("+++ ")


def _is_empty(lines: Sequence[str], index: int) -> bool:
    """Tell whether a created or deleted file has no lines: then git names it only in its own header."""
    for at in range(index + 1, len(lines)):
        if not lines[at].startswith("index ") and lines[at].strip():
            return not _begins_file(lines, at)
    return True


def _empty_file(lines: Sequence[str], index: int) -> FilePatch:
    head = lines[index - 1].removeprefix("diff --git ") if index else ""
    # Both names are the same, so the middle is known even if they contain spaces.
    old, new = (_name(name) for name in (head[: len(head) // 2], head[len(head) // 2 + 1 :]))
    if head == lines[index - 1] or old is None or new is None or not (old.startswith("a/") and new.startswith("b/")):
        raise PatchInvalid(f"Line {index + 1} of the patch does not say clearly which file is meant.")
    creates = lines[index].startswith("new ")
    return FilePatch(_same_path(old, new, index - 1), creates, not creates, ())


def _file(lines: Sequence[str], index: int) -> tuple[FilePatch, int]:
    old, new = (_name(lines[index + step][4:]) for step in (0, 1))
    if old is None and new is None:
        raise PatchInvalid(f"Line {index + 1} of the patch does not name a file.")
    path = _same_path(old, new, index)
    index += 2
    hunks: list[Hunk] = []
    while index < len(lines) and lines[index].startswith("@@"):
        hunk, index = _hunk(lines, index)
        hunks.append(hunk)
    if not hunks:
        raise PatchInvalid(f"There is no hunk for {path!r}: a line such as `@@ -1,3 +1,4 @@` begins one.")
    return FilePatch(path, old is None, new is None, tuple(hunks)), index


def _name(text: str) -> str | None:
    name = text.split("\t")[0].rstrip()
    if not name:
        raise PatchInvalid("The patch has a header without a path.")
    if len(name) > 1 and name.startswith('"') and name.endswith('"'):
        return _unquoted(name[1:-1])
    return None if name == "/dev/null" else name


def _unquoted(name: str) -> str:
    """Return the real name of a file that git has quoted because of a special character."""
    plain = _ESCAPED.sub(lambda match: _letter(match[1]), name.encode())
    try:
        return plain.decode()
    except UnicodeDecodeError:
        raise PatchInvalid(f"The path {name!r} in the patch is not valid text.") from None


def _letter(escaped: bytes) -> bytes:
    return bytes([int(escaped, 8) & 0xFF]) if len(escaped) == 3 else _LETTERS.get(escaped, escaped)


def _same_path(old: str | None, new: str | None, index: int) -> str:
    stripped = [name.removeprefix(prefix) if name is not None else None for name, prefix in ((old, "a/"), (new, "b/"))]
    marked = all(name is None or name.startswith(prefix) for name, prefix in ((old, "a/"), (new, "b/")))
    first, second = stripped if marked else (old, new)
    if first is not None and second is not None and first != second:
        raise PatchInvalid(f"Line {index + 1} of the patch renames {first!r} to {second!r}; renames are not supported.")
    path = first if first is not None else second
    assert path is not None
    return path


def _hunk(lines: Sequence[str], index: int) -> tuple[Hunk, int]:
    head = _HUNK.match(lines[index])
    if head is None:
        raise PatchInvalid(f"Line {index + 1} of the patch should be like `@@ -1,3 +1,4 @@`: {lines[index][:60]!r}.")
    start, old_count = int(head[1]), 1 if head[2] is None else int(head[2])
    new_count = 1 if head[4] is None else int(head[4])
    at = index
    old: list[str] = []
    new: list[str] = []
    index += 1
    while index < len(lines) and (len(old) < old_count or len(new) < new_count or lines[index].startswith("\\")):
        line = lines[index]
        match line[:1]:
            # Some programs strip the space that marks an empty line as unchanged.
            case " " | "":
                old.append(line[1:] + "\n")
                new.append(line[1:] + "\n")
            case "-":
                old.append(line[1:] + "\n")
            case "+":
                new.append(line[1:] + "\n")
            case "\\":
                _strip_newline(lines[index - 1], old, new)
            case _:
                break
        index += 1
    if (len(old), len(new)) != (old_count, new_count):
        raise PatchInvalid(
            f"The hunk at line {at + 1} of the patch says {old_count} old and {new_count} new lines, "
            f"but has {len(old)} and {len(new)}. Count them again."
        )
    # An empty range names the line before it.
    return Hunk(start - 1 if old_count else start, tuple(old), tuple(new)), index


def _strip_newline(before: str, old: list[str], new: list[str]) -> None:
    for lines, marks in ((old, " -"), (new, " +")):
        if before[:1] in marks and lines:
            lines[-1] = lines[-1].removesuffix("\n")


def _locate(hunk: Hunk, lines: Sequence[str], *, after: int, expected: int) -> int | None:
    """Return where the hunk fits: the position nearest to the expected one, None if there is none or it is unclear."""
    if not hunk.old:
        return expected if after <= expected <= len(lines) else None
    if _fits(hunk, lines, expected, after=after):
        return expected
    for distance in range(1, MAX_LINE_OFFSET + 1):
        near = [at for at in (expected - distance, expected + distance) if _fits(hunk, lines, at, after=after)]
        if near:
            return near[0] if len(near) == 1 else None
    return None


def _fits(hunk: Hunk, lines: Sequence[str], at: int, *, after: int) -> bool:
    return at >= after and tuple(lines[at : at + len(hunk.old)]) == hunk.old


def _misfit(patch: FilePatch, hunk: Hunk, number: int, lines: Sequence[str], *, near: int) -> str:
    text = next(_differences(hunk, lines, near), "its lines are not found nearby, or in two places equally near")
    return f"Hunk {number} does not match {patch.path!r}: {text}. Read the file and write the patch again."


def _differences(hunk: Hunk, lines: Sequence[str], near: int) -> Iterator[str]:
    for step, requested in enumerate(hunk.old):
        at = near + step
        target = lines[at] if 0 <= at < len(lines) else None
        if target is None:
            yield f"the file ends before line {at + 1}, where the patch has {_short(requested)}"
        elif target == requested[:-1] + "\r\n":
            yield f"line {at + 1} ends in \\r\\n, so the lines of the patch must too"
        elif target != requested:
            yield f"line {at + 1} is {_short(target)}, and the patch has {_short(requested)}"


def _short(line: str) -> str:
    text = line.removesuffix("\n")
    return repr(text if len(text) <= 80 else text[:80] + "…") + ("" if line.endswith("\n") else " without a newline")
