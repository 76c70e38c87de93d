"""Runs over gRPC: send, follow, steer, cancel."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from google.protobuf.message import Message

from palyra.core import channel
from palyra.core.errors import Invalid, Unavailable
from palyra.core.events import FINAL_KINDS, Entry, InputMode
from palyra.core.ids import PrincipalId, RunId, SessionId, parse_ulid
from palyra.core.message import AcceptedMessage, Inbound
from palyra.core.model.catalog import TaskClass
from palyra.core.model.request_options import RequestOptions
from palyra.core.session import SessionNotFound, SessionRef
from palyra.gateway.error_status import RequestInvalid
from palyra.gateway.grpc import convert
from palyra.gateway.grpc.methods import Handler, Methods, decode, read, send
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.gateway.grpc.server_call import ServerCall
from palyra.journal import tape
from palyra.journal.engines.base import Engine
from palyra.journal.stores import runs, sessions
from palyra.journal.tail import Tail, TapeReader
from palyra.runs.services.cancellation import CancellationService, RunNotFound
from palyra.runs.services.intake import MessageIntake

PROTOCOL_VERSION = 1
LOOKUP_TIMEOUT_SECONDS = 60.0
BATCH_CHARS = 128 * 1024
RESTART = timedelta(seconds=1)


class ProtocolVersionUnsupported(Invalid):
    """The client uses another version of the protocol. This daemon uses version 1."""


class DaemonStopping(Unavailable):
    """The daemon is stopping. Runs continue at its next start; attach again then, after the last entry that you
    received.
    """


class RunMethods:
    """The methods that concern runs."""

    def __init__(
        self,
        engine: Engine,
        tail: Tail,
        *,
        intake: MessageIntake,
        control: CancellationService,
        timeout: Callable[[], float],
    ) -> None:
        """`timeout` returns how many seconds a batch may wait for its reader; it is called each time."""
        self._engine = engine
        self._tail = tail
        self._timeout = timeout
        self._intake = intake
        self._control = control

    def handlers(self, methods: Methods) -> dict[str, Handler]:
        return {
            "RunStream": methods.exchange(self.run_stream, need="write"),
            "AttachRun": methods.stream(self.attach_run, pb.AttachRunRequest),
            "AttachSession": methods.stream(self.attach_session, pb.AttachSessionRequest),
            "AbortRun": methods.unary(self.abort_run, pb.AbortRunRequest, need="write"),
            "RouteMessage": methods.unary(self.route_message, pb.RouteMessageRequest, need="write"),
        }

    async def run_stream(self, _: Any, call: ServerCall, principal: PrincipalId) -> None:
        """Accept the first request, then forward the tape; later requests act on the run."""
        accepted = await self._start(call, principal)
        follower = self._tail.follow(accepted.session_id, after_seq=accepted.after_seq, run_id=accepted.run_id)
        try:
            async with asyncio.TaskGroup() as group:
                listener = group.create_task(self._listen(call, accepted, principal, follower))
                # The first entries exist already: they are sent together with the acceptance.
                entries = await _following(follower)
                answers = _answers(entries) or [pb.RunStreamResponse()]
                answers[0].accepted.CopyFrom(convert.to_message(pb.Accepted, accepted))
                while entries and entries[-1].kind not in FINAL_KINDS:
                    for answer in answers:
                        await self._send(call, answer)
                    entries = await _following(follower)
                    answers = _answers(entries)
                listener.cancel()
            # The final entries, when no more input is read: the status can follow directly.
            for answer in answers:
                await self._send(call, answer)
        finally:
            follower.close()

    async def attach_run(self, request: pb.AttachRunRequest, call: ServerCall, principal: PrincipalId) -> None:
        """Forward a run's entries after a position, until it ends."""
        run_id = RunId(parse_ulid(request.run_id, "run id"))
        run = await self._engine.read(lambda conn: runs.get(conn, run_id, principal))
        if run is None:
            raise RunNotFound
        end = await self._engine.read(lambda conn: tape.end(conn, run.session_id))
        tape.check_position(request.after_seq, end)
        if run.ended_at is not None and request.after_seq >= run.last_seq:
            return
        follower = self._tail.follow(run.session_id, after_seq=request.after_seq, run_id=run_id)
        await self._forward(call, follower, ends_with_run=True)

    async def attach_session(self, request: pb.AttachSessionRequest, call: ServerCall, principal: PrincipalId) -> None:
        """Forward a session's entries after a position, for as long as the caller stays."""
        session_id = SessionId(parse_ulid(request.session_id, "session id"))
        if await self._engine.read(lambda conn: sessions.get(conn, session_id, principal)) is None:
            raise SessionNotFound
        tape.check_position(request.after_seq, await self._engine.read(lambda conn: tape.end(conn, session_id)))
        follower = self._tail.follow(session_id, after_seq=request.after_seq)
        await self._forward(call, follower, ends_with_run=False)

    async def abort_run(self, request: pb.AbortRunRequest, principal: PrincipalId) -> pb.AbortRunResponse:
        """Request cancellation of a run."""
        reason = request.reason or "cancelled by its owner"
        run = await self._control.cancel(principal, request.run_id, reason=reason)
        return pb.AbortRunResponse(run=convert.to_message(pb.Run, run))

    async def route_message(self, request: pb.RouteMessageRequest, principal: PrincipalId) -> pb.RouteMessageResponse:
        """Accept a message without following it."""
        accepted = await self._intake.accept(_inbound(request.message, principal))
        return pb.RouteMessageResponse(accepted=convert.to_message(pb.Accepted, accepted))

    async def _start(self, call: ServerCall, principal: PrincipalId) -> AcceptedMessage:
        first = await read(call, pb.RunStreamRequest)
        if first.WhichOneof("request") != "start":
            raise RequestInvalid("The first request of RunStream must be `start`.")
        if first.start.protocol_version != PROTOCOL_VERSION:
            raise ProtocolVersionUnsupported
        return await self._intake.accept(_inbound(first.start.message, principal))

    async def _listen(
        self, call: ServerCall, accepted: AcceptedMessage, principal: PrincipalId, follower: TapeReader
    ) -> None:
        """Act on further requests until the caller closes its side."""
        while (message := await call.read()) is not None:
            request = decode(pb.RunStreamRequest, message)
            match request.WhichOneof("request"):
                case "steer":
                    await self._intake.accept(
                        Inbound(
                            principal=principal,
                            text=request.steer.text,
                            session=SessionRef(session_id=accepted.session_id),
                            mode=InputMode.STEER,
                            idempotency_key=request.steer.idempotency_key or None,
                            channel=channel.GRPC,
                        )
                    )
                case "cancel":
                    reason = request.cancel.reason or "cancelled by its owner"
                    await self._control.cancel(principal, accepted.run_id, reason=reason)
                case "detach":
                    follower.close()
                case _:
                    raise RequestInvalid("A request after the first must be steer, cancel or detach.")

    async def _forward(self, call: ServerCall, follower: TapeReader, *, ends_with_run: bool) -> None:
        try:
            while entries := await _following(follower):
                for batch in _batches(entries):
                    await self._send(call, pb.TapeBatch(entries=convert.from_entries(batch)))
                if ends_with_run and entries[-1].kind in FINAL_KINDS:
                    return
            # A stream that ended here without an error would mean that the run has no more entries.
            raise DaemonStopping(retry_after=RESTART)
        finally:
            follower.close()

    async def _send(self, call: ServerCall, message: Message) -> None:
        await send(call, message, seconds=self._timeout())


def _batches(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Divide entries into messages of a bounded size: each waits as a whole for its reader."""
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        size += len(entry.content)
        if batch and size > BATCH_CHARS:
            yield batch
            batch, size = [], len(entry.content)
        batch.append(entry)
    if batch:
        yield batch


def _answers(entries: list[Entry]) -> list[pb.RunStreamResponse]:
    return [pb.RunStreamResponse(entries=convert.from_entries(batch)) for batch in _batches(entries)]


async def _following(follower: TapeReader) -> list[Entry]:
    """Return the next entries; none when there will be no more."""
    while not follower.closed:
        if entries := await follower.next(seconds=LOOKUP_TIMEOUT_SECONDS):
            return entries
    return []


def _inbound(message: pb.InboundMessage, principal: PrincipalId) -> Inbound:
    """Read a message of the principal."""
    if message.mode not in convert.MODES:
        raise RequestInvalid(f"Unknown mode {message.mode}. Use queue, steer or interrupt.")
    tasks = [task.value for task in TaskClass]
    if message.task and message.task not in tasks:
        raise RequestInvalid(f"Unknown task {message.task[:40]!r}. Use {', '.join(tasks)}, or none.")
    return Inbound(
        principal=principal,
        text=message.text,
        session=convert.to_session_ref(message.session),
        mode=convert.MODES[message.mode],
        idempotency_key=message.idempotency_key or None,
        channel=channel.GRPC,
        options=RequestOptions(model=message.model, task=TaskClass(message.task or TaskClass.INTERACTIVE)),
    )
