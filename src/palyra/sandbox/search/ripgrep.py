"""Asks ripgrep which files of a workspace can contain a text, so that a search need not open the others.

Ripgrep runs in the strict sandbox only, with read access to the searched root and nothing else. Its output is never
shown: it can only make a search leave a file unopened. Matches are found by `search.py`. So ripgrep is asked for
more than what matches and never for less: for bare words, in a way that misses nothing that Python would find, in files
of every kind. Where it is missing, reports an error or takes too long, every file is opened.
"""

import asyncio
import os
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from palyra.core.errors import PalyraError
from palyra.sandbox.base import MIB, ProgramOutcome, Sandbox, SandboxJob, Tier
from palyra.sandbox.files.workspace import MAX_DEPTH, Workspace, prefix_of
from palyra.sandbox.processes.tiers import find
from palyra.sandbox.search import search
from palyra.sandbox.search.search import SKIPPED_FOLDERS, RequiredWords, SearchQuery

PROGRAM = "rg"
WALL = timedelta(seconds=5)
MEMORY_BYTES = 512 * MIB
ANSWER_BYTES = 4 * MIB
"""How much output is read. More file names would not save much."""
THREADS = 4
MAX_NEEDLE_CHARS = 200
POLL_SECONDS = 0.05

_UNCHANGING = re.compile(r"\*[A-Za-z0-9._-]+", re.ASCII)
"""The globs that mean the same to ripgrep as to Python: those that name an ending."""
_ANY_CASE = re.compile("[\x01-\x09\x0b-\u017f\u0370-\u052f\u2000-\u206f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]+")
"""Letters for which both know the same other cases, in every version of Unicode."""
_THIS_CASE = re.compile("[^\n\0\ud800-\udfff\ufffd]+")
"""Everything that can be in a line, except what Python puts there for undecodable bytes."""


class RipgrepFilter:
    """The file filter of one search. The search thread calls it, and it works in the event loop."""

    def __init__(self, sandbox: Sandbox, workspace: Workspace, *, loop: asyncio.AbstractEventLoop) -> None:
        self._sandbox = sandbox
        self._workspace = workspace
        self._loop = loop
        self._names: frozenset[str] | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_done = threading.Event()
        self._is_closed = False

    def ask(self, query: SearchQuery, needles: RequiredWords, *, stop: Callable[[], bool]) -> None:
        """Find which files contain one of the needles. Blocks until that is known, or known to remain unknown."""
        if self._is_closed or self._sandbox.tier is not Tier.STRICT:
            return
        self._loop.call_soon_threadsafe(self._begin, query, needles)
        while not stop() and not self._is_done.wait(POLL_SECONDS):
            pass

    def passes(self, path: str) -> bool:
        """Tell whether a file may contain one of the needles. If that is not known, it may."""
        return self._names is None or path in self._names

    async def close(self) -> None:
        """End the work in progress."""
        self._is_closed = True
        self._is_done.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _begin(self, query: SearchQuery, needles: RequiredWords) -> None:
        # The search may be over by now.
        if not self._is_closed:
            self._task = self._loop.create_task(self._find_out(query, needles))

    async def _find_out(self, query: SearchQuery, needles: RequiredWords) -> None:
        try:
            self._names = await names(self._sandbox, self._workspace, query, needles)
        finally:
            self._is_done.set()


async def names(
    sandbox: Sandbox, workspace: Workspace, query: SearchQuery, needles: RequiredWords
) -> frozenset[str] | None:
    """Return the paths of all files of up to `MAX_FILE_BYTES` that may contain one of the needles, and of some others.

    None if they cannot be determined.
    """
    try:
        job = await asyncio.to_thread(_job, sandbox, workspace, query, needles)
        outcome = await sandbox.run(job) if job is not None else None
    except PalyraError:
        return None
    return _file_names(outcome, prefix=prefix_of(query.folder)) if outcome is not None else None


def _file_names(outcome: ProgramOutcome, *, prefix: str) -> frozenset[str] | None:
    # It reports an error for a file that it cannot read. The daemon may be able to read it.
    is_whole = outcome.exit_code in (0, 1) and not outcome.stopped and not outcome.stdout.left_out
    if not is_whole or outcome.stderr.head:
        return None
    result = outcome.stdout.head.split(b"\0")
    return frozenset(prefix + os.fsdecode(name.removeprefix(b"./")) for name in result if name)


def _job(sandbox: Sandbox, workspace: Workspace, query: SearchQuery, needles: RequiredWords) -> SandboxJob | None:
    program, pattern = find(PROGRAM), pattern_of(needles)
    if program is None or not pattern or (query.glob and not _UNCHANGING.fullmatch(query.glob)):
        return None
    with workspace.reach(query.folder) as at:
        if at.name is not None:
            return None
        root, folder = at.root, Path(at.path)
    return SandboxJob(
        argv=(program, *_options(query, needles), f"--regexp={pattern}", "--", "./"),
        roots=(root,),
        folder=folder,
        read_only=True,
        bounds=replace(
            sandbox.bounds,
            wall=WALL,
            memory_bytes=min(MEMORY_BYTES, sandbox.bounds.memory_bytes),
            file_bytes=0,
            temporary_bytes=MIB,
            head_bytes=ANSWER_BYTES,
            tail_bytes=0,
        ),
    )


def _options(query: SearchQuery, needles: RequiredWords) -> list[str]:
    lines = ["--no-config", "--no-follow", "--no-ignore", "--hidden", "--text", "--encoding=none", "--color=never"]
    lines += ["--files-with-matches", "--null", "--ignore-case" if needles.any_case else "--case-sensitive"]
    lines += [f"--max-filesize={search.MAX_FILE_BYTES}", f"--max-depth={MAX_DEPTH}"]
    lines += [f"--threads={min(THREADS, os.cpu_count() or 1)}"]
    if query.glob:
        lines.append(f"--glob={query.glob}")
    # The last one counts. With the slash at its end it means folders only.
    return [*lines, *(f"--glob=!{name}/" for name in sorted(SKIPPED_FOLDERS))]


def pattern_of(needles: RequiredWords) -> str:
    """Return the search pattern: the longest piece of each needle that both treat alike; empty if one has none."""
    usable = _ANY_CASE if needles.any_case else _THIS_CASE
    pieces = [max(usable.findall(word), key=len, default="")[:MAX_NEEDLE_CHARS] for word in needles.words]
    return "|".join(_spelled(piece, any_case=needles.any_case) for piece in pieces) if all(pieces) else ""


def _spelled(text: str, *, any_case: bool) -> str:
    return "".join(_letter(char, any_case=any_case) for char in text)


def _letter(char: str, *, any_case: bool) -> str:
    if any_case and char in "iI\u0131\u0130":
        # The two differ on whether the dot counts.
        return "[i\u0131\u0130]"
    # By its number: which characters may follow a backslash differs between versions.
    return char if char.isalnum() or ord(char) > 0x7F else f"\\x{{{ord(char):x}}}"
