"""File checkpoints over HTTP: list changes, show the diff, and restore a file."""

from starlette.requests import Request
from starlette.responses import Response

from palyra.core.ids import PrincipalId
from palyra.gateway.cursor import page, to_id
from palyra.gateway.http.messages import cursor, json_response, number, read_body
from palyra.gateway.http.operation import CURSOR, Operation, Parameter, page_limit
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


class FileRoutes:
    """The operations that concern file checkpoints."""

    def __init__(self, files: FileCheckpointService) -> None:
        self._files = files

    def operations(self) -> list[Operation]:
        every, one = "/console/v1/files/checkpoints", "/console/v1/files/checkpoints/{checkpoint_id}"
        path = Parameter("path", "string", "Only checkpoints of this file: absolute, or relative to the workspace.")
        session = Parameter("session_id", "string", "Only checkpoints of this session.")
        return [
            Operation(
                "listFileCheckpoints",
                "GET",
                every,
                self.index,
                "List file checkpoints.",
                query=(path, session, LIMIT, CURSOR),
                answer=FileCheckpointPage,
            ),
            Operation(
                "getFileCheckpoint",
                "GET",
                one,
                self.show,
                "Compare a file with its file checkpoint.",
                answer=FileCheckpointResponse,
            ),
            Operation(
                "restoreFileCheckpoint",
                "POST",
                f"{one}/restore",
                self.restore,
                "Restore a file.",
                need="write",
                body=RestoreRequest,
                answer=RestoreResponse,
            ),
            Operation(
                "trustFile",
                "POST",
                "/console/v1/files/trust",
                self.trust,
                "Trust the current content of a file or folder, whatever wrote it.",
                need="write",
                body=TrustRequest,
                answer=TrustResponse,
            ),
        ]

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        """List file checkpoints, the latest first."""
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
        return json_response(FileCheckpointPage(checkpoints=checkpoints, next_cursor=following))

    async def show(self, request: Request, principal: PrincipalId) -> Response:
        """Compare a file with a file checkpoint."""
        file_comparison = await self._files.compare(principal, request.path_params["checkpoint_id"])
        return json_response(
            FileCheckpointResponse(
                checkpoint=file_comparison.checkpoint, standing=file_comparison.state, diff=file_comparison.diff
            )
        )

    async def restore(self, request: Request, principal: PrincipalId) -> Response:
        """Restore a file."""
        requested_request = await read_body(request, RestoreRequest)
        file_comparison, file_checkpoint = await self._files.restore(
            principal, request.path_params["checkpoint_id"], force=requested_request.force
        )
        return json_response(
            RestoreResponse(
                checkpoint=file_comparison.checkpoint, diff=file_comparison.diff, kept_as=file_checkpoint.checkpoint_id
            )
        )

    async def trust(self, request: Request, principal: PrincipalId) -> Response:
        """Trust a file or folder."""
        requested_request = await read_body(request, TrustRequest)
        return json_response(TrustResponse(forgotten=await self._files.trust(principal, requested_request.path)))
