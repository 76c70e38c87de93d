"""What a call leaves behind beside its result: the whole of a long one, and files as they were before it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from palyra.core.attestation import Whole
from palyra.core.errors import Broken
from palyra.sandbox.writing import Change


class NothingKept(Broken):
    """There is no place to keep what was there before, so nothing was changed."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A piece of what was kept, and the size of the whole."""

    data: bytes
    size: int
    labels: tuple[str, ...] = ()
    """Where it came from."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an interrupted attempt of the same call kept of a file, and what it was about to make of it."""

    path: str
    before: bytes | None
    mode: int | None
    before_digest: str | None
    after_digest: str | None


class Keeping(Protocol):
    """Keeps things for one call, as things of its principal; returns when they are durable."""

    async def spill(self, data: bytes) -> Whole | None:
        """Keep a result, and return where and what it is; None if nothing is kept here."""
        ...

    async def read(self, artifact_id: str, *, start: int, length: int) -> Slice:
        """Return a slice of an artifact; `ArtifactNotFound` if the principal has none of that id."""
        ...

    async def checkpoint(self, changes: Sequence[Change]) -> None:
        """Keep what the files hold before they are changed, and where that comes from which they get, in one commit."""
        ...

    async def earlier(self) -> tuple[Earlier, ...]:
        """Return what earlier attempts of this call kept, the latest for each file."""
        ...


class Nowhere:
    """Keeps nothing: for contexts in which nothing is carried out."""

    async def spill(self, data: bytes) -> Whole | None:
        return None

    async def read(self, artifact_id: str, *, start: int, length: int) -> Slice:
        raise NothingKept

    async def checkpoint(self, changes: Sequence[Change]) -> None:
        raise NothingKept

    async def earlier(self) -> tuple[Earlier, ...]:
        return ()


NOWHERE = Nowhere()
