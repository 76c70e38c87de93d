"""Labels what programs write: files are trusted as little as the program that may have written them.

The labels of a program are those of its call and of everything that it can read when it starts. If they are above
`tool`, the folders that it may change are marked with them before it starts. When it has ended, what is new or changed
there gets the labels, and the marks go in the same commit. If the daemon is killed in between, or more was changed than
can be listed, the marks stay: then everything in the folders counts as written by the program.

Programs that run at the same time can read what the others write. So a program that gets labels passes them on to every
other one that shares a folder with it, before it starts; and a call that is under way then has them in its result, if
it read from those folders.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field

from palyra.core import labels
from palyra.core.errors import PalyraError
from palyra.core.ids import IdSource, PrincipalId
from palyra.journal import file_origins
from palyra.journal.engine import Connection, Engine
from palyra.journal.file_origins import FOR_GOOD, FileOrigin, WrittenFolder
from palyra.runs.learned import digest_at, labels_of_files
from palyra.sandbox import snapshot
from palyra.sandbox.snapshot import Changes, Snapshot, TooLarge, is_within, outermost
from palyra.tools.witness import Witness

MAX_ROWS = 2000
"""So many changed files of a program are remembered one by one; more by the folders that they lie in."""
MAX_DIGESTS = 50
"""So many of them are remembered by their content too, so that a copy is recognised."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Program:
    """A program that runs, or is about to."""

    program_id: str
    call: "CallWriting"
    folders: tuple[str, ...]
    labels: tuple[str, ...] = ()
    """Empty as long as what it writes needs none."""
    before: Snapshot | None = None
    """What lay in its folders before it could read anything with labels; None also if that is too much."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def principal(self) -> PrincipalId:
        return self.call.principal

    def shares_a_folder(self, paths: Iterable[str]) -> bool:
        return any(is_within(path, own) or is_within(own, path) for path in paths for own in self.folders)


class WrittenLabels:
    """Knows every call under way, and the programs that they run. There is one for all calls of a daemon."""

    def __init__(self, engine: Engine, *, ids: IdSource) -> None:
        self._engine = engine
        self._ids = ids
        self._programs: set[_Program] = set()
        self._calls: set[CallWriting] = set()

    @contextmanager
    def call(self, principal: PrincipalId, origin: tuple[str, ...]) -> Iterator["CallWriting"]:
        """Stand around a call; `origin` says where its arguments come from."""
        call = CallWriting(self, principal, origin or (labels.UNKNOWN,))
        call.met.update(program for program in self._programs if program.labels)
        self._calls.add(call)
        try:
            yield call
        finally:
            self._calls.discard(call)

    @asynccontextmanager
    async def program(self, call: "CallWriting", witness: Witness, folders: tuple[str, ...]) -> AsyncIterator[None]:
        """See `Writing.program`."""
        program = _Program(self._ids.new(), call, outermost(folders))
        if folders:
            self._programs.add(program)
        try:
            # Looked up before it starts: what it deletes or moves it can still have read.
            read = labels.join(tuple(witness.labels), await labels_of_files(self._engine, call.principal, witness))
            witness.labels.update(read)
            of_program = labels.join(call.origin, read)
            if folders and _is_untrusted(of_program):
                await self._label(program, of_program)
            yield
        finally:
            self._programs.discard(program)
            await _to_the_end(self._settle(program))

    async def _label(self, program: _Program, added: tuple[str, ...]) -> None:
        """Give labels to a program and to all that can read what it writes; return when the marks are durable."""
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
                with suppress(TooLarge, OSError):
                    program.before = await asyncio.to_thread(snapshot.take, program.folders)
        for call in self._calls:
            call.met.add(program)
        for other in list(self._programs):
            if other.principal == program.principal and other.shares_a_folder(program.folders):
                await self._label(other, joined)

    async def _settle(self, program: _Program) -> None:
        """Write down what a program with labels has changed; where that cannot be told, all that it could change."""
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
                gone = await asyncio.to_thread(_missing, stale)
                if gone:
                    await self._engine.write(lambda conn: file_origins.forget(conn, program.principal, gone, digest=""))
            except PalyraError as error:
                # The marks stay, as if the daemon had been killed.
                _log.warning("what a program wrote in %s is not known: %s", ", ".join(program.folders), error.detail)


class CallWriting:
    """The `Writing` of one call."""

    def __init__(self, every: WrittenLabels, principal: PrincipalId, origin: tuple[str, ...]) -> None:
        self._every = every
        self.principal = principal
        self.origin = origin
        self.met: set[_Program] = set()
        """Programs with labels that ran at any time during the call."""

    def program(self, witness: Witness, folders: tuple[str, ...]) -> AbstractAsyncContextManager[None]:
        """See `Writing.program`."""
        return self._every.program(self, witness, folders)

    def met_by(self, witness: Witness) -> tuple[str, ...]:
        """See `Writing.met_by`."""
        read = witness.files | witness.folders
        others = (program for program in self.met if program.call is not self and program.shares_a_folder(read))
        return labels.join(*(program.labels for program in others))


@dataclass(frozen=True, slots=True)
class _Written:
    """What a program has changed: file by file, and folders of which no more is known."""

    origins: list[FileOrigin]
    folders: list[WrittenFolder]


def _written(program: _Program) -> _Written:
    """Find out what a program has changed. Blocks."""
    changes: Changes | None = None
    with suppress(TooLarge, OSError):
        changes = snapshot.changes_since(program.before) if program.before is not None else None
    if changes is None:
        return _whole(program, program.folders)
    entries, folders = changes.entries, list(changes.hidden)
    if len(entries) > MAX_ROWS:
        made = set(changes.new_folders)
        folders += changes.new_folders
        entries = [entry for entry in entries if made.isdisjoint(_and_above(entry))]
    if len(entries) + len(changes.listings) + len(folders) > MAX_ROWS:
        return _whole(program, program.folders)
    digests = {path: digest_at(path) or "" for path in entries[:MAX_DIGESTS]}
    contents = [(path, digests.get(path, "")) for path in entries]
    contents += [(f"{path}/", "") for path in changes.listings]
    origins = [FileOrigin(path, digest, program.labels, program.program_id) for path, digest in contents]
    return _Written(origins, _whole(program, folders).folders)


def _whole(program: _Program, folders: Iterable[str]) -> _Written:
    marks = [WrittenFolder(f"{path.rstrip('/')}/", program.labels, FOR_GOOD) for path in outermost(folders)]
    return _Written([], marks)


def _and_above(path: str) -> Iterator[str]:
    while len(path) > 1:
        yield path
        path = path.rpartition("/")[0]


def _unknown_contents(conn: Connection, program: _Program) -> list[str]:
    """Return the paths in a program's folders at which any content counts as labelled."""
    rows = (file_origins.below(conn, program.principal, folder) for folder in program.folders)
    return [row.path for group in rows for row in group if not row.digest]


def _missing(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if not os.path.lexists(path)]


def _is_untrusted(present: tuple[str, ...]) -> bool:
    """Tell whether what comes of these labels is no longer the owner's: the owner's own programs make owner's files."""
    return labels.rank(labels.least_trusted(present)) > labels.rank(labels.TOOL)


async def _to_the_end(work: Coroutine[None, None, None]) -> None:
    """Wait until work has ended, also when cancelled meanwhile; the cancellation then goes on."""
    # Not in a group: a group would cancel it.
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
