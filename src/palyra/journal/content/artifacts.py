"""Artifacts: tool results that were too long to be passed to the model in full."""

from palyra.core.artifact import Artifact
from palyra.core.attestation import FullResult
from palyra.core.clock import to_ms
from palyra.core.errors import NotFound
from palyra.core.ids import PrincipalId, SessionId
from palyra.journal.content import blobs
from palyra.journal.content.blobs import PackedContent
from palyra.journal.engines.base import Connection
from palyra.journal.row_mapping import RowMapping

_ROWS = RowMapping(Artifact, "artifacts")


class ArtifactNotFound(NotFound):
    """You have no such artifact. Give the id that the truncated result names."""


def add(conn: Connection, artifact: Artifact, packed: PackedContent) -> None:
    """Store a result."""
    blobs.put(conn, packed, now_ms=to_ms(artifact.made_at))
    conn.execute(_ROWS.insert, _ROWS.write(artifact))


def get(conn: Connection, artifact_id: str, principal: PrincipalId) -> Artifact:
    """Return the principal's artifact of that id."""
    row = conn.fetch_one(
        f"{_ROWS.select} WHERE artifact_id = :artifact_id AND principal = :principal",
        {"artifact_id": artifact_id, "principal": principal},
    )
    if row is None:
        raise ArtifactNotFound
    return _ROWS.read(row)


def read_all(conn: Connection, artifact_id: str) -> FullResult | None:
    """Return the content of an artifact, of any principal; None if there is none."""
    row = conn.fetch_one(
        "SELECT artifact_id, digest, size FROM artifacts WHERE artifact_id = :artifact_id", {"artifact_id": artifact_id}
    )
    return FullResult(artifact_id=row[0], digest=row[1], size=row[2]) if row is not None else None


def read(
    conn: Connection, artifact_id: str, principal: PrincipalId, *, start: int, length: int
) -> tuple[Artifact, bytes]:
    """Return the principal's artifact of that id, and a slice of its content."""
    artifact = get(conn, artifact_id, principal)
    return artifact, blobs.get(conn, artifact.digest, start=start, length=length)


def remove(conn: Connection, session_id: SessionId, *, limit: int) -> int:
    """Delete some artifacts of a session; return how many. Their content is swept later."""
    return conn.execute(
        "DELETE FROM artifacts WHERE artifact_id IN"
        " (SELECT artifact_id FROM artifacts WHERE session_id = :session_id LIMIT :limit)",
        {"session_id": session_id, "limit": limit},
    )
