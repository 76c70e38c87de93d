"""The client for programs on the same machine: gRPC for streams, status and its other methods, HTTP for the rest.

All calls block, and all have a timeout. gRPC is imported on first use: the command line pays for each import at every
start, and many of its commands do not need it.
"""

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Generic, TypeVar

from palyra.core.events import InputMode
from palyra.core.message import AcceptedMessage
from palyra.core.run.record import RunRecord
from palyra.core.session import Session, SessionRef
from palyra.core.trace.tree import Trace
from palyra.gateway.client.errors import CONNECT_TIMEOUT_SECONDS
from palyra.gateway.client.http_calls import HttpCalls, Query, segment
from palyra.gateway.client.target import DaemonTarget
from palyra.gateway.records.daemon import DaemonStatus, ReloadResponse
from palyra.gateway.records.runs import RunPage, RunResponse, TapePage
from palyra.gateway.records.sessions import (
    MessagePage,
    RenameRequest,
    SearchHit,
    SearchHitPage,
    SessionMessage,
    SessionPage,
    SessionResponse,
)

if TYPE_CHECKING:
    from palyra.gateway.client.grpc_agents import AgentCalls
    from palyra.gateway.client.grpc_calls import EntryStream, GrpcCalls
    from palyra.gateway.client.grpc_secrets import SecretCalls
    from palyra.gateway.client.http_approvals import ApprovalCalls
    from palyra.gateway.client.http_files import FileCalls
    from palyra.gateway.client.http_mcp import McpCalls
    from palyra.gateway.client.http_policy_shadow import PolicyShadowCalls
    from palyra.gateway.client.http_providers import ProviderCalls
    from palyra.gateway.client.http_stops import StopCalls
    from palyra.gateway.client.http_tokens import TokenCalls
    from palyra.gateway.client.http_usage import UsageCalls

RESPONSE_TIMEOUT_SECONDS = 30.0
ROOT = "/console/v1"

T = TypeVar("T")


