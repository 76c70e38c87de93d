"""File checkpoints: files as they were right before they were changed."""

from palyra.core.artifact import FileCheckpoint
from palyra.core.clock import from_ms, to_ms
from palyra.core.errors import NotFound
from palyra.core.ids import CallId, PrincipalId, RunId, SessionId
from palyra.journal.content import blobs
from palyra.journal.content.blobs import PackedContent
from palyra.journal.engines.base import Connection, Row

LAST = "~"
"""Sorts after every id."""

_COLUMNS = (
    "checkpoint_id, principal, session_id, run_id, call_id, what, root, path, before_digest, before_mode, after_digest,"
    " restores, at_ms"
)


class FileCheckpointNotFound(NotFound):
    """You have no such file checkpoint. `palyra files history` lists yours."""


def add(conn: Connection, checkpoint: FileCheckpoint, before: PackedContent | None) -> None:
    """Store the content of a file before it is changed; None if the file does not exist yet."""
    if before is not None:
        blobs.put(conn, before, now_ms=to_ms(checkpoint.at))
    conn.execute(
        f"INSERT INTO checkpoints ({_COLUMNS}) VALUES (:checkpoint_id, :principal, :session_id, :run_id, :call_id,"
        " :what, :root, :path, :before_digest, :before_mode, :after_digest, :restores, :at_ms)",
        {
            "checkpoint_id": checkpoint.checkpoint_id,
            "principal": checkpoint.principal,
            "session_id": checkpoint.session_id,
            "run_id": checkpoint.run_id,
            "call_id": checkpoint.call_id,
            "what": checkpoint.what,
            "root": checkpoint.root,
            "path": checkpoint.path,
            "before_digest": checkpoint.before_digest,
            "before_mode": checkpoint.before_mode,
            "after_digest": checkpoint.after_digest,
            "restores": checkpoint.restores,
            "at_ms": to_ms(checkpoint.at),
        },
    )


def get(conn: Connection, checkpoint_id: str, principal: PrincipalId) -> FileCheckpoint:
    """Return the principal's file checkpoint of that id."""
    row = conn.fetch_one(
        f"SELECT {_COLUMNS} FROM checkpoints WHERE checkpoint_id = :checkpoint_id AND principal = :principal",
        {"checkpoint_id": checkpoint_id, "principal": principal},
    )
    if row is None:
        raise FileCheckpointNotFound
    return _checkpoint(row)


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
        f"SELECT {_COLUMNS} FROM checkpoints WHERE principal = :principal{conditions} AND checkpoint_id < :before"
        " ORDER BY checkpoint_id DESC LIMIT :limit",
        {**arguments, "principal": principal, "before": before, "limit": limit},
    )
    return [_checkpoint(row) for row in rows]


def of_call(conn: Connection, run_id: RunId, call_id: CallId) -> list[FileCheckpoint]:
    """Return the file checkpoints that a call made, in order."""
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM checkpoints WHERE run_id = :run_id AND call_id = :call_id ORDER BY checkpoint_id",
        {"run_id": run_id, "call_id": call_id},
    )
    return [_checkpoint(row) for row in rows]


def remove(conn: Connection, session_id: SessionId, *, limit: int) -> int:
    """Delete some file checkpoints of a session; return how many. Their content is swept later."""
    return conn.execute(
        "DELETE FROM checkpoints WHERE checkpoint_id IN"
        " (SELECT checkpoint_id FROM checkpoints WHERE session_id = :session_id LIMIT :limit)",
        {"session_id": session_id, "limit": limit},
    )


def _checkpoint(row: Row) -> FileCheckpoint:
    checkpoint_id, principal, session_id, run_id, call_id, what, root, path, before, mode, after, restores, at_ms = row
    return FileCheckpoint(
        checkpoint_id=checkpoint_id,
        principal=PrincipalId(principal),
        session_id=SessionId(session_id),
        run_id=RunId(run_id) if run_id is not None else None,
        call_id=CallId(call_id) if call_id is not None else None,
        what=what,
        root=root,
        path=path,
        before_digest=before,
        before_mode=mode,
        after_digest=after,
        restores=restores,
        at=from_ms(at_ms),
    )
