"""Where the content of files that tools have written came from.

A file of the workspace is the owner's, unless a tool wrote it from something else. Then its content is recorded here
by its digest, so that a restored file gets the labels of its content. An unknown content at a known path was changed
by another program since: it gets the labels of what was last written there.

What a program with labels has changed is recorded by its path, and by its digest where that was cheap to compute.
Where the changed files are not known, a whole folder has the labels (`WrittenFolder`).
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from palyra.core.ids import PrincipalId
from palyra.core.policy import labels as label
from palyra.journal.engines.base import Connection, Row

MAX_ORIGINS_PER_PATH = 50
"""How many contents of one path are recorded."""

FOR_GOOD = ""
"""Replaces the program in a mark that stays when the program has ended."""

_COLUMNS = "path, digest, labels, since"


class FileOrigin(Struct, frozen=True):
    """One content that a path has held."""

    path: str
    """A path that ends in a slash means the entries of a folder: their names and attributes, not their contents."""
    digest: str
    """Empty if it is not known."""
    labels: tuple[str, ...]
    since: str
    """The file checkpoint of the change, or the program that made it; empty for the content before the first."""


class WrittenFolder(Struct, frozen=True):
    """A folder in which everything counts as written by a program."""

    path: str
    """Ends in a slash."""
    labels: tuple[str, ...]
    since: str
    """The program that runs, or ran when the daemon was killed; `FOR_GOOD` for one that has ended."""


def remember(conn: Connection, principal: PrincipalId, *origins: FileOrigin) -> None:
    """Record what paths hold, or are about to hold."""
    rows = [
        {
            "principal": principal,
            "path": origin.path,
            "digest": origin.digest,
            "labels": ",".join(origin.labels),
            "since": origin.since,
        }
        for origin in origins
    ]
    conn.execute_many(
        f"INSERT INTO file_origins (principal, {_COLUMNS}) VALUES (:principal, :path, :digest, :labels, :since)"
        " ON CONFLICT (principal, path, digest) DO UPDATE SET labels = excluded.labels, since = excluded.since",
        rows,
    )
    conn.execute_many(
        "DELETE FROM file_origins WHERE principal = :principal AND path = :path AND since <> '' AND since NOT IN"
        " (SELECT since FROM file_origins WHERE principal = :principal AND path = :path"
        " ORDER BY since DESC LIMIT :most)",
        [{"principal": principal, "path": origin.path, "most": MAX_ORIGINS_PER_PATH} for origin in origins],
    )


def of_path(conn: Connection, principal: PrincipalId, path: str) -> list[FileOrigin]:
    """Return the recorded contents of a path, the latest last."""
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM file_origins WHERE principal = :principal AND path = :path ORDER BY since",
        {"principal": principal, "path": path},
    )
    return [_origin(row) for row in rows]


def below(conn: Connection, principal: PrincipalId, folder: str) -> list[FileOrigin]:
    """Return the recorded contents of every path below a folder, the latest of each path last."""
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


def labels_of(
    file_origins: Sequence[FileOrigin], digest: str | None, around: Sequence[WrittenFolder] = ()
) -> tuple[str, ...] | None:
    """Return the labels of a content, from the records of its path and of the folders that contain it.

    None if there are no records. A known content has its own labels; any other gets those of the latest, and those of
    the folders.
    """
    same = [one.labels for one in file_origins if digest and one.digest == digest]
    if same or not (file_origins or around):
        return same[0] if same else None
    return label.mixed_label(*(one.labels for one in file_origins[-1:]), *(one.labels for one in around))


def forget(conn: Connection, principal: PrincipalId, paths: Iterable[str], *, digest: str) -> None:
    """Delete one content of each of these paths."""
    conn.execute_many(
        "DELETE FROM file_origins WHERE principal = :principal AND path = :path AND digest = :digest",
        [{"principal": principal, "path": path, "digest": digest} for path in paths],
    )


def trust(conn: Connection, principal: PrincipalId, path: str) -> int:
    """Delete all records of a path and of everything below it; return how many there were."""
    prefix = path.rstrip("/") + "/"
    of_path = {"principal": principal, "path": path, "prefix": prefix, "length": len(prefix)}
    where = "WHERE principal = :principal AND (path = :path OR substr(path, 1, :length) = :prefix)"
    return conn.execute(f"DELETE FROM file_origins {where}", of_path) + conn.execute(
        f"DELETE FROM written_folders {where}", of_path
    )


def mark_folder(conn: Connection, principal: PrincipalId, folder: WrittenFolder) -> None:
    """Record that everything below a folder counts as written by a program; labels that it already has stay."""
    marked = folders_around(conn, principal, folder.path)
    same = (one.labels for one in marked if (one.path, one.since) == (folder.path, folder.since))
    joined = label.join(folder.labels, *same)
    conn.execute(
        "INSERT INTO written_folders (principal, path, labels, since) VALUES (:principal, :path, :labels, :since)"
        " ON CONFLICT (principal, since, path) DO UPDATE SET labels = excluded.labels",
        {"principal": principal, "path": folder.path, "labels": ",".join(joined), "since": folder.since},
    )


def unmark_folders(conn: Connection, principal: PrincipalId, *, since: str) -> None:
    """Delete the marks of a program's folders: its changes are now recorded."""
    conn.execute(
        "DELETE FROM written_folders WHERE principal = :principal AND since = :since",
        {"principal": principal, "since": since},
    )


def folders_around(conn: Connection, principal: PrincipalId, path: str) -> list[WrittenFolder]:
    """Return the marked folders that a path is, or is in."""
    rows = conn.fetch(
        "SELECT path, labels, since FROM written_folders WHERE principal = :principal"
        " AND substr(CAST(:path AS TEXT), 1, length(path)) = path ORDER BY since, path",
        {"principal": principal, "path": path.rstrip("/") + "/"},
    )
    return [_folder(row) for row in rows]


def folders_touching(conn: Connection, principal: PrincipalId, folder: str) -> list[WrittenFolder]:
    """Return the marked folders that a folder is, is in, or contains."""
    prefix = folder.rstrip("/") + "/"
    rows = conn.fetch(
        "SELECT path, labels, since FROM written_folders WHERE principal = :principal"
        " AND substr(path, 1, :length) = :prefix ORDER BY since, path",
        {"principal": principal, "prefix": prefix, "length": len(prefix)},
    )
    return [*folders_around(conn, principal, folder), *map(_folder, rows)]


def _origin(row: Row) -> FileOrigin:
    return FileOrigin(row[0], row[1], _labels(row[2]), row[3])


def _folder(row: Row) -> WrittenFolder:
    return WrittenFolder(row[0], _labels(row[1]), row[2])


def _labels(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()
