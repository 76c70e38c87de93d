"""The doors to files as they were: what was changed, and bringing a file back."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from palyra.core import labels
from palyra.core.artifact import Checkpoint
from palyra.core.clock import Clock
from palyra.core.errors import Conflict
from palyra.core.events import CheckpointRestored
from palyra.core.ids import IdSource, PrincipalId, SessionId, parse_ulid
from palyra.journal import blobs, checkpoints, file_origins, sessions
from palyra.journal.engine import Connection, Engine
from palyra.journal.file_origins import FileOrigin
from palyra.runs.book import Book
from palyra.runs.learned import digest_at
from palyra.runs.sessions import SessionNotFound
from palyra.sandbox.workspace import Workspace
from palyra.sandbox.writing import Change, Found, carry_out, look
from palyra.tools.changes import described


class FileMovedOn(Conflict):
    """The file was changed again since that checkpoint; look at the diff, then force it if it is what you want."""


class FolderUntrusted(Conflict):
    """The folder lies in one that counts as written by a program in full. Trust that one, or `.` for the workspace."""


class Standing(StrEnum):
    """How a file stands to one of its checkpoints: as that change made it, as it was before, or changed again since."""

    CHANGED_BY_IT = "changed_by_it"
    AS_BEFORE = "as_before"
    MOVED_ON = "moved_on"


@dataclass(frozen=True, slots=True)
class Compared:
    """A checkpoint, how its file stands now, and the diff that would bring the file back."""

    checkpoint: Checkpoint
    standing: Standing
    diff: str


@dataclass(frozen=True, slots=True)
class _Looked:
    compared: Compared
    found: Found
    before: bytes | None


class Files:
    """What can be done with files as they were, for whoever speaks for a principal."""

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
    ) -> list[Checkpoint]:
        """Return checkpoints, the latest first; a path is absolute, or begins in the workspace."""
        wanted = SessionId(parse_ulid(session_id, "session id")) if session_id is not None else None
        place = parse_ulid(before, "cursor") if before is not None else checkpoints.LAST
        absolute = await asyncio.to_thread(_absolute, self._workspace(principal), path) if path is not None else None
        return await self._engine.read(
            lambda conn: checkpoints.page(conn, principal, path=absolute, session_id=wanted, before=place, limit=limit)
        )

    async def compare(self, principal: PrincipalId, checkpoint_id: str) -> Compared:
        """Return a checkpoint and how its file stands now."""
        return (await self._look(principal, checkpoint_id)).compared

    async def restore(self, principal: PrincipalId, checkpoint_id: str, *, force: bool) -> tuple[Compared, Checkpoint]:
        """Bring a file back to what it was at a checkpoint; return what was found, and the checkpoint that keeps it.

        A file that was changed since is only touched if `force` says so. One that is what it was already stays, and its
        own checkpoint is returned.
        """
        looked = await self._look(principal, checkpoint_id)
        wanted = looked.compared.checkpoint
        if looked.compared.standing is Standing.AS_BEFORE:
            return looked.compared, wanted
        if looked.compared.standing is Standing.MOVED_ON and not force:
            raise FileMovedOn(
                f"{wanted.path} was changed again since that checkpoint. Look at the diff, then force it if it is"
                " what you want."
            )
        kept = await self._keep(wanted, looked.found)
        change = Change(looked.found, looked.before, wanted.before_mode)
        await asyncio.to_thread(carry_out, self._reach(wanted), [change])
        await self._note(wanted, kept)
        return looked.compared, kept

    async def trust(self, principal: PrincipalId, path: str) -> int:
        """Take what a file holds now, or everything in a folder, for the principal's own, whatever wrote it.

        Return how many entries of files and folders had labels.
        """
        place = await asyncio.to_thread(_absolute, self._workspace(principal), path)
        digest = await asyncio.to_thread(digest_at, place)
        since = self._ids.new()

        def unit(conn: Connection) -> int:
            forgotten = file_origins.trust(conn, principal, place)
            above = file_origins.folders_around(conn, principal, place)
            if above and digest is None:
                raise FolderUntrusted
            if digest is not None:
                # By its content, which may be known from elsewhere, or lie in a folder that is not trusted.
                file_origins.remember(conn, principal, FileOrigin(place, digest, (labels.OWNER,), since))
            return forgotten

        return await self._engine.write(unit)

    async def _look(self, principal: PrincipalId, checkpoint_id: str) -> _Looked:
        wanted = parse_ulid(checkpoint_id, "checkpoint id")

        def query(conn: Connection) -> tuple[Checkpoint, bytes | None]:
            checkpoint = checkpoints.get(conn, wanted, principal)
            return checkpoint, checkpoints.content(conn, checkpoint)

        checkpoint, before = await self._engine.read(query)
        return await asyncio.to_thread(_looked, self._reach(checkpoint), checkpoint, before)

    def _reach(self, checkpoint: Checkpoint) -> Workspace:
        """Return the folder that the file lay in, with the same things out of reach as for any tool."""
        return self._workspace(checkpoint.principal).within((Path(checkpoint.root),))

    async def _keep(self, restored: Checkpoint, found: Found) -> Checkpoint:
        packed = await asyncio.to_thread(blobs.pack, found.content.data) if found.content is not None else None
        kept = Checkpoint(
            checkpoint_id=self._ids.new(),
            principal=restored.principal,
            session_id=restored.session_id,
            run_id=None,
            call_id=None,
            what="restore",
            root=restored.root,
            path=restored.path,
            before_digest=packed.digest if packed is not None else None,
            before_mode=found.content.mode if found.content is not None else None,
            after_digest=restored.before_digest,
            restores=restored.checkpoint_id,
            at=self._clock.now(),
        )
        await self._engine.write(lambda conn: checkpoints.add(conn, kept, packed))
        return kept

    async def _note(self, restored: Checkpoint, kept: Checkpoint) -> None:
        """Record what was done; after it was done, so that what stands on the tape is true."""
        event = CheckpointRestored(
            at=self._clock.now(),
            actor=restored.principal,
            checkpoint_id=restored.checkpoint_id,
            path=restored.path,
            kept_as=kept.checkpoint_id,
            digest=restored.before_digest,
        )

        def unit(conn: Connection) -> None:
            # A session that is rotated takes its checkpoints with it, perhaps in this very moment.
            if sessions.get(conn, restored.session_id, restored.principal) is None:
                raise SessionNotFound
            book = Book.open(conn, restored.session_id, ids=self._ids)
            book.note(event)
            book.close()

        await self._engine.write(unit)


def _absolute(workspace: Workspace, path: str) -> str:
    with workspace.reach(path, absent=True) as at:
        return at.path


def _looked(workspace: Workspace, checkpoint: Checkpoint, before: bytes | None) -> _Looked:
    found = look(workspace, checkpoint.path)
    now = blobs.digest_of(found.content.data) if found.content is not None else None
    if now == checkpoint.before_digest:
        standing = Standing.AS_BEFORE
    elif now == checkpoint.after_digest:
        standing = Standing.CHANGED_BY_IT
    else:
        standing = Standing.MOVED_ON
    return _Looked(Compared(checkpoint, standing, described(found, before)), found, before)
