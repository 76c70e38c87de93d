"""File checkpoints: files as they were right before they were changed."""

from palyra.core.artifact import FileCheckpoint
from palyra.core.clock import to_ms
from palyra.core.errors import NotFound
from palyra.core.ids import CallId, PrincipalId, RunId, SessionId
from palyra.journal.content import blobs
from palyra.journal.content.blobs import PackedContent
from palyra.journal.engines.base import Connection
from palyra.journal.row_mapping import RowMapping

LAST = "~"
"""Sorts after every id."""

_ROWS = RowMapping(FileCheckpoint, "checkpoints", renamed={"at": "at_ms"})


class FileCheckpointNotFound(NotFound):
    """You have no such file checkpoint. `palyra files history` lists yours."""


def add(conn: Connection, checkpoint: FileCheckpoint, before: PackedContent | None) -> None:
    """Store the content of a file before it is changed; None if the file does not exist yet."""
    if before is not None:
        blobs.put(conn, before, now_ms=to_ms(checkpoint.at))
    conn.execute(_ROWS.insert, _ROWS.write(checkpoint))


def get(conn: Connection, checkpoint_id: str, principal: PrincipalId) -> FileCheckpoint:
    """Return the principal's file checkpoint of that id."""
    row = conn.fetch_one(
        f"{_ROWS.select} WHERE checkpoint_id = :checkpoint_id AND principal = :principal",
        {"checkpoint_id": checkpoint_id, "principal": principal},
    )
    if row is None:
        raise FileCheckpointNotFound
    return _ROWS.read(row)


def content(conn: Connection, checkpoint: FileCheckpoint) -> bytes | None:
    """Return the content of the file, None if there was no file. The caller has checked whose checkpoint it is."""
    return None if checkpoint.before_digest is None else blobs.get(conn, checkpoint.before_digest)


def page(
    conn: Connection,
    principal: PrincipalId,
    *,
    path: str | None = None,
    session_id: SessionId | None = None,
    before: str = LAST,
    limit: int,
) -> list[FileCheckpoint]:
    """Return the principal's file checkpoints, the latest first: all, those of one file, or those of one session."""
    document = {"path": path, "session_id": session_id}
    arguments = {name: value for name, value in document.items() if value is not None}
    conditions = "".join(f" AND {name} = :{name}" for name in arguments)
    rows = conn.fetch(
        f"{_ROWS.select} WHERE principal = :principal{conditions} AND checkpoint_id < :before"
        " ORDER BY checkpoint_id DESC LIMIT :limit",
        {**arguments, "principal": principal, "before": before, "limit": limit},
    )
    return [_ROWS.read(row) for row in rows]


def of_call(conn: Connection, run_id: RunId, call_id: CallId) -> list[FileCheckpoint]:
    """Return the file checkpoints that a call made, in order."""
    rows = conn.fetch(
        f"{_ROWS.select} WHERE run_id = :run_id AND call_id = :call_id ORDER BY checkpoint_id",
        {"run_id": run_id, "call_id": call_id},
    )
    return [_ROWS.read(row) for row in rows]


def remove(conn: Connection, session_id: SessionId, *, limit: int) -> int:
    """Delete some file checkpoints of a session; return how many. Their content is swept later."""
    return conn.execute(
        "DELETE FROM checkpoints WHERE checkpoint_id IN"
        " (SELECT checkpoint_id FROM checkpoints WHERE session_id = :session_id LIMIT :limit)",
        {"session_id": session_id, "limit": limit},
    )
