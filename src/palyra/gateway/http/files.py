"""Files as they were, over HTTP: what was changed, the diff back, and bringing a file back."""

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from palyra.core.artifact import Checkpoint
from palyra.core.ids import PrincipalId
from palyra.gateway.http.operation import CURSOR, LIMIT, Operation, Query
from palyra.gateway.http.wire import MAX_PAGE, body, number, reply
from palyra.runs.files import Files, Standing


class RestoreRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a file is brought back."""

    force: bool = False
    """Also if it was changed again since."""


class TrustRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is trusted from now on."""

    path: str
    """A file or folder: absolute, or as it is called in the workspace."""


class TrustedAnswer(Struct, frozen=True, kw_only=True):
    """What was forgotten."""

    forgotten: int
    """How many entries of files and folders had labels."""


class CheckpointsPage(Struct, frozen=True, kw_only=True):
    """Checkpoints, the latest first."""

    checkpoints: list[Checkpoint]
    next_cursor: str | None


class CheckpointAnswer(Struct, frozen=True, kw_only=True):
    """A checkpoint, how its file stands now, and the diff that would bring it back."""

    checkpoint: Checkpoint
    standing: Standing
    diff: str


class RestoredAnswer(Struct, frozen=True, kw_only=True):
    """What was brought back: the diff that was made, empty if the file was like this already."""

    checkpoint: Checkpoint
    diff: str
    kept_as: str
    """The checkpoint that holds what was there until then."""


class FileRoutes:
    """The operations that concern files as they were."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def operations(self) -> list[Operation]:
        every, one = "/console/v1/files/checkpoints", "/console/v1/files/checkpoints/{checkpoint_id}"
        path = Query("path", "string", "Only those of one file: absolute, or as it is called in the workspace.")
        session = Query("session_id", "string", "Only those that a session made.")
        return [
            Operation(
                "GET",
                every,
                self.index,
                "List files as they were before each change.",
                query=(path, session, LIMIT, CURSOR),
                answer=CheckpointsPage,
            ),
            Operation("GET", one, self.show, "Compare a file with what it was.", answer=CheckpointAnswer),
            Operation(
                "POST",
                f"{one}/restore",
                self.restore,
                "Bring a file back to what it was.",
                need="write",
                body=RestoreRequest,
                answer=RestoredAnswer,
            ),
            Operation(
                "POST",
                "/console/v1/files/trust",
                self.trust,
                "Take what a file or folder holds now for your own, whatever wrote it.",
                need="write",
                body=TrustRequest,
                answer=TrustedAnswer,
            ),
        ]

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        """List checkpoints, the latest first."""
        limit = number(request, "limit", default=50, most=MAX_PAGE)
        asked = request.query_params
        found = await self._files.history(
            principal,
            path=asked.get("path"),
            session_id=asked.get("session_id"),
            before=asked.get("cursor"),
            limit=limit,
        )
        last = found[-1].checkpoint_id if len(found) == limit else None
        return reply(CheckpointsPage(checkpoints=found, next_cursor=last))

    async def show(self, request: Request, principal: PrincipalId) -> Response:
        """Compare a file with what it was at a checkpoint."""
        found = await self._files.compare(principal, request.path_params["checkpoint_id"])
        return reply(CheckpointAnswer(checkpoint=found.checkpoint, standing=found.standing, diff=found.diff))

    async def restore(self, request: Request, principal: PrincipalId) -> Response:
        """Bring a file back."""
        asked = await body(request, RestoreRequest)
        found, kept = await self._files.restore(principal, request.path_params["checkpoint_id"], force=asked.force)
        return reply(RestoredAnswer(checkpoint=found.checkpoint, diff=found.diff, kept_as=kept.checkpoint_id))

    async def trust(self, request: Request, principal: PrincipalId) -> Response:
        """Trust a file or folder."""
        asked = await body(request, TrustRequest)
        return reply(TrustedAnswer(forgotten=await self._files.trust(principal, asked.path)))
