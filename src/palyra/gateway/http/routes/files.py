"""File checkpoints over HTTP: list changes, show the diff, and restore a file."""

from starlette.requests import Request

from palyra.core.ids import PrincipalId
from palyra.gateway.cursor import page, to_id
from palyra.gateway.http.declaration import Routes, operation
from palyra.gateway.http.messages import cursor, number
from palyra.gateway.http.operation import CURSOR, Parameter, page_limit
from palyra.gateway.records.files import (
    FileCheckpointPage,
    FileCheckpointResponse,
    RestoreRequest,
    RestoreResponse,
    TrustRequest,
    TrustResponse,
)
from palyra.runs.services.file_checkpoints import FileCheckpointService

LIMIT = page_limit(50)
PATH = Parameter("path", "string", "Only checkpoints of this file: absolute, or relative to the workspace.")
SESSION = Parameter("session_id", "string", "Only checkpoints of this session.")


class FileRoutes(Routes):
    """The operations that concern file checkpoints."""

    def __init__(self, files: FileCheckpointService) -> None:
        self._files = files

    @operation("listFileCheckpoints", "GET /console/v1/files/checkpoints", query=(PATH, SESSION, LIMIT, CURSOR))
    async def index(self, request: Request, principal: PrincipalId) -> FileCheckpointPage:
        """List file checkpoints."""
        limit = number(request, LIMIT)
        query = request.query_params
        file_checkpoints = await self._files.history(
            principal,
            path=query.get("path"),
            session_id=query.get("session_id"),
            before=cursor(request, to_id),
            limit=limit + 1,
        )
        checkpoints, following = page(file_checkpoints, limit, lambda one: one.checkpoint_id)
        return FileCheckpointPage(checkpoints=checkpoints, next_cursor=following)

    @operation("getFileCheckpoint", "GET /console/v1/files/checkpoints/{checkpoint_id}")
    async def show(self, principal: PrincipalId, checkpoint_id: str) -> FileCheckpointResponse:
        """Compare a file with its file checkpoint."""
        file_comparison = await self._files.compare(principal, checkpoint_id)
        return FileCheckpointResponse(
            checkpoint=file_comparison.checkpoint, state=file_comparison.state, diff=file_comparison.diff
        )

    @operation("restoreFileCheckpoint", "POST /console/v1/files/checkpoints/{checkpoint_id}/restore")
    async def restore(self, principal: PrincipalId, checkpoint_id: str, body: RestoreRequest) -> RestoreResponse:
        """Restore a file."""
        file_comparison, file_checkpoint = await self._files.restore(principal, checkpoint_id, force=body.force)
        return RestoreResponse(
            checkpoint=file_comparison.checkpoint, diff=file_comparison.diff, saved_as=file_checkpoint.checkpoint_id
        )

    @operation("trustFile", "POST /console/v1/files/trust")
    async def trust(self, principal: PrincipalId, body: TrustRequest) -> TrustResponse:
        """Trust the current content of a file or folder, whatever wrote it."""
        return TrustResponse(labels_removed=await self._files.trust(principal, body.path))
