"""File checkpoints, as the HTTP API takes and returns them."""

from collections.abc import Sequence

from msgspec import Struct

from palyra.core.artifact import FileCheckpoint, FileState


class RestoreRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a file is restored."""

    force: bool = False
    """Restore it even if it was changed since."""


class TrustRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is trusted from now on."""

    path: str
    """A file or folder: absolute, or relative to the workspace."""


class TrustResponse(Struct, frozen=True, kw_only=True):
    """What was labels_removed."""

    labels_removed: int
    """How many entries of files and folders had labels."""


class FileCheckpointPage(Struct, frozen=True, kw_only=True):
    """File checkpoints, the latest first."""

    checkpoints: Sequence[FileCheckpoint]
    next_cursor: str | None = None


class FileCheckpointResponse(Struct, frozen=True, kw_only=True):
    """A file checkpoint, the state of its file now, and the diff that would restore it."""

    checkpoint: FileCheckpoint
    state: FileState
    diff: str


class RestoreResponse(Struct, frozen=True, kw_only=True):
    """What was restored: the diff that was applied, empty if the file was already like this."""

    checkpoint: FileCheckpoint
    diff: str
    saved_as: str
    """The file checkpoint that holds the content from before the restore."""
