"""A place in memory for what calls keep."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from palyra.core.attestation import FullResult
from palyra.journal.content.artifacts import ArtifactNotFound
from palyra.journal.content.blobs import digest_of
from palyra.sandbox.files.file_changes import FileChange
from palyra.tools.call_storage import ContentSlice, EarlierAttempt

KEPT_ID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@dataclass
class Shelf:
    """A `Keeping` that a test can look into."""

    spilt: list[bytes] = field(default_factory=list)
    checkpoints: list[EarlierAttempt] = field(default_factory=list)
    is_repeated: bool = False
    """The call was interrupted before: what it kept then is told."""

    async def spill(self, data: bytes) -> FullResult:
        self.spilt.append(data)
        return FullResult(artifact_id=KEPT_ID, digest=digest_of(data), size=len(data))

    async def read(self, artifact_id: str, *, start: int, length: int) -> ContentSlice:
        if artifact_id != KEPT_ID or not self.spilt:
            raise ArtifactNotFound
        return ContentSlice(self.spilt[-1][start : start + length], len(self.spilt[-1]))

    async def checkpoint(self, changes: Sequence[FileChange]) -> None:
        for change in changes:
            content = change.existing.content
            self.checkpoints.append(
                EarlierAttempt(
                    path=change.existing.path,
                    before=content.data if content is not None else None,
                    mode=content.mode if content is not None else None,
                    before_digest=digest_of(content.data) if content is not None else None,
                    after_digest=digest_of(change.after) if change.after is not None else None,
                )
            )

    async def earlier(self) -> tuple[EarlierAttempt, ...]:
        return tuple(self.checkpoints) if self.is_repeated else ()
