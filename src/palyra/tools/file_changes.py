"""File changes by tools: their effect, and how they are executed.

A call that changes files may run again after an interruption. Before its first attempt changed anything, it stored the
old and the new contents; so the second can tell whether the first took effect, completely, in part or not at
all. If a file has neither its old nor its new content, others changed it since: whether the first attempt took
effect before that is not known, and nothing more is done.
"""

import asyncio
import hashlib
import os
import re
from collections.abc import Sequence

import msgspec

from palyra.core.policy.effect import Effect
from palyra.core.text.escaping import escape, escape_line
from palyra.core.tool import Risk
from palyra.journal.content.blobs import digest_of
from palyra.policy.risk import highest, of_path
from palyra.sandbox.files.file_changes import ExistingFile, FileChange, apply_changes, check_possible, read_existing
from palyra.sandbox.files.workspace import Workspace
from palyra.tools.base import CallOutcomeUnknown, ToolContext
from palyra.tools.call_storage import EarlierAttempt
from palyra.tools.diff import counted, unified

_LIKE_A_HEAD = re.compile(r"^[+-](?=[+-] (?:[ab]/|/dev/null))", re.MULTILINE)
"""The start of a line that a diff would show as the header of another file."""
MAX_DIFF_CHARS = 1024 * 1024
"""In a longer diff, removed content is shown by its size and digest."""
RUN_BY_OTHERS = frozenset(
    ".git .hg .svn .husky .github .gitlab .circleci .vscode .idea .devcontainer .cargo .mvn .yarn hooks cron.d".split()
)
"""Folders whose files other programs run, or take configuration from."""
RUN_NAMES = frozenset({"crontab", "sitecustomize.py", "usercustomize.py", "makefile", "gnumakefile", "dockerfile"})
RUN_ENDINGS = (".sh", ".bash", ".zsh", ".fish", ".command", ".desktop", ".service", ".timer", ".pth")


async def finished_before(context: ToolContext) -> bool:
    """Tell whether an earlier attempt of this call took effect; one that did so in part is undone first."""
    earlier = await context.storage.earlier()
    return bool(earlier) and await asyncio.to_thread(_settle, context.workspace, earlier)


async def apply(context: ToolContext, changes: Sequence[FileChange]) -> None:
    """Store the current contents, then make all changes or none."""
    if changes:
        await context.storage.checkpoint(changes)
        await asyncio.to_thread(apply_changes, context.workspace, changes)


async def effect_of(context: ToolContext, verb: str, changes: Sequence[FileChange]) -> Effect:
    """Return the effect of the changes: the diff against the current contents, with markers for the secrets in it."""
    await asyncio.to_thread(check_possible, changes)
    effect = await asyncio.to_thread(_effect, verb, changes)
    existings = [change.existing for change in changes]
    contents = {one.path: text_of(one.content.data) for one in existings if one.content is not None}
    target = {path: content for path, content in contents.items() if content is not None}
    return msgspec.structs.replace(effect, detail=await context.sealed.reseal(effect.detail, target))


def _effect(verb: str, changes: Sequence[FileChange]) -> Effect:
    paths = tuple(change.existing.path for change in changes)
    risk = highest(map(_risk_of, changes), at_least=Risk.MEDIUM)
    folders = {os.path.dirname(path) for path in paths}
    # A lasting approval is for ordinary files of one folder. Anything more needs approval each time. Deleting is a
    # tool of its own, so an approval for it never covers anything else.
    lasting = len(folders) == 1 and (risk is Risk.MEDIUM or all(change.after is None for change in changes))
    return Effect(
        risk=risk,
        summary=f"{verb} {summarize_changes(changes)}",
        detail="".join(describe_change(change.existing, change.after) for change in changes),
        paths=paths,
        kind=f"folder:{min(folders)}" if lasting else "",
    )


