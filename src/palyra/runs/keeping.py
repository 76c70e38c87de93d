"""Keeps what a call leaves behind: the whole of a long result, and files as they were before."""

import asyncio
from collections.abc import Sequence

from palyra.core.artifact import Artifact, Checkpoint
from palyra.core.attestation import Whole
from palyra.core.clock import Clock
from palyra.core.ids import IdSource
from palyra.core.run import RunState
from palyra.core.tool import ToolCall
from palyra.journal import artifacts, blobs, checkpoints
from palyra.journal.blobs import Packed
from palyra.journal.engine import Connection, Engine
from palyra.sandbox.writing import Change
from palyra.tools.keeping import Earlier, Slice


class CallKeeping:
    """The `Keeping` of one call: all that it keeps is its principal's, and goes with its session."""

    def __init__(self, engine: Engine, *, clock: Clock, ids: IdSource, state: RunState, call: ToolCall) -> None:
        self._engine = engine
        self._clock = clock
        self._ids = ids
        self._state = state
        self._call = call

    async def spill(self, data: bytes) -> Whole:
        """Keep a result, and return where and what it is."""
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
        await self._engine.write(lambda conn: artifacts.add(conn, artifact, packed))
        return Whole(artifact_id=artifact.artifact_id, digest=packed.digest, size=packed.size)

    async def read(self, artifact_id: str, *, start: int, length: int) -> Slice:
        """Return a slice of one of the principal's artifacts."""
        artifact, data = await self._engine.read(
            lambda conn: artifacts.read(conn, artifact_id, self._state.principal, start=start, length=length)
        )
        return Slice(data, artifact.size)

    async def checkpoint(self, changes: Sequence[Change]) -> None:
        """Keep what the files hold before they are changed, all in one commit."""
        packed = await asyncio.to_thread(_packed, changes)
        kept = [
            (
                Checkpoint(
                    checkpoint_id=self._ids.new(),
                    principal=self._state.principal,
                    session_id=self._state.session_id,
                    run_id=self._state.run_id,
                    call_id=self._call.call_id,
                    what=self._call.tool,
                    root=change.found.root,
                    path=change.found.path,
                    before_digest=before.digest if before is not None else None,
                    before_mode=change.found.content.mode if change.found.content is not None else None,
                    after_digest=blobs.digest_of(change.after) if change.after is not None else None,
                    at=self._clock.now(),
                ),
                before,
            )
            for change, before in zip(changes, packed, strict=True)
        ]

        def unit(conn: Connection) -> None:
            for checkpoint, before in kept:
                checkpoints.add(conn, checkpoint, before)

        await self._engine.write(unit)

    async def earlier(self) -> tuple[Earlier, ...]:
        """Return what earlier attempts of this call kept, the latest for each file."""

        def query(conn: Connection) -> tuple[Earlier, ...]:
            found = checkpoints.of_call(conn, self._state.run_id, self._call.call_id)
            latest = {checkpoint.path: checkpoint for checkpoint in found}
            return tuple(
                Earlier(
                    path=one.path,
                    before=checkpoints.content(conn, one),
                    mode=one.before_mode,
                    before_digest=one.before_digest,
                    after_digest=one.after_digest,
                )
                for one in latest.values()
            )

        return await self._engine.read(query)


def _packed(changes: Sequence[Change]) -> list[Packed | None]:
    found = (change.found.content for change in changes)
    return [blobs.pack(content.data) if content is not None else None for content in found]