class LazyCalls(Generic[T]):
    """The calls that concern one noun, over HTTP or gRPC. They are imported on first use."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    def __set_name__(self, owner: type, attribute: str) -> None:
        self._attribute = attribute

    def __get__(self, client: "Client", owner: type) -> T:
        build = getattr(import_module(f"palyra.gateway.client.{self._module}"), self._name)
        calls: T = build(client.grpc if self._module.startswith("grpc") else client.http)
        # From now on the attribute of the instance is found first.
        vars(client)[self._attribute] = calls
        return calls


class Client:
    """A client of one daemon. The target is looked up for each request: a restarted daemon may use another address."""

    agents: "LazyCalls[AgentCalls]" = LazyCalls("grpc_agents", "AgentCalls")
    """The calls that concern agents."""
    secrets: "LazyCalls[SecretCalls]" = LazyCalls("grpc_secrets", "SecretCalls")
    """The calls that concern the vault."""
    approvals: "LazyCalls[ApprovalCalls]" = LazyCalls("http_approvals", "ApprovalCalls")
    """The calls that concern approvals and grants."""
    stops: "LazyCalls[StopCalls]" = LazyCalls("http_stops", "StopCalls")
    """The calls that concern emergency stops."""
    files: "LazyCalls[FileCalls]" = LazyCalls("http_files", "FileCalls")
    """The calls that concern file checkpoints."""
    usage: "LazyCalls[UsageCalls]" = LazyCalls("http_usage", "UsageCalls")
    """The calls that concern usage and costs."""
    tokens: "LazyCalls[TokenCalls]" = LazyCalls("http_tokens", "TokenCalls")
    """The calls that concern tokens."""
    providers: "LazyCalls[ProviderCalls]" = LazyCalls("http_providers", "ProviderCalls")
    """The calls that concern model providers."""
    mcp: "LazyCalls[McpCalls]" = LazyCalls("http_mcp", "McpCalls")
    """The calls that concern MCP servers."""
    policy_shadow: "LazyCalls[PolicyShadowCalls]" = LazyCalls("http_policy_shadow", "PolicyShadowCalls")
    """The calls that concern the shadow policy."""

    def __init__(
        self,
        find: Callable[[], DaemonTarget],
        *,
        answer_seconds: float = RESPONSE_TIMEOUT_SECONDS,
        timeout: float = 0.0,
    ) -> None:
        """`timeout` is how many seconds to wait for an unreachable daemon; requests are then sent again."""
        self._find = find
        self._answer_seconds = answer_seconds
        self._timeout = timeout
        self.http = HttpCalls(find, seconds=answer_seconds, timeout=timeout)

    @cached_property
    def grpc(self) -> "GrpcCalls":
        """The calls over gRPC."""
        from palyra.gateway.client.grpc_calls import GrpcCalls

        return GrpcCalls(self._find, seconds=self._answer_seconds, timeout=self._timeout)

    def status(self) -> DaemonStatus:
        """Return the status of the daemon and its parts."""
        return self.grpc.status()

    def resolve(self, ref: SessionRef) -> Session:
        """Find a session, or create it if that is allowed."""
        return self.grpc.resolve(ref)

    def sessions(self, *, archived: bool = False, limit: int = 50, cursor: str | None = None) -> SessionPage:
        """Return a page of the sessions, the latest first."""
        return self.grpc.sessions(archived=archived, limit=limit, cursor=cursor)

    def cleanup(self, session_id: str) -> Session:
        """Cancel the active runs of a session, archive it, and free its key."""
        return self.grpc.cleanup(session_id)

    def search(self, words: str, *, limit: int = 20) -> Sequence[SearchHit]:
        """Return the messages that contain the words, best first."""
        return self.http.get(SearchHitPage, f"{ROOT}/sessions/search", {"q": words, "limit": limit}).hits

    def session(self, session_id: str) -> Session:
        """Return the session with this id."""
        return self.http.get(SessionResponse, _session_path(session_id)).session

    def rename(self, session_id: str, title: str) -> Session:
        """Set the session's title."""
        return self.http.patch(SessionResponse, _session_path(session_id), RenameRequest(title=title)).session

    def archive(self, session_id: str) -> Session:
        """Archive a session."""
        return self.http.post(SessionResponse, f"{_session_path(session_id)}/archive").session

    def unarchive(self, session_id: str) -> Session:
        """Unarchive a session."""
        return self.http.post(SessionResponse, f"{_session_path(session_id)}/unarchive").session

    def reset(self, session_id: str) -> Session:
        """Reset a session: earlier messages are no longer context."""
        return self.http.post(SessionResponse, f"{_session_path(session_id)}/reset").session

    def messages(self, session_id: str, *, limit: int = 20) -> Sequence[SessionMessage]:
        """Return a session's messages, the latest first."""
        return self.http.get(MessagePage, f"{_session_path(session_id)}/messages", {"limit": limit}).messages

    def export(self, session_id: str, form: str) -> bytes:
        """Return the session as a document: `json` or `markdown`."""
        return self.http.download(f"{_session_path(session_id)}/export", {"format": form})

    def session_tape(self, session_id: str, after_seq: int) -> TapePage:
        """Return a page of a session's tape."""
        return self.http.get(TapePage, f"{_session_path(session_id)}/tape", {"after_seq": after_seq})

    def send(
        self,
        text: str,
        session: SessionRef,
        *,
        mode: InputMode,
        key: str | None = None,
        timeout: float = CONNECT_TIMEOUT_SECONDS,
        model: str = "",
        task: str = "",
    ) -> AcceptedMessage:
        """Send a message. If the response is lost, it is sent again under the same key, so it is accepted only once."""
        sent_key = key or os.urandom(16).hex()
        return self.grpc.send(text, session, mode=mode, key=sent_key, timeout=timeout, model=model, task=task)

    def runs(self, *, session_id: str | None = None, limit: int = 20, cursor: str | None = None) -> RunPage:
        """Return a page of the runs, the latest first."""
        query: Query = {"session_id": session_id, "limit": limit, "cursor": cursor}
        return self.http.get(RunPage, f"{ROOT}/runs", query)

    def run(self, run_id: str) -> RunRecord:
        """Return the run with this id."""
        return self.http.get(RunResponse, _run_path(run_id)).run

    def run_tape(self, run_id: str, after_seq: int) -> TapePage:
        """Return a page of a run's tape."""
        return self.http.get(TapePage, f"{_run_path(run_id)}/tape", {"after_seq": after_seq})

    def trace(self, of: str) -> Trace:
        """Return the causes of something."""
        return self.http.get(Trace, f"{ROOT}/why", {"of": of})

    def reload_config(self) -> ReloadResponse:
        """Make the daemon reload its settings; return what became of the changed ones."""
        return self.http.post(ReloadResponse, "/admin/v1/config/reload")

    def cancel(self, run_id: str, *, reason: str | None = None) -> RunRecord:
        """Request cancellation of the run."""
        return self.grpc.cancel(run_id, reason=reason)

    def attach_run(self, run_id: str, *, after_seq: int) -> "EntryStream":
        """Follow a run over one connection; `follow_run` reconnects as often as needed."""
        return self.grpc.attach_run(run_id, after_seq=after_seq)

    def attach_session(self, session_id: str, *, after_seq: int) -> "EntryStream":
        """Follow a session over one connection; `follow_session` reconnects as often as needed."""
        return self.grpc.attach_session(session_id, after_seq=after_seq)


def _session_path(session_id: str) -> str:
    return f"{ROOT}/sessions/{segment(session_id)}"


def _run_path(run_id: str) -> str:
    return f"{ROOT}/runs/{segment(run_id)}"
