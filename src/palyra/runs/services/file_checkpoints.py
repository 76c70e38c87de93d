"""File checkpoints: list what was changed, compare, and restore a file."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from palyra.core.artifact import FileCheckpoint, FileState
from palyra.core.clock import Clock
from palyra.core.errors import Conflict, FileChanged
from palyra.core.ids import IdSource, PrincipalId, SessionId, parse_ulid
from palyra.core.policy import labels
from palyra.core.session import SessionNotFound
from palyra.core.session_events import FileCheckpointRestored
from palyra.journal.content import blobs, file_checkpoints, file_origins
from palyra.journal.content.file_origins import FileOrigin
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import sessions
from palyra.runs.labels.result_labels import digest_at
from palyra.runs.recording.session_writer import SessionWriter
from palyra.sandbox.files.file_changes import ExistingFile, FileChange, apply_changes, read_existing
from palyra.sandbox.files.workspace import Workspace
from palyra.tools.file_changes import describe_change


class FolderNotTrusted(Conflict):
    """The folder is inside one that counts as written by a program as a whole. Trust that folder, or `.` for the
    workspace.
    """


@dataclass(frozen=True, slots=True)
class FileComparison:
    """A file checkpoint, the state of its file now, and the diff that would restore the file."""

    checkpoint: FileCheckpoint
    state: FileState
    diff: str


@dataclass(frozen=True, slots=True)
class _FileInspection:
    compared: FileComparison
    content: ExistingFile
    before: bytes | None


class FileCheckpointService:
    """Lists, compares and restores a principal's file checkpoints."""

    def __init__(
        self, engine: Engine, *, workspace: Callable[[PrincipalId], Workspace], clock: Clock, ids: IdSource
    ) -> None:
        self._engine = engine
        self._workspace = workspace
        self._clock = clock
        self._ids = ids

    async def history(
        self,
        principal: PrincipalId,
        *,
        path: str | None = None,
        session_id: str | None = None,
        before: str | None = None,
        limit: int,
    ) -> list[FileCheckpoint]:
        """Return file checkpoints, the latest first; a path is absolute, or relative to the workspace."""
        requested_session_id = SessionId(parse_ulid(session_id, "session id")) if session_id is not None else None
        absolute = await asyncio.to_thread(_absolute, self._workspace(principal), path) if path is not None else None
        return await self._engine.read(
            lambda conn: file_checkpoints.page(
                conn,
                principal,
                path=absolute,
                session_id=requested_session_id,
                before=before or file_checkpoints.LAST,
                limit=limit,
            )
        )

    async def compare(self, principal: PrincipalId, checkpoint_id: str) -> FileComparison:
        """Return a file checkpoint and the state of its file now."""
        return (await self._inspect(principal, checkpoint_id)).compared

    async def restore(
        self, principal: PrincipalId, checkpoint_id: str, *, force: bool
    ) -> tuple[FileComparison, FileCheckpoint]:
        """Restore a file to its content at a file checkpoint; return the state found, and the checkpoint that keeps it.

        A file that was changed since is only overwritten with `force`. A file that already has that content stays, and
        its own file checkpoint is returned.
        """
        looked = await self._inspect(principal, checkpoint_id)
        file_checkpoint = looked.compared.checkpoint
        if looked.compared.state is FileState.AS_BEFORE:
            return looked.compared, file_checkpoint
        if looked.compared.state is FileState.CHANGED_SINCE and not force:
            raise FileChanged(
                f"{file_checkpoint.path} was changed again after that file checkpoint. Check the diff, then use "
                "force to overwrite it."
            )
        stored_file_checkpoint = await self._keep(file_checkpoint, looked.content)
        change = FileChange(looked.content, looked.before, file_checkpoint.before_mode)
        await asyncio.to_thread(apply_changes, self._reach(file_checkpoint), [change])
        await self._note(file_checkpoint, stored_file_checkpoint)
        return looked.compared, stored_file_checkpoint

    async def trust(self, principal: PrincipalId, path: str) -> int:
        """Trust the content of a file, or everything in a folder, as the principal's own, whatever wrote it.

        Return how many entries of files and folders had labels.
        """
        location = await asyncio.to_thread(_absolute, self._workspace(principal), path)
        digest = await asyncio.to_thread(digest_at, location)
        since = self._ids.new()

        def unit(conn: Connection) -> int:
            forgotten = file_origins.trust(conn, principal, location)
            above = file_origins.folders_around(conn, principal, location)
            if above and digest is None:
                raise FolderNotTrusted
            if digest is not None:
                # By its content, which may be known from elsewhere, or be in a folder that is not trusted.
                file_origins.remember(conn, principal, FileOrigin(location, digest, (labels.OWNER,), since))
            return forgotten

        return await self._engine.write(unit)

    async def _inspect(self, principal: PrincipalId, checkpoint_id: str) -> _FileInspection:
        requested = parse_ulid(checkpoint_id, "checkpoint id")

        def query(conn: Connection) -> tuple[FileCheckpoint, bytes | None]:
            checkpoint = file_checkpoints.get(conn, requested, principal)
            return checkpoint, file_checkpoints.content(conn, checkpoint)

        checkpoint, before = await self._engine.read(query)
        return await asyncio.to_thread(_inspect, self._reach(checkpoint), checkpoint, before)

    def _reach(self, checkpoint: FileCheckpoint) -> Workspace:
        """Return the folder that the file was in, with the same paths out of reach as for any tool."""
        return self._workspace(checkpoint.principal).within((Path(checkpoint.root),))

    async def _keep(self, restored: FileCheckpoint, existing: ExistingFile) -> FileCheckpoint:
        packed = await asyncio.to_thread(blobs.pack, existing.content.data) if existing.content is not None else None
        file_checkpoint = FileCheckpoint(
            checkpoint_id=self._ids.new(),
            principal=restored.principal,
            session_id=restored.session_id,
            run_id=None,
            call_id=None,
            what="restore",
            root=restored.root,
            path=restored.path,
            before_digest=packed.digest if packed is not None else None,
            before_mode=existing.content.mode if existing.content is not None else None,
            after_digest=restored.before_digest,
            restores=restored.checkpoint_id,
            at=self._clock.now(),
        )
        await self._engine.write(lambda conn: file_checkpoints.add(conn, file_checkpoint, packed))
        return file_checkpoint

    async def _note(self, restored: FileCheckpoint, file_checkpoint: FileCheckpoint) -> None:
        """Record the restore, after it was done, so that the tape is true."""
        event = FileCheckpointRestored(
            at=self._clock.now(),
            actor=restored.principal,
            checkpoint_id=restored.checkpoint_id,
            path=restored.path,
            saved_as=file_checkpoint.checkpoint_id,
            digest=restored.before_digest,
        )

        def unit(conn: Connection) -> None:
            # A session that is rotated takes its file checkpoints with it, perhaps at this moment.
            if sessions.get(conn, restored.session_id, restored.principal) is None:
                raise SessionNotFound
            writer = SessionWriter.open(conn, restored.session_id, ids=self._ids)
            writer.note(event)
            writer.close()

        await self._engine.write(unit)


def _absolute(workspace: Workspace, path: str) -> str:
    with workspace.reach(path, absent=True) as at:
        return at.path


def _inspect(workspace: Workspace, checkpoint: FileCheckpoint, before: bytes | None) -> _FileInspection:
    existing = read_existing(workspace, checkpoint.path)
    now = blobs.digest_of(existing.content.data) if existing.content is not None else None
    if now == checkpoint.before_digest:
        state = FileState.AS_BEFORE
    elif now == checkpoint.after_digest:
        state = FileState.AS_CHANGED
    else:
        state = FileState.CHANGED_SINCE
    return _FileInspection(FileComparison(checkpoint, state, describe_change(existing, before)), existing, before)
