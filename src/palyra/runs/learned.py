"""Where the result of a call comes from: the tool itself, and whatever it has read on the way."""

import asyncio
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from palyra.core import labels
from palyra.core.artifact import MAX_KEPT_BYTES
from palyra.core.ids import PrincipalId
from palyra.journal import file_origins
from palyra.journal.blobs import digest_of
from palyra.journal.engine import Connection, Engine
from palyra.journal.file_origins import FileOrigin, WrittenFolder
from palyra.tools.base import Tool
from palyra.tools.witness import Witness

SHORTEST_COPY = 16
"""Bytes from which on a content is recognised elsewhere."""
MOST_LOOKED_AT = 200
"""So many files are compared with what is known of them; of more, everything that is known counts."""


async def labels_of_result(
    engine: Engine, principal: PrincipalId, tool: Tool | None, witness: Witness
) -> tuple[str, ...]:
    """Return the labels of a result: those of the tool, and of every file that may be part of it."""
    own = tool.label if tool is not None else labels.TOOL
    files = await labels_of_files(engine, principal, witness)
    return labels.join((own,), tuple(witness.labels), files, witness.writing.met_by(witness))


async def labels_of_files(engine: Engine, principal: PrincipalId, witness: Witness) -> tuple[str, ...]:
    """Return the labels of what a call has read of files so far; none if all of it is the owner's."""
    if not witness.files and not witness.folders:
        return ()
    files, folders = (sorted(filter(_is_text, paths)) for paths in (witness.files, witness.folders))
    # A path that is not valid text cannot be looked up.
    odd = (labels.UNKNOWN,) if len(files) + len(folders) < len(witness.files) + len(witness.folders) else ()

    def query(conn: Connection) -> tuple[list[_Known], list[FileOrigin], list[WrittenFolder]]:
        read = [_known(conn, principal, path) for path in files]
        rows = [row for folder in folders for row in file_origins.below(conn, principal, folder)]
        marked = [one for folder in folders for one in file_origins.folders_touching(conn, principal, folder)]
        return read, rows, marked

    read, below, marked = await engine.read(query)
    found = labels.join(odd, labels.mixed(*(one.labels for one in marked)))
    if below or any(one.contents or one.around for one in read):
        found = labels.join(found, await asyncio.to_thread(_labels_now, read, below))
    copies = {one.path for one in read if not one.contents}
    return labels.join(found, await _labels_of_copies(engine, principal, copies))


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a file that was read."""

    path: str
    contents: list[FileOrigin]
    around: list[WrittenFolder]


def _known(conn: Connection, principal: PrincipalId, path: str) -> _Known:
    around = file_origins.folders_around(conn, principal, path)
    return _Known(path, file_origins.of_path(conn, principal, path), around)


async def _labels_of_copies(engine: Engine, principal: PrincipalId, paths: set[str]) -> tuple[str, ...]:
    """Return the labels of files that were moved or copied: the content is known, though not at this path."""
    digests = await asyncio.to_thread(_digests, sorted(paths)[:MOST_LOOKED_AT]) if paths else ()

    def query(conn: Connection) -> tuple[str, ...]:
        known = [one for digest in digests for one in file_origins.of_digest(conn, principal, digest)]
        return labels.mixed(*(one.labels for one in known))

    return await engine.read(query) if digests else ()


def _digests(paths: list[str]) -> tuple[str, ...]:
    # What is very short is often the same by chance.
    long = (path for path in paths if os.path.isfile(path) and os.path.getsize(path) >= SHORTEST_COPY)
    return tuple(digest for path in long if (digest := digest_at(path)) is not None)


def scanned(text: str) -> tuple[str, ...]:
    """Return what scanners find in a result. Blocks for some milliseconds."""
    # Imported with the first result: a daemon that has run no tool does without the expressions.
    from palyra.core.scan import signals_of

    return signals_of(text)


def _labels_now(read: Sequence[_Known], below: Iterable[FileOrigin]) -> tuple[str, ...]:
    """Return the labels of the files that were read, and of what lies below folders at this moment.

    A file that was read counts as what was last known of it even if it is gone by now.
    """
    found = [file_origins.labels_of(one.contents, _known_digest(one.path, one.contents), one.around) for one in read]
    by_path = {path: list(contents) for path, contents in groupby(below, key=lambda one: one.path)}
    if len(by_path) > MOST_LOOKED_AT:
        found += [one.labels for contents in by_path.values() for one in contents]
    else:
        there = ((path, contents) for path, contents in by_path.items() if os.path.lexists(path))
        found += [file_origins.labels_of(contents, _known_digest(path, contents)) for path, contents in there]
    return labels.mixed(*(one for one in found if one is not None))


def _known_digest(path: str, contents: Iterable[FileOrigin]) -> str | None:
    return digest_at(path) if any(one.digest for one in contents) else None


def digest_at(path: str) -> str | None:
    """Return the digest of a plain file, None if it is none, or too large for a tool to have written it."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(opened, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            data = file.read(MAX_KEPT_BYTES + 1)
    except OSError:
        return None
    return digest_of(data) if len(data) <= MAX_KEPT_BYTES else None


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
