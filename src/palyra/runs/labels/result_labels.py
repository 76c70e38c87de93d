"""Where the result of a call comes from: the tool itself, and everything it has read."""

import asyncio
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from palyra.core.artifact import MAX_KEPT_BYTES
from palyra.core.ids import PrincipalId
from palyra.core.policy import labels
from palyra.journal.content import file_origins
from palyra.journal.content.blobs import digest_of
from palyra.journal.content.file_origins import FileOrigin, WrittenFolder
from palyra.journal.engines.base import Connection, Engine
from palyra.sandbox.files.snapshot import is_text
from palyra.tools.base import Tool
from palyra.tools.execution_record import ExecutionRecorder

MIN_COPIED_CHARS = 16
"""Contents of at least this many bytes are recognised elsewhere."""
MAX_FILES_CHECKED = 200
"""Up to this many files are compared with their known contents; with more, every known origin counts."""


async def labels_of_result(
    engine: Engine, principal: PrincipalId, tool: Tool | None, witness: ExecutionRecorder
) -> tuple[str, ...]:
    """Return the labels of a result: those of the tool, and of every file that may be part of it."""
    own = tool.label if tool is not None else labels.TOOL
    files = await labels_of_files(engine, principal, witness)
    return labels.join((own,), tuple(witness.labels), files, witness.writing.met_by(witness))


async def labels_of_files(engine: Engine, principal: PrincipalId, witness: ExecutionRecorder) -> tuple[str, ...]:
    """Return the labels of the files that a call has read so far; none if all of them are the owner's."""
    if not witness.files and not witness.folders:
        return ()
    files, folders = (sorted(filter(is_text, paths)) for paths in (witness.files, witness.folders))
    # A path that is not valid text cannot be looked up.
    odd = (labels.UNKNOWN,) if len(files) + len(folders) < len(witness.files) + len(witness.folders) else ()

    def query(conn: Connection) -> tuple[list[_KnownFile], list[FileOrigin], list[WrittenFolder]]:
        read = [_known(conn, principal, path) for path in files]
        rows = [row for folder in folders for row in file_origins.below(conn, principal, folder)]
        marked = [one for folder in folders for one in file_origins.folders_touching(conn, principal, folder)]
        return read, rows, marked

    read, below, marked = await engine.read(query)
    matches = labels.join(odd, labels.mixed_label(*(one.labels for one in marked)))
    if below or any(one.contents or one.around for one in read):
        matches = labels.join(matches, await asyncio.to_thread(_labels_now, read, below))
    copies = {one.path for one in read if not one.contents}
    return labels.join(matches, await _labels_of_copies(engine, principal, copies))


@dataclass(frozen=True, slots=True)
class _KnownFile:
    """What is known about a file that was read."""

    path: str
    contents: list[FileOrigin]
    around: list[WrittenFolder]


def _known(conn: Connection, principal: PrincipalId, path: str) -> _KnownFile:
    around = file_origins.folders_around(conn, principal, path)
    return _KnownFile(path, file_origins.of_path(conn, principal, path), around)


async def _labels_of_copies(engine: Engine, principal: PrincipalId, paths: set[str]) -> tuple[str, ...]:
    """Return the labels of files that were moved or copied: the content is known, but not at this path."""
    digests = await asyncio.to_thread(_digests, sorted(paths)[:MAX_FILES_CHECKED]) if paths else ()

    def query(conn: Connection) -> tuple[str, ...]:
        cached_file_origins = [one for digest in digests for one in file_origins.of_digest(conn, principal, digest)]
        return labels.mixed_label(*(one.labels for one in cached_file_origins))

    return await engine.read(query) if digests else ()


def _digests(paths: list[str]) -> tuple[str, ...]:
    # Very short contents are often equal by chance.
    long = (path for path in paths if os.path.isfile(path) and os.path.getsize(path) >= MIN_COPIED_CHARS)
    return tuple(digest for path in long if (digest := digest_at(path)) is not None)


def scan_result(text: str) -> tuple[str, ...]:
    """Return the scanners' findings for a result. Blocks for some milliseconds."""
    # Imported with the first result: a daemon that has run no tool does not need the expressions.
    from palyra.core.text.scanner import scan_text

    return scan_text(text)


def _labels_now(read: Sequence[_KnownFile], below: Iterable[FileOrigin]) -> tuple[str, ...]:
    """Return the labels of the files that were read, and of the files now below the folders.

    A file that was read counts with its last known labels even if it no longer exists.
    """
    matches = [file_origins.labels_of(one.contents, _known_digest(one.path, one.contents), one.around) for one in read]
    by_path = {path: list(contents) for path, contents in groupby(below, key=lambda one: one.path)}
    if len(by_path) > MAX_FILES_CHECKED:
        matches += [one.labels for contents in by_path.values() for one in contents]
    else:
        target = ((path, contents) for path, contents in by_path.items() if os.path.lexists(path))
        matches += [file_origins.labels_of(contents, _known_digest(path, contents)) for path, contents in target]
    return labels.mixed_label(*(one for one in matches if one is not None))


def _known_digest(path: str, contents: Iterable[FileOrigin]) -> str | None:
    return digest_at(path) if any(one.digest for one in contents) else None


def digest_at(path: str) -> str | None:
    """Return the digest of a plain file; None if it is not one, or too large for a tool to have written it."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(opened, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            data = file.read(MAX_KEPT_BYTES + 1)
    except OSError:
        return None
    return digest_of(data) if len(data) <= MAX_KEPT_BYTES else None
