"""A call of `/v1` is a run like any other: it is taken in, followed on its tape, and answered in the caller's words.

A caller that goes away before the end wants no more: its run is cancelled, unless it said that it may come back (with
an idempotency key, or by detaching the run), or a person is asked about it.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from palyra.core import channel
from palyra.core.approval import Approval
from palyra.core.brief import Brief
from palyra.core.errors import NotFound, Unavailable
from palyra.core.events import ApprovalRequested, Mode, RunCancelled, RunFailed
from palyra.core.ids import PrincipalId
from palyra.core.message import Accepted, Inbound
from palyra.core.run import RunStatus
from palyra.core.session import SessionRef
from palyra.gateway.http.openai.conversation import Asked
from palyra.gateway.http.openai.errors import Fault, ParameterRefused, fault, fault_of
from palyra.gateway.http.openai.telling import Over, Piece, Said, Telling, Thought, Torn, void_turns
from palyra.gateway.http.stream import KEEP_ALIVE_SECONDS, PIECE_BYTES
from palyra.gateway.http.wire import reply
from palyra.gateway.streams import Streams
from palyra.journal import approvals, runs, tape
from palyra.journal.engine import Connection, Engine
from palyra.journal.tail import Follower, Tail
from palyra.runs.approvals import CODE_CHARS
from palyra.runs.control import Control
from palyra.runs.intake import Intake

GONE = "the client of /v1 went away"
STOPPING = fault(503, "daemon_stopping", "The daemon is stopping. The run goes on when it is started again.")
BROKE_OFF = "The answer broke off ({why}). What you have of it does not count; the run goes on in its session."
MOST_OPEN = 20


class Shape(Protocol):
    """How an answer is written. It is told either whole or piece by piece."""

    def whole(self, telling: Telling) -> object:
        """Return the whole answer, to be sent as JSON."""
        ...

    def begin(self) -> bytes:
        """Return what stands before the first piece."""
        ...

    def piece(self, piece: Said | Thought) -> bytes:
        """Return a piece."""
        ...

    def end(self, telling: Telling) -> bytes:
        """Return what stands behind the last piece."""
        ...

    def fail(self, fault: Fault) -> bytes:
        """Return what is sent instead of the rest of an answer that can not be completed."""
        ...


MakeShape = Callable[[Accepted], Shape]


@dataclass(frozen=True, slots=True)
class Manner:
    """How a caller wants to be dealt with, as the headers say it."""

    session: SessionRef
    mode: Mode
    idempotency_key: str | None
    detached: bool
    link: str
    """Where the door is."""

    @property
    def stays(self) -> bool:
        """Whether the run goes on without its caller."""
        return self.detached or self.idempotency_key is not None


def manner_of(request: Request, *, user: str | None) -> Manner:
    """Read the headers. A session is named by one of them, or by the request's `user`."""
    key = request.headers.get("x-palyra-session")
    if key is None and user:
        key = f"v1:user:{user}"
    mode = request.headers.get("x-palyra-mode", Mode.QUEUE.value)
    if mode not in list(Mode):
        raise ParameterRefused("X-Palyra-Mode", f"X-Palyra-Mode is one of {', '.join(Mode)}, not {mode[:20]!r}.")
    return Manner(
        session=SessionRef(key=key) if key is not None else SessionRef(),
        mode=Mode(mode),
        idempotency_key=request.headers.get("idempotency-key"),
        detached=request.headers.get("x-palyra-detach", "").lower() == "true",
        link=str(request.base_url).rstrip("/"),
    )


