"""HTTP calls that concern file checkpoints."""

from palyra.gateway.client.http_calls import HttpCalls, segment
from palyra.gateway.records.files import (
    FileCheckpointPage,
    FileCheckpointResponse,
    RestoreRequest,
    RestoreResponse,
    TrustRequest,
    TrustResponse,
)

ROOT = "/console/v1/files"
CHECKPOINTS = f"{ROOT}/checkpoints"


class FileCalls:
    """Calls the operations on files of one daemon."""

    def __init__(self, http: HttpCalls) -> None:
        self._http = http

    def checkpoints(self, *, path: str | None = None, session_id: str | None = None, limit: int) -> FileCheckpointPage:
        """Return a page of the file checkpoints, the latest first."""
        return self._http.get(FileCheckpointPage, CHECKPOINTS, {"path": path, "session_id": session_id, "limit": limit})

    def compare(self, checkpoint_id: str) -> FileCheckpointResponse:
        """Return a file checkpoint, and how its file is now."""
        return self._http.get(FileCheckpointResponse, f"{CHECKPOINTS}/{segment(checkpoint_id)}")

    def restore(self, checkpoint_id: str, *, force: bool) -> RestoreResponse:
        """Restore a file."""
        path = f"{CHECKPOINTS}/{segment(checkpoint_id)}/restore"
        return self._http.post(RestoreResponse, path, RestoreRequest(force=force))

    def trust(self, path: str) -> TrustResponse:
        """Trust the current content of a file or folder."""
        return self._http.post(TrustResponse, f"{ROOT}/trust", TrustRequest(path=path))
