"""Changes to files as tools make them: what they would do, and how they are carried out.

A call that changes files may run again after an interruption. Before its first attempt changed anything, it kept what
was there and what was to be there; so the second can tell whether the first took effect, wholly, in part or not at
all. If a file is neither what it was nor what it was to become, others changed it since: whether the first attempt took
effect before that is not known, and nothing more is done.
"""

import asyncio
import hashlib
import os
import re
from collections.abc import Sequence

import msgspec

from palyra.core.display import escape, escape_line
from palyra.core.effect import Effect
from palyra.core.tool import Risk
from palyra.journal.blobs import digest_of
from palyra.policy.risk import highest, of_path
from palyra.sandbox.workspace import Workspace
from palyra.sandbox.writing import Change, Found, carry_out, check_possible, look
from palyra.tools.base import OutcomeUnknown, ToolContext
from palyra.tools.diff import counted, unified
from palyra.tools.keeping import Earlier

_LIKE_A_HEAD = re.compile(r"^[+-](?=[+-] (?:[ab]/|/dev/null))", re.MULTILINE)
"""How a line begins that a diff would show as the head of another file."""
MAX_DIFF_CHARS = 1024 * 1024
"""Of a longer diff, what goes is told by its size and digest."""
RUN_BY_OTHERS = frozenset(
    ".git .hg .svn .husky .github .gitlab .circleci .vscode .idea .devcontainer .cargo .mvn .yarn hooks cron.d".split()
)
"""Folders whose files other programs run, or take orders from."""
RUN_NAMES = frozenset({"crontab", "sitecustomize.py", "usercustomize.py", "makefile", "gnumakefile", "dockerfile"})
RUN_ENDINGS = (".sh", ".bash", ".zsh", ".fish", ".command", ".desktop", ".service", ".timer", ".pth")


async def finished_before(context: ToolContext) -> bool:
    """Tell whether an earlier attempt of this call took effect; one that did so in part is taken back first."""
    earlier = await context.keeping.earlier()
    return bool(earlier) and await asyncio.to_thread(_settle, context.workspace, earlier)


async def apply(context: ToolContext, changes: Sequence[Change]) -> None:
    """Keep what is there, then make all changes or none."""
    if changes:
        await context.keeping.checkpoint(changes)
        await asyncio.to_thread(carry_out, context.workspace, changes)


async def effect_of(context: ToolContext, verb: str, changes: Sequence[Change]) -> Effect:
    """Return what the changes do: the diff against what is there now, with markers for the secrets in it."""
    await asyncio.to_thread(check_possible, changes)
    effect = await asyncio.to_thread(_effect, verb, changes)
    found = [change.found for change in changes]
    contents = {one.path: text_of(one.content.data) for one in found if one.content is not None}
    there = {path: content for path, content in contents.items() if content is not None}
    return msgspec.structs.replace(effect, detail=await context.sealed.shown(effect.detail, there))


def _effect(verb: str, changes: Sequence[Change]) -> Effect:
    paths = tuple(change.found.path for change in changes)
    risk = highest(map(_risk_of, changes), at_least=Risk.MEDIUM)
    folders = {os.path.dirname(path) for path in paths}
    # A lasting answer is given for ordinary files of one folder. What is more than that is asked about each time; to
    # delete is a tool of its own, so an answer for it never covers anything else.
    lasting = len(folders) == 1 and (risk is Risk.MEDIUM or all(change.after is None for change in changes))
    return Effect(
        risk=risk,
        summary=f"{verb} {summed_up(changes)}",
        detail="".join(described(change.found, change.after) for change in changes),
        paths=paths,
        kind=f"folder:{min(folders)}" if lasting else "",
    )


def described(found: Found, after: bytes | None) -> str:
    """Return the diff of a file against what it would become, in characters that can be seen.

    What comes is always shown whole. What goes is told by its size and digest if it is not text, or very long.
    """
    name = escape_line(os.path.relpath(found.path, found.root))
    before = found.content.data if found.content is not None else None
    old, new = _shown(before), _shown(after)
    is_text = (before is None) == (old is None) and (after is None) == (new is None)
    if is_text and len(diff := unified(old, new, name=name)) <= MAX_DIFF_CHARS:
        return diff
    if before is not None and after is not None and after.startswith(before) and (more := _shown(after[len(before) :])):
        return f"file {name}: {_sized(before)} stay, and this comes behind them:\n{unified(None, more, name=name)}"
    return f"file {name}: {_sized(before)} would become {_sized(after)}\n" + unified(None, new, name=name)


def _shown(data: bytes | None) -> str | None:
    """Return the text that the bytes are, as it is shown; None if they are not text."""
    text = text_of(data)
    return _LIKE_A_HEAD.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", escape(text)) if text is not None else None


def _sized(data: bytes | None) -> str:
    return f"{len(data)} bytes (sha256 {hashlib.sha256(data).hexdigest()})" if data is not None else "nothing"


def text_of(data: bytes | None) -> str | None:
    """Return the text that the bytes are, None if they are none."""
    try:
        return None if data is None or b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None


def summed_up(changes: Sequence[Change]) -> str:
    """Return what the changes do in one line."""
    told = [_named(change) for change in changes[:3]]
    if len(changes) > len(told):
        told.append(f"{len(changes) - len(told)} more")
    return ", ".join(told)


def _named(change: Change) -> str:
    found = change.found
    name = escape_line(os.path.relpath(found.path, found.root))
    before, after = (text_of(data) for data in (found.content.data if found.content else None, change.after))
    added, removed = counted(before, after)
    if found.content is None:
        return f"{name} ({added} {'line' if added == 1 else 'lines'}, new)"
    if change.after is None:
        return f"{name} ({len(found.content.data)} bytes, deleted)"
    return f"{name} (+{added} -{removed} lines)"


def _risk_of(change: Change) -> Risk:
    # By where it lies in the workspace: the workspace itself may lie anywhere.
    by_name = of_path(os.path.relpath(change.found.path, change.found.root), writing=True)
    return highest([by_name], at_least=Risk.HIGH if _is_delicate(change) else Risk.MEDIUM)


def _is_delicate(change: Change) -> bool:
    """Tell whether more depends on the file than what it says: it is gone, or it is run by somebody."""
    found = change.found
    if change.after is None:
        return True
    parts = os.path.relpath(found.path, found.root).lower().split("/")
    name = parts[-1]
    return (
        bool(RUN_BY_OTHERS.intersection(parts[:-1]))
        or (len(parts) == 1 and name.startswith("."))
        or name in RUN_NAMES
        or name in (".envrc", ".gitattributes", ".gitmodules", ".gitlab-ci.yml", ".pre-commit-config.yaml")
        or name.endswith(RUN_ENDINGS)
        or bool((change.mode or (found.content.mode if found.content is not None else 0)) & 0o111)
        or change.after.startswith(b"#!")
        or (found.content is not None and found.content.data.startswith(b"#!"))
    )


def _settle(workspace: Workspace, earlier: Sequence[Earlier]) -> bool:
    taken: list[tuple[Found, Earlier]] = []
    for one in earlier:
        found = look(workspace, one.path)
        now = digest_of(found.content.data) if found.content is not None else None
        if now == one.after_digest:
            taken.append((found, one))
        elif now != one.before_digest:
            raise OutcomeUnknown(
                f"This call was interrupted, and {escape_line(one.path)} was changed by others since. Whether the call"
                " took effect before that is not known, and nothing more was done. Read the file, then decide."
            )
    if len(taken) == len(earlier):
        return True
    carry_out(workspace, [Change(found, one.before, one.mode) for found, one in taken])
    return False