class Door:
    """Takes calls in and answers them."""

    def __init__(self, engine: Engine, tail: Tail, *, streams: Streams, intake: Intake, control: Control) -> None:
        self.engine = engine
        self.control = control
        self._tail = tail
        self._streams = streams
        self._intake = intake

    async def answer(self, inbound: Inbound, manner: Manner, make: MakeShape, *, stream: bool) -> ASGIApp:
        """Take a message in, and return what answers it."""
        with self._streams.place(inbound.principal) as place:
            accepted = await self._intake.accept(inbound)
            void = await self._void(accepted) if accepted.repeated else frozenset[int]()
            kept = place.pop_all()
        follower = self._tail.follow(accepted.session_id, after_seq=accepted.after_seq, run_id=accepted.run_id)
        call = Call(
            self,
            inbound.principal,
            accepted,
            manner=manner,
            follower=follower,
            place=kept,
            telling=Telling(void=void),
        )
        return Streamed(call, make(accepted)) if stream else Whole(call, make(accepted))

    async def _void(self, accepted: Accepted) -> frozenset[int]:
        """Return the turns of a run that are known not to count, so that who comes again is not told of them."""
        return void_turns(await self.engine.read(lambda conn: tape.of_run(conn, accepted.run_id)))


def inbound_of(
    principal: PrincipalId,
    asked: Asked,
    manner: Manner,
    *,
    agent: str | None,
    brief: Brief,
    pictures: dict[str, bytes],
) -> Inbound:
    """Return the message that a call brings."""
    return Inbound(
        principal=principal,
        text=asked.text,
        images=asked.images,
        given=asked.given,
        session=manner.session,
        mode=manner.mode,
        idempotency_key=manner.idempotency_key,
        origin=channel.V1,
        agent=agent,
        brief=brief,
        pictures=pictures,
    )


