"""What a call leaves behind besides its result: a long result in full, and files as they were before it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from palyra.core.attestation import FullResult
from palyra.core.errors import Internal
from palyra.sandbox.files.file_changes import FileChange


class FileCheckpointUnavailable(Internal):
    """The previous content cannot be stored, so nothing was changed."""


@dataclass(frozen=True, slots=True)
class ContentSlice:
    """A slice of stored content, and the total size."""

    data: bytes
    size: int
    labels: tuple[str, ...] = ()
    """Its labels: where it came from."""


@dataclass(frozen=True, slots=True)
class EarlierAttempt:
    """What an interrupted attempt of the same call stored of a file, and what it was about to write."""

    path: str
    before: bytes | None
    mode: int | None
    before_digest: str | None
    after_digest: str | None


class CallStorage(Protocol):
    """Stores things for one call, as its principal's; returns when they are durable."""

    async def spill(self, data: bytes) -> FullResult | None:
        """Store a result in full, and return its id and description; None if nothing is stored here."""
        ...

    async def read(self, artifact_id: str, *, start: int, length: int) -> ContentSlice:
        """Return a slice of an artifact; `ArtifactNotFound` if the principal has none of that id."""
        ...

    async def checkpoint(self, changes: Sequence[FileChange]) -> None:
        """Store the contents of files before they are changed, and the origin of their new contents, in one commit."""
        ...

    async def earlier(self) -> tuple[EarlierAttempt, ...]:
        """Return the file checkpoints of earlier attempts of this call, the latest for each file."""
        ...


class NoStorage:
    """Stores nothing: for contexts in which nothing is executed."""

    async def spill(self, data: bytes) -> FullResult | None:
        return None

    async def read(self, artifact_id: str, *, start: int, length: int) -> ContentSlice:
        raise FileCheckpointUnavailable

    async def checkpoint(self, changes: Sequence[FileChange]) -> None:
        raise FileCheckpointUnavailable

    async def earlier(self) -> tuple[EarlierAttempt, ...]:
        return ()


NO_STORAGE = NoStorage()
