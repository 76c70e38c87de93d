"""The client for programs on the same machine: gRPC for streams, status and its other methods, HTTP for the rest.

All calls block, and all have a timeout. gRPC is imported on first use: the command line pays for each import at every
start, and many of its commands do not need it.
"""

import os
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import msgspec

from palyra.core.events import InputMode
from palyra.core.message import AcceptedMessage
from palyra.core.policy.approval import Approval, ApprovalScope
from palyra.core.run.record import RunRecord
from palyra.core.session import Session, SessionRef
from palyra.gateway.client.errors import CONNECT_TIMEOUT_SECONDS, DaemonResponseInvalid, retry_until_reachable
from palyra.gateway.client.http_calls import HttpCalls, Query
from palyra.gateway.client.target import DaemonTarget
from palyra.gateway.records.daemon import DaemonStatus
from palyra.gateway.records.runs import RunPage
from palyra.gateway.records.sessions import SearchHit, SessionMessage, SessionPage

if TYPE_CHECKING:
    from palyra.gateway.client.grpc_agents import AgentCalls
    from palyra.gateway.client.grpc_calls import EntryStream, GrpcCalls
    from palyra.gateway.client.grpc_secrets import SecretCalls

RESPONSE_TIMEOUT_SECONDS = 30.0
ROOT = "/console/v1"
ADMIN_ROOT = "/admin/v1"

T = TypeVar("T")


class Client:
    """A client of one daemon. The target is looked up for each request: a restarted daemon may use another address."""

    def __init__(
        self,
        find: Callable[[], DaemonTarget],
        *,
        root: str = ROOT,
        answer_seconds: float = RESPONSE_TIMEOUT_SECONDS,
        patience: float = 0.0,
    ) -> None:
        """`patience` is how many seconds to wait for an unreachable daemon; requests are then sent again."""
        self._find = find
        self._answer_seconds = answer_seconds
        self._patience = patience
        self._http = HttpCalls(find, root=root, seconds=answer_seconds)

    @cached_property
    def _grpc(self) -> "GrpcCalls":
        from palyra.gateway.client.grpc_calls import GrpcCalls

        return GrpcCalls(self._find, seconds=self._answer_seconds, patience=self._patience)

    @cached_property
    def agents(self) -> "AgentCalls":
        """The calls that concern agents."""
        from palyra.gateway.client.grpc_agents import AgentCalls

        return AgentCalls(self._grpc)

    @cached_property
    def secrets(self) -> "SecretCalls":
        """The calls that concern the vault."""
        from palyra.gateway.client.grpc_secrets import SecretCalls

        return SecretCalls(self._grpc)

    def status(self) -> DaemonStatus:
        """Return the status of the daemon and its parts."""
        return self._grpc.status()

    def resolve(self, ref: SessionRef) -> Session:
        """Find a session, or create it if that is allowed."""
        return self._grpc.resolve(ref)

    def sessions(self, *, archived: bool = False, limit: int = 50, cursor: str | None = None) -> SessionPage:
        """Return a page of the sessions, the latest first."""
        return self._grpc.sessions(archived=archived, limit=limit, cursor=cursor)

    def cleanup(self, session_id: str) -> Session:
        """Cancel the active runs of a session, archive it, and free its key."""
        return self._grpc.cleanup(session_id)

    def search(self, words: str, *, limit: int = 20) -> tuple[SearchHit, ...]:
        """Return the messages that contain the words."""
        query: Query = {"q": words, "limit": limit}
        return self.ask(tuple[SearchHit, ...], "GET", "/sessions/search", query=query, field="hits")

    def session(self, session_id: str) -> Session:
        """Return the session with this id."""
        return self.ask(Session, "GET", f"/sessions/{session_id}", field="session")

    def rename(self, session_id: str, title: str) -> Session:
        """Set the session's title."""
        return self.ask(Session, "PATCH", f"/sessions/{session_id}", body={"title": title}, field="session")

    def change(self, session_id: str, verb: str) -> Session:
        """Archive, unarchive or reset a session."""
        return self.ask(Session, "POST", f"/sessions/{session_id}/{verb}", body={}, field="session")

    def messages(self, session_id: str, *, limit: int = 20) -> tuple[SessionMessage, ...]:
        """Return a session's messages, the latest first."""
        path = f"/sessions/{session_id}/messages"
        return self.ask(tuple[SessionMessage, ...], "GET", path, query={"limit": limit}, field="messages")

    def export(self, session_id: str, form: str) -> bytes:
        """Return the session as a document: `json` or `markdown`."""
        return self._request("GET", f"/sessions/{session_id}/export", query={"format": form})

    def answer(
        self,
        approval_id: str,
        *,
        allow: bool,
        scope: ApprovalScope = ApprovalScope.ONCE,
        ttl_seconds: int | None = None,
        reason: str = "",
    ) -> Approval:
        """Answer an approval request; the first answer counts."""
        body = {"decision": "allow" if allow else "deny", "scope": scope, "ttl_seconds": ttl_seconds, "reason": reason}
        return self.ask(Approval, "POST", f"/approvals/{approval_id}/resolve", body=body, field="approval")

    def download(self, path: str) -> bytes:
        """Return a document as the raw bytes that the daemon sends."""
        return self._request("GET", path)

    def send(
        self,
        text: str,
        session: SessionRef,
        *,
        mode: InputMode,
        key: str | None = None,
        patience: float = CONNECT_TIMEOUT_SECONDS,
        model: str = "",
        task: str = "",
    ) -> AcceptedMessage:
        """Send a message. If the response is lost, it is sent again under the same key, so it is accepted only once."""
        sent_key = key or os.urandom(16).hex()
        return self._grpc.send(text, session, mode=mode, key=sent_key, patience=patience, model=model, task=task)

    def runs(self, *, session_id: str | None = None, limit: int = 20, cursor: str | None = None) -> RunPage:
        """Return a page of the runs, the latest first."""
        return self.ask(RunPage, "GET", "/runs", query={"session_id": session_id, "limit": limit, "cursor": cursor})

    def run(self, run_id: str) -> RunRecord:
        """Return the run with this id."""
        return self.ask(RunRecord, "GET", f"/runs/{run_id}", field="run")

    def cancel(self, run_id: str, *, reason: str | None = None) -> RunRecord:
        """Request cancellation of the run."""
        return self._grpc.cancel(run_id, reason=reason)

    def attach_run(self, run_id: str, *, after_seq: int) -> "EntryStream":
        """Follow a run over one connection; `follow_run` reconnects as often as needed."""
        return self._grpc.attach_run(run_id, after_seq=after_seq)

    def attach_session(self, session_id: str, *, after_seq: int) -> "EntryStream":
        """Follow a session over one connection; `follow_session` reconnects as often as needed."""
        return self._grpc.attach_session(session_id, after_seq=after_seq)

    def ask(
        self,
        kind: type[T],
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: object = None,
        field: str | None = None,
    ) -> T:
        """Send a request over HTTP and return its response, or one field of it, as a value of that type."""
        answer = self._request(method, path, query=query, body=body)
        try:
            if field is not None:
                parts = msgspec.json.decode(answer, type=dict[str, msgspec.Raw])
                answer = bytes(parts.get(field, answer))
            return msgspec.json.decode(answer, type=kind)
        except msgspec.DecodeError as error:
            raise DaemonResponseInvalid from error

    def _request(self, method: str, path: str, *, query: Query | None = None, body: object = None) -> bytes:
        return retry_until_reachable(
            lambda: self._http.ask(method, path, query=query, body=body), seconds=self._patience
        )