def describe_change(existing: ExistingFile, after: bytes | None) -> str:
    """Return the diff of a file against its new content, in visible characters.

    Added content is always shown in full. Removed content is shown by size and digest if it is not text, or very long.
    """
    name = escape_line(os.path.relpath(existing.path, existing.root))
    before = existing.content.data if existing.content is not None else None
    old, new = _display_text(before), _display_text(after)
    is_text = (before is None) == (old is None) and (after is None) == (new is None)
    if is_text and len(diff := unified(old, new, name=name)) <= MAX_DIFF_CHARS:
        return diff
    if (
        before is not None
        and after is not None
        and after.startswith(before)
        and (more := _display_text(after[len(before) :]))
    ):
        return f"file {name}: {_sized(before)} stay, and this is appended:\n{unified(None, more, name=name)}"
    return f"file {name}: {_sized(before)} would become {_sized(after)}\n" + unified(None, new, name=name)


def _display_text(data: bytes | None) -> str | None:
    """Return the bytes as text, as it is shown; None if they are not text."""
    text = text_of(data)
    return _LIKE_A_HEAD.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", escape(text)) if text is not None else None


def _sized(data: bytes | None) -> str:
    return f"{len(data)} bytes (sha256 {hashlib.sha256(data).hexdigest()})" if data is not None else "nothing"


def text_of(data: bytes | None) -> str | None:
    """Return the bytes as text, None if they are not text."""
    try:
        return None if data is None or b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None


def summarize_changes(changes: Sequence[FileChange]) -> str:
    """Return the effect of the changes in one line."""
    lines = [_named(change) for change in changes[:3]]
    if len(changes) > len(lines):
        lines.append(f"{len(changes) - len(lines)} more")
    return ", ".join(lines)


def _named(change: FileChange) -> str:
    existing = change.existing
    name = escape_line(os.path.relpath(existing.path, existing.root))
    before, after = (text_of(data) for data in (existing.content.data if existing.content else None, change.after))
    added, removed = counted(before, after)
    if existing.content is None:
        return f"{name} ({added} {'line' if added == 1 else 'lines'}, new)"
    if change.after is None:
        return f"{name} ({len(existing.content.data)} bytes, deleted)"
    return f"{name} (+{added} -{removed} lines)"


def _risk_of(change: FileChange) -> Risk:
    # By its path in the workspace: the workspace itself may be anywhere.
    by_name = of_path(os.path.relpath(change.existing.path, change.existing.root), writing=True)
    return highest([by_name], at_least=Risk.HIGH if _is_delicate(change) else Risk.MEDIUM)


def _is_delicate(change: FileChange) -> bool:
    """Tell whether more depends on the file than its content: it is deleted, or a program runs it."""
    existing = change.existing
    if change.after is None:
        return True
    parts = os.path.relpath(existing.path, existing.root).lower().split("/")
    name = parts[-1]
    return (
        bool(RUN_BY_OTHERS.intersection(parts[:-1]))
        or (len(parts) == 1 and name.startswith("."))
        or name in RUN_NAMES
        or name in (".envrc", ".gitattributes", ".gitmodules", ".gitlab-ci.yml", ".pre-commit-config.yaml")
        or name.endswith(RUN_ENDINGS)
        or bool((change.mode or (existing.content.mode if existing.content is not None else 0)) & 0o111)
        or change.after.startswith(b"#!")
        or (existing.content is not None and existing.content.data.startswith(b"#!"))
    )


def _settle(workspace: Workspace, earlier: Sequence[EarlierAttempt]) -> bool:
    claimed: list[tuple[ExistingFile, EarlierAttempt]] = []
    for one in earlier:
        existing = read_existing(workspace, one.path)
        now = digest_of(existing.content.data) if existing.content is not None else None
        if now == one.after_digest:
            claimed.append((existing, one))
        elif now != one.before_digest:
            raise CallOutcomeUnknown(
                f"This call was interrupted, and {escape_line(one.path)} was then changed by others. It "
                "is not known whether the call took effect before that, and nothing more was done. "
                "Read the file, then decide."
            )
    if len(claimed) == len(earlier):
        return True
    apply_changes(workspace, [FileChange(existing, one.before, one.mode) for existing, one in claimed])
    return False
