"""Labels the files that programs write: a file is trusted as little as the program that may have written it.

The labels of a program are those of its call and of everything that it can read when it starts. If they are above
`tool`, the folders that it may change are marked with them before it starts. When it has ended, new and changed files
there get the labels, and the marks are removed in the same commit. If the daemon is killed in between, or more was
changed than can be listed, the marks stay: then everything in the folders counts as written by the program.

Programs that run at the same time can read what the others write. So a program that gets labels passes them on to every
other one that shares a folder with it, before it starts; and a call that is running then has them in its result, if
it read from those folders.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field

from palyra.core.errors import PalyraError
from palyra.core.ids import IdSource, PrincipalId
from palyra.core.policy import labels
from palyra.journal.content import file_origins
from palyra.journal.content.file_origins import FOR_GOOD, FileOrigin, WrittenFolder
from palyra.journal.engines.base import Connection, Engine
from palyra.runs.labels.result_labels import digest_at, labels_of_files
from palyra.sandbox.files import snapshot
from palyra.sandbox.files.snapshot import FolderChanges, FolderSnapshot, SnapshotTooLarge, is_within, outermost
from palyra.tools.execution_record import ExecutionRecorder

MAX_ROWS = 2000
"""Up to this many changed files of a program are recorded one by one; more are recorded by their folders."""
MAX_DIGESTS = 50
"""Up to this many of them are also recorded by content, so that a copy is recognised."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _RunningProgram:
    """A program that is running, or about to start."""

    program_id: str
    call: "CallWriteLabels"
    folders: tuple[str, ...]
    labels: tuple[str, ...] = ()
    """Empty as long as its files need no labels."""
    before: FolderSnapshot | None = None
    """The files in its folders before it could read anything with labels; None also if there are too many."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def principal(self) -> PrincipalId:
        return self.call.principal

    def shares_a_folder(self, paths: Iterable[str]) -> bool:
        return any(is_within(path, own) or is_within(own, path) for path in paths for own in self.folders)


class WrittenLabels:
    """Knows all running calls, and the programs that they run. There is one for all calls of a daemon."""

    def __init__(self, engine: Engine, *, ids: IdSource) -> None:
        self._engine = engine
        self._ids = ids
        self._programs: set[_RunningProgram] = set()
        self._calls: set[CallWriteLabels] = set()

    @contextmanager
    def call(self, principal: PrincipalId, origin: tuple[str, ...]) -> Iterator["CallWriteLabels"]:
        """Wrap a call; `origin` says where its arguments come from."""
        call = CallWriteLabels(self, principal, origin or (labels.UNKNOWN,))
        call.met.update(program for program in self._programs if program.labels)
        self._calls.add(call)
        try:
            yield call
        finally:
            self._calls.discard(call)

    @asynccontextmanager
    async def program(
        self, call: "CallWriteLabels", witness: ExecutionRecorder, folders: tuple[str, ...]
    ) -> AsyncIterator[None]:
        """See `WriteLabels.program`."""
        program = _RunningProgram(self._ids.new(), call, outermost(folders))
        if folders:
            self._programs.add(program)
        try:
            # Read before it starts: it can still have read what it deletes or moves.
            read = labels.join(tuple(witness.labels), await labels_of_files(self._engine, call.principal, witness))
            witness.labels.update(read)
            of_program = labels.join(call.origin, read)
            if folders and _is_untrusted(of_program):
                await self._label(program, of_program)
            yield
        finally:
            self._programs.discard(program)
            await _to_the_end(self._settle(program))

    async def _label(self, program: _RunningProgram, added: tuple[str, ...]) -> None:
        """Give labels to a program and to all that can read its files; return when the marks are durable."""
        async with program.lock:
            joined = labels.join(program.labels, added)
            if joined == program.labels:
                return
            first, program.labels = not program.labels, joined

            def unit(conn: Connection) -> None:
                for folder in program.folders:
                    mark = WrittenFolder(f"{folder.rstrip('/')}/", joined, program.program_id)
                    file_origins.mark_folder(conn, program.principal, mark)

            await self._engine.write(unit)
            if first:
                with suppress(SnapshotTooLarge, OSError):
                    program.before = await asyncio.to_thread(snapshot.take, program.folders)
        for call in self._calls:
            call.met.add(program)
        for other in list(self._programs):
            if other.principal == program.principal and other.shares_a_folder(program.folders):
                await self._label(other, joined)

    async def _settle(self, program: _RunningProgram) -> None:
        """Record what a program with labels has changed; where that is unknown, everything that it could change."""
        async with program.lock:
            if not program.labels:
                return
            written = await asyncio.to_thread(_written, program)

            def unit(conn: Connection) -> None:
                file_origins.unmark_folders(conn, program.principal, since=program.program_id)
                file_origins.remember(conn, program.principal, *written.origins)
                for folder in written.folders:
                    file_origins.mark_folder(conn, program.principal, folder)

            try:
                await self._engine.write(unit)
                stale = await self._engine.read(lambda conn: _unknown_contents(conn, program))
                names = await asyncio.to_thread(_missing, stale)
                if names:
                    await self._engine.write(
                        lambda conn: file_origins.forget(conn, program.principal, names, digest="")
                    )
            except PalyraError as error:
                # The marks stay, as if the daemon had been killed.
                _log.warning(
                    "cannot tell which files a program wrote in %s: %s", ", ".join(program.folders), error.detail
                )


class CallWriteLabels:
    """The `WriteLabels` of one call."""

    def __init__(self, every: WrittenLabels, principal: PrincipalId, origin: tuple[str, ...]) -> None:
        self._every = every
        self.principal = principal
        self.origin = origin
        self.met: set[_RunningProgram] = set()
        """Programs with labels that ran at any time during the call."""

    def program(self, witness: ExecutionRecorder, folders: tuple[str, ...]) -> AbstractAsyncContextManager[None]:
        """See `WriteLabels.program`."""
        return self._every.program(self, witness, folders)

    def met_by(self, witness: ExecutionRecorder) -> tuple[str, ...]:
        """See `WriteLabels.met_by`."""
        read = witness.files | witness.folders
        others = (program for program in self.met if program.call is not self and program.shares_a_folder(read))
        return labels.join(*(program.labels for program in others))


@dataclass(frozen=True, slots=True)
class _ProgramWrites:
    """What a program has changed: single files, and folders without details."""

    origins: list[FileOrigin]
    folders: list[WrittenFolder]


def _written(program: _RunningProgram) -> _ProgramWrites:
    """Find what a program has changed. Blocks."""
    changes: FolderChanges | None = None
    with suppress(SnapshotTooLarge, OSError):
        changes = snapshot.changes_since(program.before) if program.before is not None else None
    if changes is None:
        return _folder_writes(program, program.folders)
    entries, folders = changes.entries, list(changes.hidden)
    if len(entries) > MAX_ROWS:
        made = set(changes.new_folders)
        folders += changes.new_folders
        entries = [entry for entry in entries if made.isdisjoint(_and_above(entry))]
    if len(entries) + len(changes.listings) + len(folders) > MAX_ROWS:
        return _folder_writes(program, program.folders)
    digests = {path: digest_at(path) or "" for path in entries[:MAX_DIGESTS]}
    contents = [(path, digests.get(path, "")) for path in entries]
    contents += [(f"{path}/", "") for path in changes.listings]
    origins = [FileOrigin(path, digest, program.labels, program.program_id) for path, digest in contents]
    return _ProgramWrites(origins, _folder_writes(program, folders).folders)


def _folder_writes(program: _RunningProgram, folders: Iterable[str]) -> _ProgramWrites:
    marks = [WrittenFolder(f"{path.rstrip('/')}/", program.labels, FOR_GOOD) for path in outermost(folders)]
    return _ProgramWrites([], marks)


def _and_above(path: str) -> Iterator[str]:
    while len(path) > 1:
        yield path
        path = path.rpartition("/")[0]


def _unknown_contents(conn: Connection, program: _RunningProgram) -> list[str]:
    """Return the paths in a program's folders at which any content counts as labelled."""
    rows = (file_origins.below(conn, program.principal, folder) for folder in program.folders)
    return [row.path for group in rows for row in group if not row.digest]


def _missing(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if not os.path.lexists(path)]


def _is_untrusted(present: tuple[str, ...]) -> bool:
    """Tell whether files with these labels are not the owner's: the owner's own programs write owner's files."""
    return labels.rank(labels.least_trusted(present)) > labels.rank(labels.TOOL)


async def _to_the_end(work: Coroutine[None, None, None]) -> None:
    """Wait until work has ended, even if cancelled meanwhile; the cancellation is then passed on."""
    # Not in a task group, which would cancel it.
    task = asyncio.get_running_loop().create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError
