"""What a program may ask at the gRPC door: values in, values out. The target is looked up for each attempt."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from google.protobuf.message import Message

from palyra.core.events import Mode
from palyra.core.message import Accepted
from palyra.core.session import Session, SessionRef
from palyra.gateway.grpc import channel, convert
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.gateway.records import Run, Sessions, Status
from palyra.gateway.remote import AnswerUnreadable, patiently
from palyra.gateway.target import Target

M = TypeVar("M", bound=Message)


class GrpcCalls:
    """Asks one daemon, as often as the patience allows while it is away."""

    def __init__(self, find: Callable[[], Target], *, seconds: float, patience: float) -> None:
        self._find = find
        self._seconds = seconds
        self._patience = patience

    def ask(self, method: str, request: Message, kind: type[M], *, patience: float | None = None) -> M:
        """Call a method that gives one message."""
        return patiently(
            lambda: channel.ask(self._find(), method, request, kind=kind, seconds=self._seconds),
            seconds=self._patience if patience is None else patience,
        )

    def status(self) -> Status:
        """Return how each part is."""
        return convert.to_status(self.ask("GetHealth", pb.GetHealthRequest(parts=True), pb.GetHealthResponse))

    def resolve(self, ref: SessionRef) -> Session:
        """Find or make a session."""
        request = pb.ResolveSessionRequest(session=convert.from_session_ref(ref))
        return convert.to_session(self.ask("ResolveSession", request, pb.ResolveSessionResponse).session)

    def sessions(self, *, archived: bool, limit: int, cursor: str | None) -> Sessions:
        """Return a page of the sessions, the latest first."""
        request = pb.ListSessionsRequest(archived=archived, limit=limit, cursor=cursor)
        page = self.ask("ListSessions", request, pb.ListSessionsResponse)
        return Sessions(sessions=tuple(map(convert.to_session, page.sessions)), next_cursor=page.next_cursor or None)

    def cleanup(self, session_id: str) -> Session:
        """Cancel what is active in a session, archive it, and free its key."""
        request = pb.CleanupSessionRequest(session_id=session_id)
        return convert.to_session(self.ask("CleanupSession", request, pb.CleanupSessionResponse).session)

    def send(
        self,
        text: str,
        session: SessionRef,
        *,
        mode: Mode,
        key: str,
        patience: float,
        model: str = "",
        task: str = "",
    ) -> Accepted:
        """Hand a message in, once however often it is sent."""
        request = pb.RouteMessageRequest(
            message=convert.from_message(text, session, mode=mode, key=key, model=model, task=task)
        )
        answer = self.ask("RouteMessage", request, pb.RouteMessageResponse, patience=patience)
        return convert.to_accepted(answer.accepted)

    def cancel(self, run_id: str, *, reason: str | None) -> Run:
        """Ask for a run to be stopped."""
        request = pb.AbortRunRequest(run_id=run_id, reason=reason)
        return convert.to_run(self.ask("AbortRun", request, pb.AbortRunResponse).run)

    def attach_run(self, run_id: str, *, after_seq: int, keepalive: float = channel.KEEPALIVE_SECONDS) -> "Attachment":
        """Follow a run over one connection, up to its final entry."""
        request = pb.AttachRunRequest(run_id=run_id, after_seq=after_seq)
        return Attachment(channel.follow(self._find(), "AttachRun", request, keepalive=keepalive))

    def attach_session(
        self, session_id: str, *, after_seq: int, keepalive: float = channel.KEEPALIVE_SECONDS
    ) -> "Attachment":
        """Follow a session over one connection."""
        request = pb.AttachSessionRequest(session_id=session_id, after_seq=after_seq)
        return Attachment(channel.follow(self._find(), "AttachSession", request, keepalive=keepalive))


class Attachment:
    """The entries that one connection brings, as JSON. It may be closed from another thread, or by a signal."""

    def __init__(self, streamed: channel.Streamed) -> None:
        self._streamed = streamed

    def __iter__(self) -> Iterator[str]:
        for batch in self._streamed.read(pb.TapeBatch):
            for entry in batch.entries:
                try:
                    text = convert.to_entry_json(entry)
                except UnicodeDecodeError as error:
                    raise AnswerUnreadable from error
                yield text

    def close(self) -> None:
        """End it; whoever reads meets an error."""
        self._streamed.close()