class Call:
    """A call that is being answered."""

    def __init__(
        self,
        door: Door,
        principal: PrincipalId,
        accepted: Accepted,
        *,
        manner: Manner,
        follower: Follower,
        place: ExitStack,
        telling: Telling,
    ) -> None:
        self._door = door
        self._principal = principal
        self._accepted = accepted
        self._manner = manner
        self._follower = follower
        self._place = place
        self._gone = False
        self._over = False
        self.telling = telling

    @property
    def headers(self) -> dict[str, str]:
        """What the head of the answer says of the run."""
        run_id = self._accepted.run_id
        session_id = self._accepted.session_id
        return {"x-palyra-run-id": run_id, "x-palyra-session-id": session_id, "x-request-id": run_id}

    async def pieces(self) -> AsyncGenerator[list[Piece], None]:
        """Yield what there is to tell, in groups; an empty group when there was nothing for a while.

        Ends early if the caller is gone or the daemon stops.
        """
        if self._accepted.waiting_for is not None and not self._accepted.repeated:
            # It would wait for as long as somebody takes to answer a question that this caller may not know of.
            yield [self.telling.add(await self._queued()), self._end()]
            return
        while not self._over and not self._follower.closed:
            entries = await self._follower.next(seconds=KEEP_ALIVE_SECONDS)
            told = [piece for entry in entries for piece in self.telling.take(entry)]
            self._over = self.telling.end is not None
            if self.telling.asked and not self._over and await self._waits():
                told += [self.telling.add(self._questions()), self._end()]
            if entries and not told:
                continue
            yield told

    async def watch(self, receive: Receive) -> None:
        """Stop following when the caller is gone."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._follower.close()

    async def close(self) -> None:
        """Leave; the run of a caller that went away is cancelled."""
        self._follower.close()
        self._place.close()
        joined = self._accepted.steered or self._accepted.repeated
        if not self._gone or self._over or joined or self._manner.stays or await self._open_questions(of_run=True):
            return
        try:
            await self._door.control.cancel(self._principal, self._accepted.run_id, reason=GONE)
        except (NotFound, Unavailable):
            pass  # it has been moved away, or nothing can be written now; then it comes to its own end

    def _end(self) -> Over:
        self._over = True
        return Over()

    async def _waits(self) -> bool:
        """Tell whether the run waits for a person."""
        run = await self._door.engine.read(lambda conn: runs.get(conn, self._accepted.run_id, self._principal))
        return run is not None and run.status is RunStatus.WAITING

    def _questions(self) -> str:
        lines = ["This needs your word before it goes on:"]
        for event in self.telling.asked.values():
            lines += self._question(event.approval_id, _about(event))
        return "\n".join([*lines, "The run waits, and goes on when you have answered."])

    async def _queued(self) -> str:
        lines = ["Your message is kept, and has its turn when the run before it ends. That one waits for your word:"]
        for one in await self._open_questions(of_run=False):
            lines += self._question(one.approval_id, one.effect.summary or one.reason)
        return "\n".join(lines)

    async def _open_questions(self, *, of_run: bool) -> list[Approval]:
        """Return what somebody is asked about the run, or else about any run of its session."""

        def query(conn: Connection) -> list[Approval]:
            return approvals.page(conn, self._principal, only_open=True, before=None, limit=MOST_OPEN)

        accepted = self._accepted
        return [
            one
            for one in await self._door.engine.read(query)
            if (one.run_id == accepted.run_id if of_run else one.session_id == accepted.session_id)
        ]

    def _question(self, approval_id: str, about: str) -> list[str]:
        code = approval_id[-CODE_CHARS:]
        return [
            f"- {about}",
            f"  Code {code}: `palyra approvals allow {code}` or `palyra approvals deny {code}`,"
            f" or {self._manner.link}/console/v1/approvals/{approval_id}",
        ]


class Whole:
    """Answers when the run has come to its end, or waits for a person."""

    def __init__(self, call: Call, shape: Shape) -> None:
        self._call = call
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: Response = STOPPING.answer()

        async def tell() -> None:
            nonlocal answer
            async with aclosing(self._call.pieces()) as told:
                async for pieces in told:
                    if any(isinstance(piece, Over) for piece in pieces):
                        answer = self._answer()

        await attended(self._call, receive, tell)
        answer.headers.update(self._call.headers)
        await answer(scope, receive, send)

    def _answer(self) -> Response:
        telling = self._call.telling
        failed = failed_by(telling)
        return failed.answer() if failed is not None else reply(self._shape.whole(telling))


class Streamed:
    """Answers piece by piece. What was told and does not count any more ends the answer: two halves are never one."""

    def __init__(self, call: Call, shape: Shape) -> None:
        self._call = call
        self._shape = shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-store",
            "x-accel-buffering": "no",
            **self._call.headers,
        }

        async def tell() -> None:
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": 200, "headers": raw})
            await _send(send, self._shape.begin())
            await self._tell(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        await attended(self._call, receive, tell)

    async def _tell(self, send: Send) -> None:
        async with aclosing(self._call.pieces()) as told:
            async for pieces in told:
                written, over = self._written(pieces)
                await _send(send, written)
                if over:
                    return
        await _send(send, self._shape.fail(STOPPING))

    def _written(self, pieces: list[Piece]) -> tuple[bytes, bool]:
        """Return pieces as they are sent, and whether they are the last."""
        written = b"" if pieces else b": still here\n\n"
        for piece in pieces:
            match piece:
                case Torn(reason=reason):
                    return written + self._shape.fail(
                        fault(502, "answer_broke_off", BROKE_OFF.format(why=reason))
                    ), True
                case Over():
                    failed = failed_by(self._call.telling)
                    end = self._shape.fail(failed) if failed is not None else self._shape.end(self._call.telling)
                    return written + end, True
                case _:
                    written += self._shape.piece(piece)
        return written, False


async def attended(call: Call, receive: Receive, tell: Callable[[], Awaitable[None]]) -> None:
    """Tell the answer for as long as the caller is there."""
    try:
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(call.watch(receive))
            await tell()
            watcher.cancel()
    except BaseExceptionGroup as errors:
        # A task group wraps what its tasks raise; what there is to say about it is in the error itself.
        error: BaseException = errors
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
    finally:
        await call.close()


def failed_by(telling: Telling) -> Fault | None:
    """Return what an answer ends with that the run has none for."""
    return fault_of(telling.end) if isinstance(telling.end, RunFailed | RunCancelled) else None


async def _send(send: Send, data: bytes) -> None:
    # Piece by piece, so that little waits for a reader that is slow.
    for start in range(0, len(data), PIECE_BYTES):
        await send({"type": "http.response.body", "body": data[start : start + PIECE_BYTES], "more_body": True})


def _about(event: ApprovalRequested) -> str:
    if event.effect is not None and event.effect.summary:
        return event.effect.summary
    return event.tool or event.reason
