"""Where the result of a call comes from: the tool itself, and whatever it has read on the way."""

import asyncio
import os
import stat
from collections.abc import Iterable
from itertools import groupby

from palyra.core import labels
from palyra.core.artifact import MAX_KEPT_BYTES
from palyra.core.ids import PrincipalId
from palyra.journal import file_origins
from palyra.journal.blobs import digest_of
from palyra.journal.engine import Connection, Engine
from palyra.journal.file_origins import FileOrigin
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
    found = labels.join((tool.label if tool is not None else labels.TOOL,), tuple(witness.labels))
    if not witness.files and not witness.folders:
        return found

    def query(conn: Connection) -> list[FileOrigin]:
        read = [file_origins.of_path(conn, principal, path) for path in sorted(witness.files)]
        seen = [file_origins.below(conn, principal, folder) for folder in sorted(witness.folders)]
        return [one for contents in (*read, *seen) for one in contents]

    known = await engine.read(query)
    if known:
        found = labels.join(found, await asyncio.to_thread(_labels_now, known))
    return labels.join(found, await _labels_of_copies(engine, principal, witness.files - {one.path for one in known}))


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
    return tuple(digest for path in long if (digest := _digest(path)) is not None)


def scanned(text: str) -> tuple[str, ...]:
    """Return what scanners find in a result. Blocks for some milliseconds."""
    # Imported with the first result: a daemon that has run no tool does without the expressions.
    from palyra.core.scan import signals_of

    return signals_of(text)


def _labels_now(known: Iterable[FileOrigin]) -> tuple[str, ...]:
    """Return the labels of what the files hold at this moment; one that is gone tells nothing."""
    by_path = {path: list(contents) for path, contents in groupby(known, key=lambda one: one.path)}
    if len(by_path) > MOST_LOOKED_AT:
        return labels.mixed(*(one.labels for contents in by_path.values() for one in contents))
    there = [(contents, os.path.lexists(path), path) for path, contents in by_path.items()]
    present = [file_origins.labels_of(contents, _digest(path)) or () for contents, exists, path in there if exists]
    return labels.mixed(*present)


def _digest(path: str) -> str | None:
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
