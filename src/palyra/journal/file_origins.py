"""Where the content of files came from that tools have written.

A file of the workspace is the owner's, unless a tool made it of something else. Then its content is known here by its
digest, so that a file that is brought back has the labels of what it holds then. A content that is not known at a path
that is was changed by somebody since: it counts as what was last written there.
"""

from collections.abc import Sequence

from msgspec import Struct

from palyra.core.ids import PrincipalId
from palyra.journal.engine import Connection, Row

MOST_OF_A_PATH = 50
"""How many contents of one path are remembered."""

_COLUMNS = "path, digest, labels, since"


class FileOrigin(Struct, frozen=True):
    """A content that a path has held."""

    path: str
    digest: str
    labels: tuple[str, ...]
    since: str
    """The checkpoint of the change; empty for what was there before the first."""


def remember(conn: Connection, principal: PrincipalId, origin: FileOrigin) -> None:
    """Write down what a path is about to hold."""
    conn.execute(
        f"INSERT INTO file_origins (principal, {_COLUMNS}) VALUES (:principal, :path, :digest, :labels, :since)"
        " ON CONFLICT (principal, path, digest) DO UPDATE SET labels = excluded.labels, since = excluded.since",
        {
            "principal": principal,
            "path": origin.path,
            "digest": origin.digest,
            "labels": ",".join(origin.labels),
            "since": origin.since,
        },
    )
    conn.execute(
        "DELETE FROM file_origins WHERE principal = :principal AND path = :path AND since <> '' AND since NOT IN"
        " (SELECT since FROM file_origins WHERE principal = :principal AND path = :path"
        " ORDER BY since DESC LIMIT :most)",
        {"principal": principal, "path": origin.path, "most": MOST_OF_A_PATH},
    )


def of_path(conn: Connection, principal: PrincipalId, path: str) -> list[FileOrigin]:
    """Return the contents that are known of a path, the latest last."""
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM file_origins WHERE principal = :principal AND path = :path ORDER BY since",
        {"principal": principal, "path": path},
    )
    return [_origin(row) for row in rows]


def below(conn: Connection, principal: PrincipalId, folder: str) -> list[FileOrigin]:
    """Return the contents that are known of every path below a folder, the latest of each path last."""
    prefix = folder.rstrip("/") + "/"
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM file_origins WHERE principal = :principal AND substr(path, 1, :length) = :prefix"
        " ORDER BY path, since",
        {"principal": principal, "prefix": prefix, "length": len(prefix)},
    )
    return [_origin(row) for row in rows]


def of_digest(conn: Connection, principal: PrincipalId, digest: str) -> list[FileOrigin]:
    """Return where else a content is known from."""
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM file_origins WHERE principal = :principal AND digest = :digest ORDER BY since",
        {"principal": principal, "digest": digest},
    )
    return [_origin(row) for row in rows]


def labels_of(known: Sequence[FileOrigin], digest: str | None) -> tuple[str, ...] | None:
    """Return the labels of a content, given what is known of its path; None if nothing is."""
    if not known:
        return None
    return next((one.labels for one in known if one.digest == digest), known[-1].labels)


def _origin(row: Row) -> FileOrigin:
    return FileOrigin(row[0], row[1], tuple(row[2].split(",")) if row[2] else (), row[3])
