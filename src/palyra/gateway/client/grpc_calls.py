"""gRPC calls of a client: values in, values out. The target is looked up for each attempt."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from google.protobuf.message import Message
from msgspec import ValidationError

from palyra.core.events import InputMode
from palyra.core.message import AcceptedMessage
from palyra.core.run.record import RunRecord
from palyra.core.session import Session, SessionRef
from palyra.gateway.client import grpc_channel
from palyra.gateway.client.errors import DaemonResponseInvalid, retry_until_reachable
from palyra.gateway.client.target import DaemonTarget
from palyra.gateway.grpc import convert
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.gateway.records.daemon import DaemonStatus
from palyra.gateway.records.sessions import SessionPage

M = TypeVar("M", bound=Message)


class GrpcCalls:
    """Calls one daemon, and retries until the timeout while it is unreachable."""

    def __init__(self, find: Callable[[], DaemonTarget], *, seconds: float, timeout: float) -> None:
        self._find = find
        self._seconds = seconds
        self._timeout = timeout

    def ask(self, method: str, request: Message, kind: type[M], *, timeout: float | None = None) -> M:
        """Call a unary method."""
        return retry_until_reachable(
            lambda: grpc_channel.call_unary(self._find(), method, request, kind=kind, seconds=self._seconds),
            seconds=self._timeout if timeout is None else timeout,
        )

    def status(self) -> DaemonStatus:
        """Return the status of each part of the daemon."""
        answer = self.ask("GetHealth", pb.GetHealthRequest(parts=True), pb.GetHealthResponse)
        return convert.to_record(DaemonStatus, answer)

    def resolve(self, ref: SessionRef) -> Session:
        """Find or create a session."""
        request = pb.ResolveSessionRequest(session=convert.from_session_ref(ref))
        return convert.to_record(Session, self.ask("ResolveSession", request, pb.ResolveSessionResponse).session)

    def sessions(self, *, archived: bool, limit: int, cursor: str | None) -> SessionPage:
        """Return a page of the sessions, the latest first."""
        request = pb.ListSessionsRequest(archived=archived, limit=limit, cursor=cursor)
        page = self.ask("ListSessions", request, pb.ListSessionsResponse)
        sessions = tuple(convert.to_record(Session, one) for one in page.sessions)
        return SessionPage(sessions=sessions, next_cursor=page.next_cursor or None)

    def cleanup(self, session_id: str) -> Session:
        """Cancel the active runs of a session, archive it, and free its key."""
        request = pb.CleanupSessionRequest(session_id=session_id)
        return convert.to_record(Session, self.ask("CleanupSession", request, pb.CleanupSessionResponse).session)

    def send(
        self,
        text: str,
        session: SessionRef,
        *,
        mode: InputMode,
        key: str,
        timeout: float,
        model: str = "",
        task: str = "",
    ) -> AcceptedMessage:
        """Send a message; it is accepted once, however often it is sent."""
        request = pb.RouteMessageRequest(
            message=convert.from_message(text, session, mode=mode, key=key, model=model, task=task)
        )
        answer = self.ask("RouteMessage", request, pb.RouteMessageResponse, timeout=timeout)
        return convert.to_record(AcceptedMessage, answer.accepted)

    def cancel(self, run_id: str, *, reason: str | None) -> RunRecord:
        """Request cancellation of a run."""
        request = pb.AbortRunRequest(run_id=run_id, reason=reason)
        answer = self.ask("AbortRun", request, pb.AbortRunResponse)
        try:
            return convert.to_record(RunRecord, answer.run)
        except ValidationError as error:
            raise DaemonResponseInvalid from error

    def attach_run(
        self, run_id: str, *, after_seq: int, keepalive: float = grpc_channel.KEEPALIVE_SECONDS
    ) -> "EntryStream":
        """Follow a run over one connection, up to its final entry."""
        request = pb.AttachRunRequest(run_id=run_id, after_seq=after_seq)
        return EntryStream(grpc_channel.call_streaming(self._find(), "AttachRun", request, keepalive=keepalive))

    def attach_session(
        self, session_id: str, *, after_seq: int, keepalive: float = grpc_channel.KEEPALIVE_SECONDS
    ) -> "EntryStream":
        """Follow a session over one connection."""
        request = pb.AttachSessionRequest(session_id=session_id, after_seq=after_seq)
        return EntryStream(grpc_channel.call_streaming(self._find(), "AttachSession", request, keepalive=keepalive))


class EntryStream:
    """The entries of one connection, as JSON. It may be closed from another thread, or by a signal."""

    def __init__(self, streamed: grpc_channel.GrpcStream) -> None:
        self._streamed = streamed

    def __iter__(self) -> Iterator[str]:
        for batch in self._streamed.read(pb.TapeBatch):
            for entry in batch.entries:
                try:
                    text = convert.to_entry_json(entry)
                except UnicodeDecodeError as error:
                    raise DaemonResponseInvalid from error
                yield text

    def close(self) -> None:
        """Close the stream; its reader gets an error."""
        self._streamed.close()
