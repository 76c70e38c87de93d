"""Stores what a call leaves behind: long results in full, and files as they were before a change."""

import asyncio
from collections.abc import Callable, Sequence

from palyra.core.artifact import Artifact, FileCheckpoint
from palyra.core.attestation import FullResult
from palyra.core.clock import Clock
from palyra.core.events import ToolFinished
from palyra.core.ids import CallId, IdSource, RunId
from palyra.core.policy import labels
from palyra.core.run.state import RunState
from palyra.core.tool import ToolCall
from palyra.journal import tape
from palyra.journal.content import artifacts, blobs, file_checkpoints, file_origins
from palyra.journal.content.blobs import PackedContent
from palyra.journal.content.file_origins import FileOrigin
from palyra.journal.engines.base import Connection, Engine
from palyra.runs.services.sealing import SealingUnit
from palyra.sandbox.files.file_changes import FileChange
from palyra.tools.call_storage import ContentSlice, EarlierAttempt


class JournalCallStorage:
    """The `CallStorage` of one call: everything it stores belongs to its principal, and is deleted with its session."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock,
        ids: IdSource,
        state: RunState,
        call: ToolCall,
        sealing: SealingUnit,
        fence: Callable[[Connection], None],
        origin: tuple[str, ...] = (),
    ) -> None:
        """`origin` says where the arguments of the call come from; `sealing` takes the secrets out of its result.

        `fence` raises if another worker has taken over the run.
        """
        self._origin = origin
        self._sealing = sealing
        self._fence = fence
        self._engine = engine
        self._clock = clock
        self._ids = ids
        self._state = state
        self._call = call

    async def spill(self, data: bytes) -> FullResult:
        """Store a result in full, and return its id and description."""
        packed = await asyncio.to_thread(blobs.pack, data)
        artifact = Artifact(
            artifact_id=self._ids.new(),
            principal=self._state.principal,
            session_id=self._state.session_id,
            run_id=self._state.run_id,
            call_id=self._call.call_id,
            what=self._call.tool,
            digest=packed.digest,
            size=packed.size,
            made_at=self._clock.now(),
        )

        def unit(conn: Connection) -> None:
            artifacts.add(conn, artifact, packed)
            self._sealing.keep(conn, artifact.session_id)

        await self._engine.write(unit)
        return FullResult(artifact_id=artifact.artifact_id, digest=packed.digest, size=packed.size)

    async def read(self, artifact_id: str, *, start: int, length: int) -> ContentSlice:
        """Return a slice of one of the principal's artifacts."""

        def query(conn: Connection) -> ContentSlice:
            artifact, data = artifacts.read(conn, artifact_id, self._state.principal, start=start, length=length)
            return ContentSlice(data, artifact.size, _labels_of_result(conn, artifact.run_id, artifact.call_id))

        return await self._engine.read(query)

    async def checkpoint(self, changes: Sequence[FileChange]) -> None:
        """Store the contents of files before they are changed, and the origin of their new contents, in one commit."""
        packed = await asyncio.to_thread(_packed, changes)
        stored = [
            (
                FileCheckpoint(
                    checkpoint_id=self._ids.new(),
                    principal=self._state.principal,
                    session_id=self._state.session_id,
                    run_id=self._state.run_id,
                    call_id=self._call.call_id,
                    what=self._call.tool,
                    root=change.existing.root,
                    path=change.existing.path,
                    before_digest=before.digest if before is not None else None,
                    before_mode=change.existing.content.mode if change.existing.content is not None else None,
                    after_digest=blobs.digest_of(change.after) if change.after is not None else None,
                    at=self._clock.now(),
                ),
                before,
            )
            for change, before in zip(changes, packed, strict=True)
        ]

        def unit(conn: Connection) -> None:
            # The change follows this commit. A worker that was frozen and lost its lease must not make it.
            self._fence(conn)
            for change, (checkpoint, before) in zip(changes, stored, strict=True):
                file_checkpoints.add(conn, checkpoint, before)
                self._remember(conn, change, checkpoint)

        await self._engine.write(unit)

    def _remember(self, conn: Connection, change: FileChange, checkpoint: FileCheckpoint) -> None:
        """Record where the new content of a file comes from, unless it is the owner's and no other labels are known."""
        principal, path, after = self._state.principal, checkpoint.path, change.after
        if after is None or checkpoint.after_digest is None:
            return
        cached_file_origins = file_origins.of_path(conn, principal, path)
        around = file_origins.folders_around(conn, principal, path)
        before = checkpoint.before_digest
        target = file_origins.labels_of(cached_file_origins, before, around) or (labels.OWNER,)
        origin = self._origin or (labels.UNKNOWN,)
        if before is not None and not _is_fully_written(after, self._call):
            origin = labels.join(origin, target)
        if not cached_file_origins and not around and origin == (labels.OWNER,):
            return
        if before is not None and all(one.digest != before for one in cached_file_origins):
            # The old content may be restored later; it then has its old labels again.
            since = cached_file_origins[-1].since if cached_file_origins else ""
            file_origins.remember(conn, principal, FileOrigin(path, before, target, since))
        made = FileOrigin(path, checkpoint.after_digest, origin, checkpoint.checkpoint_id)
        file_origins.remember(conn, principal, made)

    async def earlier(self) -> tuple[EarlierAttempt, ...]:
        """Return the file checkpoints of earlier attempts of this call, the latest for each file."""

        def query(conn: Connection) -> tuple[EarlierAttempt, ...]:
            matching_file_checkpoints = file_checkpoints.of_call(conn, self._state.run_id, self._call.call_id)
            latest = {checkpoint.path: checkpoint for checkpoint in matching_file_checkpoints}
            return tuple(
                EarlierAttempt(
                    path=one.path,
                    before=file_checkpoints.content(conn, one),
                    mode=one.before_mode,
                    before_digest=one.before_digest,
                    after_digest=one.after_digest,
                )
                for one in latest.values()
            )

        return await self._engine.read(query)


def _is_fully_written(after: bytes, call: ToolCall) -> bool:
    """Tell whether the file will hold only text from the call's own arguments."""
    return any(isinstance(value, str) and value.encode(errors="replace") == after for value in call.arguments.values())


def _labels_of_result(conn: Connection, run_id: RunId, call_id: CallId) -> tuple[str, ...]:
    """Return the labels of a call's result; none if its tape does not say."""
    for entry in reversed(tape.of_run(conn, run_id)):
        if entry.kind == "tool_finished":
            event = entry.event
            if isinstance(event, ToolFinished) and event.call_id == call_id:
                return event.labels
    return ()


def _packed(changes: Sequence[FileChange]) -> list[PackedContent | None]:
    file_contents = (change.existing.content for change in changes)
    return [blobs.pack(content.data) if content is not None else None for content in file_contents]
