"""File checkpoints over HTTP: list changes, show the diff, and restore a file."""

from starlette.requests import Request
from starlette.responses import Response

from palyra.core.ids import PrincipalId
from palyra.gateway.http.messages import MAX_PAGE, json_response, number, read_body
from palyra.gateway.http.operation import CURSOR, LIMIT, Operation, QueryParameter
from palyra.gateway.records.files import (
    FileCheckpointPage,
    FileCheckpointResponse,
    RestoreRequest,
    RestoreResponse,
    TrustRequest,
    TrustResponse,
)
from palyra.runs.services.file_checkpoints import FileCheckpointService


class FileRoutes:
    """The operations that concern file checkpoints."""

    def __init__(self, files: FileCheckpointService) -> None:
        self._files = files

    def operations(self) -> list[Operation]:
        every, one = "/console/v1/files/checkpoints", "/console/v1/files/checkpoints/{checkpoint_id}"
        path = QueryParameter(
            "path", "string", "Only those of one file: absolute, or as it is called in the workspace."
        )
        session = QueryParameter("session_id", "string", "Only those that a session made.")
        return [
            Operation(
                "GET",
                every,
                self.index,
                "List files as they were before each change.",
                query=(path, session, LIMIT, CURSOR),
                answer=FileCheckpointPage,
            ),
            Operation("GET", one, self.show, "Compare a file with what it was.", answer=FileCheckpointResponse),
            Operation(
                "POST",
                f"{one}/restore",
                self.restore,
                "Bring a file back to what it was.",
                need="write",
                body=RestoreRequest,
                answer=RestoreResponse,
            ),
            Operation(
                "POST",
                "/console/v1/files/trust",
                self.trust,
                "Take what a file or folder holds now for your own, whatever wrote it.",
                need="write",
                body=TrustRequest,
                answer=TrustResponse,
            ),
        ]

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        """List file checkpoints, the latest first."""
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
        return json_response(FileCheckpointPage(checkpoints=found, next_cursor=last))

    async def show(self, request: Request, principal: PrincipalId) -> Response:
        """Compare a file with a file checkpoint."""
        found = await self._files.compare(principal, request.path_params["checkpoint_id"])
        return json_response(FileCheckpointResponse(checkpoint=found.checkpoint, standing=found.state, diff=found.diff))

    async def restore(self, request: Request, principal: PrincipalId) -> Response:
        """Restore a file."""
        asked = await read_body(request, RestoreRequest)
        found, kept = await self._files.restore(principal, request.path_params["checkpoint_id"], force=asked.force)
        return json_response(RestoreResponse(checkpoint=found.checkpoint, diff=found.diff, kept_as=kept.checkpoint_id))

    async def trust(self, request: Request, principal: PrincipalId) -> Response:
        """Trust a file or folder."""
        asked = await read_body(request, TrustRequest)
        return json_response(TrustResponse(forgotten=await self._files.trust(principal, asked.path)))
