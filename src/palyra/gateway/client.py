"""The way in for programs on the same machine: gRPC for streams, status and what it has methods for, HTTP for the rest.

Everything here blocks, and everything has a timeout. gRPC is imported when it is first spoken: the command line pays
for each import at every start, and many of its commands need none of it.
"""

import os
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import msgspec

from palyra.core.approval import Approval, Scope
from palyra.core.events import Mode
from palyra.core.message import Accepted
from palyra.core.session import Session, SessionRef
from palyra.gateway.http.calls import HttpCalls, Query
from palyra.gateway.records import Hit, Run, Runs, Said, Sessions, Status
from palyra.gateway.remote import PATIENCE_SECONDS, AnswerUnreadable, patiently
from palyra.gateway.target import Target

if TYPE_CHECKING:
    from palyra.gateway.grpc.agent_calls import AgentCalls
    from palyra.gateway.grpc.calls import Attachment, GrpcCalls
    from palyra.gateway.grpc.secret_calls import SecretCalls

ANSWER_SECONDS = 30.0
ROOT = "/console/v1"
ADMIN_ROOT = "/admin/v1"

T = TypeVar("T")


class Client:
    """Speaks to one daemon. The target is looked up for each request: a restarted daemon may answer elsewhere."""

    def __init__(
        self,
        find: Callable[[], Target],
        *,
        root: str = ROOT,
        answer_seconds: float = ANSWER_SECONDS,
        patience: float = 0.0,
    ) -> None:
        """`patience` is how many seconds a daemon that is away is waited for; requests are then sent again."""
        self._find = find
        self._answer_seconds = answer_seconds
        self._patience = patience
        self._http = HttpCalls(find, root=root, seconds=answer_seconds)

    @cached_property
    def _grpc(self) -> "GrpcCalls":
        from palyra.gateway.grpc.calls import GrpcCalls

        return GrpcCalls(self._find, seconds=self._answer_seconds, patience=self._patience)

    @cached_property
    def agents(self) -> "AgentCalls":
        """The way to the agents."""
        from palyra.gateway.grpc.agent_calls import AgentCalls

        return AgentCalls(self._grpc)

    @cached_property
    def secrets(self) -> "SecretCalls":
        """The way to the vault."""
        from palyra.gateway.grpc.secret_calls import SecretCalls

        return SecretCalls(self._grpc)

    def status(self) -> Status:
        """Return what the daemon says of all its parts."""
        return self._grpc.status()

    def resolve(self, ref: SessionRef) -> Session:
        """Return the session that is meant; it is created if it may be."""
        return self._grpc.resolve(ref)

    def sessions(self, *, archived: bool = False, limit: int = 50, cursor: str | None = None) -> Sessions:
        """Return a page of the sessions, the latest first."""
        return self._grpc.sessions(archived=archived, limit=limit, cursor=cursor)

    def cleanup(self, session_id: str) -> Session:
        """Cancel what is active in a session, archive it, and free its key."""
        return self._grpc.cleanup(session_id)

    def search(self, words: str, *, limit: int = 20) -> tuple[Hit, ...]:
        """Return where the words stand in what was said."""
        query: Query = {"q": words, "limit": limit}
        return self.ask(tuple[Hit, ...], "GET", "/sessions/search", query=query, field="hits")

    def session(self, session_id: str) -> Session:
        """Return the session of that id."""
        return self.ask(Session, "GET", f"/sessions/{session_id}", field="session")

    def rename(self, session_id: str, title: str) -> Session:
        """Give the session a title."""
        return self.ask(Session, "PATCH", f"/sessions/{session_id}", body={"title": title}, field="session")

    def change(self, session_id: str, verb: str) -> Session:
        """Archive, unarchive or reset a session."""
        return self.ask(Session, "POST", f"/sessions/{session_id}/{verb}", body={}, field="session")

    def messages(self, session_id: str, *, limit: int = 20) -> tuple[Said, ...]:
        """Return what was said in a session, the latest first."""
        path = f"/sessions/{session_id}/messages"
        return self.ask(tuple[Said, ...], "GET", path, query={"limit": limit}, field="messages")

    def export(self, session_id: str, form: str) -> bytes:
        """Return the session as a document: `json` or `markdown`."""
        return self._request("GET", f"/sessions/{session_id}/export", query={"format": form})

    def answer(
        self,
        approval_id: str,
        *,
        allow: bool,
        scope: Scope = Scope.ONCE,
        ttl_seconds: int | None = None,
        reason: str = "",
    ) -> Approval:
        """Answer a question; the first answer counts."""
        body = {"decision": "allow" if allow else "deny", "scope": scope, "ttl_seconds": ttl_seconds, "reason": reason}
        return self.ask(Approval, "POST", f"/approvals/{approval_id}/resolve", body=body, field="approval")

    def download(self, path: str) -> bytes:
        """Return a document as it is sent."""
        return self._request("GET", path)

    def send(
        self,
        text: str,
        session: SessionRef,
        *,
        mode: Mode,
        key: str | None = None,
        patience: float = PATIENCE_SECONDS,
        model: str = "",
        task: str = "",
    ) -> Accepted:
        """Hand a message in. When the answer is lost it is sent again under the same key, so it is taken once only."""
        sent_key = key or os.urandom(16).hex()
        return self._grpc.send(text, session, mode=mode, key=sent_key, patience=patience, model=model, task=task)

    def runs(self, *, session_id: str | None = None, limit: int = 20, cursor: str | None = None) -> Runs:
        """Return a page of the runs, the latest first."""
        return self.ask(Runs, "GET", "/runs", query={"session_id": session_id, "limit": limit, "cursor": cursor})

    def run(self, run_id: str) -> Run:
        """Return the run of that id."""
        return self.ask(Run, "GET", f"/runs/{run_id}", field="run")

    def cancel(self, run_id: str, *, reason: str | None = None) -> Run:
        """Ask for the run to be stopped."""
        return self._grpc.cancel(run_id, reason=reason)

    def attach_run(self, run_id: str, *, after_seq: int) -> "Attachment":
        """Follow a run over one connection; `follow_run` does so over as many as it takes."""
        return self._grpc.attach_run(run_id, after_seq=after_seq)

    def attach_session(self, session_id: str, *, after_seq: int) -> "Attachment":
        """Follow a session over one connection; `follow_session` does so over as many as it takes."""
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
        """Send a request over HTTP and return its answer, or one field of it, as a value of that kind."""
        answer = self._request(method, path, query=query, body=body)
        try:
            if field is not None:
                parts = msgspec.json.decode(answer, type=dict[str, msgspec.Raw])
                answer = bytes(parts.get(field, answer))
            return msgspec.json.decode(answer, type=kind)
        except msgspec.DecodeError as error:
            raise AnswerUnreadable from error

    def _request(self, method: str, path: str, *, query: Query | None = None, body: object = None) -> bytes:
        return patiently(lambda: self._http.ask(method, path, query=query, body=body), seconds=self._patience)
