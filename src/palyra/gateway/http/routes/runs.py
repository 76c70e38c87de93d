"""Runs over HTTP: send a message, follow a run, show it, cancel it."""

from starlette.requests import Request
from starlette.responses import Response

from palyra.core import channel
from palyra.core.events import Entry
from palyra.core.ids import PrincipalId, RunId, SessionId, parse_ulid
from palyra.core.message import AcceptedMessage, Inbound
from palyra.core.model.request_options import RequestOptions
from palyra.core.run.record import RunRecord
from palyra.gateway.cursor import from_run, page, to_position
from palyra.gateway.error_status import RequestInvalid
from palyra.gateway.http.declaration import Routes, operation
from palyra.gateway.http.event_stream import EventStream
from palyra.gateway.http.messages import cursor, number
from palyra.gateway.http.operation import AFTER_SEQ, CURSOR, EVENTS, LAST_EVENT_ID, Parameter, page_limit
from palyra.gateway.records.runs import CancelRequest, MessageRequest, RunPage, RunResponse, TapeEntry, TapePage
from palyra.gateway.stream_limit import StreamLimiter
from palyra.journal import tape
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import runs
from palyra.journal.tail import Tail
from palyra.runs.services.cancellation import CancellationService, RunNotFound
from palyra.runs.services.intake import MessageIntake

LIMIT = page_limit(50)
TAPE_LIMIT = page_limit(tape.PAGE_ENTRIES, tape.PAGE_ENTRIES)
SESSION = Parameter("session_id", "string", "Only runs of this session.")
KEY = Parameter("Idempotency-Key", "string", "Instead of the body's `idempotency_key`.", "header")


class RunRoutes(Routes):
    """The operations that concern runs."""

    def __init__(
        self, engine: Engine, tail: Tail, *, streams: StreamLimiter, intake: MessageIntake, control: CancellationService
    ) -> None:
        self._engine = engine
        self._tail = tail
        self._streams = streams
        self._intake = intake
        self._control = control

    @operation(
        "streamMessage",
        "POST /console/v1/chat",
        query=(KEY,),
        media=EVENTS,
        answer=TapeEntry,
        headers=(
            ("x-palyra-run-id", "The run of the message."),
            ("x-palyra-session-id", "Its session."),
            ("x-palyra-after-seq", "The position of the session's tape before the run."),
        ),
    )
    async def chat(self, request: Request, principal: PrincipalId, body: MessageRequest) -> EventStream:
        """Send a message and follow its run."""
        with self._streams.slot(principal) as position:
            accepted = await self._accept(request, principal, body)
            stored = position.pop_all()
        follower = self._tail.follow(accepted.session_id, after_seq=accepted.after_seq, run_id=accepted.run_id)
        headers = {
            "x-palyra-run-id": accepted.run_id,
            "x-palyra-session-id": accepted.session_id,
            "x-palyra-after-seq": str(accepted.after_seq),
        }
        return EventStream(follower, stack=stored, headers=headers, ends_with_run=True)

    @operation("sendMessage", "POST /console/v1/runs", query=(KEY,), status=202)
    async def send(self, request: Request, principal: PrincipalId, body: MessageRequest) -> AcceptedMessage:
        """Send a message."""
        return await self._accept(request, principal, body)

    @operation("listRuns", "GET /console/v1/runs", query=(SESSION, LIMIT, CURSOR))
    async def index(self, request: Request, principal: PrincipalId) -> RunPage:
        """List runs."""
        limit, before = number(request, LIMIT), cursor(request, to_position)
        session = request.query_params.get("session_id")
        session_id = None if session is None else SessionId(parse_ulid(session, "session id"))
        matching_runs = await self._control.page(principal, session_id=session_id, before=before, limit=limit + 1)
        runs, following = page(matching_runs, limit, from_run)
        return RunPage(runs=runs, next_cursor=following)

    @operation("getRun", "GET /console/v1/runs/{run_id}")
    async def show(self, principal: PrincipalId, run_id: str) -> RunResponse:
        """Show a run."""
        return RunResponse(run=await self._run(principal, run_id))

    @operation(
        "getRunTape",
        "GET /console/v1/runs/{run_id}/tape",
        query=(AFTER_SEQ, LAST_EVENT_ID, TAPE_LIMIT),
        answer=TapePage,
    )
    async def tape(self, request: Request, principal: PrincipalId, run_id: str) -> Response:
        """Read a run's tape."""
        run = await self._run(principal, run_id)
        after, limit = after_seq(request), number(request, TAPE_LIMIT)

        def query(conn: Connection) -> list[Entry]:
            tape.check_position(after, tape.end(conn, run.session_id))
            return tape.page_of_run(conn, run.run_id, after_seq=after, limit=limit)

        return tape_page(await self._engine.read(query), last=run.last_seq)

    @operation(
        "followRun",
        "GET /console/v1/runs/{run_id}/events",
        query=(AFTER_SEQ, LAST_EVENT_ID),
        media=EVENTS,
        answer=TapeEntry,
        headers=(("x-palyra-run-id", "The run."),),
    )
    async def events(self, request: Request, principal: PrincipalId, run_id: str) -> EventStream | None:
        """Follow a run to its end."""
        run = await self._run(principal, run_id)
        after = after_seq(request)
        end = await self._engine.read(lambda conn: tape.end(conn, run.session_id))
        tape.check_position(after, end)
        if run.ended_at is not None and after >= run.last_seq:
            return None
        position = self._streams.slot(principal)
        follower = self._tail.follow(run.session_id, after_seq=after, run_id=run.run_id)
        return EventStream(follower, stack=position, headers={"x-palyra-run-id": run.run_id}, ends_with_run=True)

    @operation("cancelRun", "POST /console/v1/runs/{run_id}/cancel")
    async def cancel(self, principal: PrincipalId, run_id: str, body: CancelRequest) -> RunResponse:
        """Cancel a run."""
        return RunResponse(run=await self._control.cancel(principal, run_id, reason=body.reason))

    async def _accept(self, request: Request, principal: PrincipalId, message: MessageRequest) -> AcceptedMessage:
        header = request.headers.get("idempotency-key")
        if header is not None and message.idempotency_key not in (None, header):
            raise RequestInvalid(
                "The header Idempotency-Key and the body's idempotency_key differ. Send only one of them."
            )
        return await self._intake.accept(
            Inbound(
                principal=principal,
                text=message.text,
                session=message.session,
                mode=message.mode,
                idempotency_key=header if message.idempotency_key is None else message.idempotency_key,
                channel=channel.HTTP,
                options=RequestOptions(model=message.model, task=message.task),
            )
        )

    async def _run(self, principal: PrincipalId, run_id: str) -> RunRecord:
        named = RunId(parse_ulid(run_id, "run id"))
        run = await self._engine.read(lambda conn: runs.get(conn, named, principal))
        if run is None:
            raise RunNotFound
        return run


def after_seq(request: Request) -> int:
    """Return the position to continue from: the last event that the client has seen, a parameter, or the start."""
    seen = request.headers.get("last-event-id")
    if seen is None:
        return number(request, AFTER_SEQ)
    if not seen.isascii() or not seen.isdigit() or len(seen) > 16:
        raise RequestInvalid(f"Last-Event-ID must be a position on the tape, not {seen[:40]!r}.")
    return int(seen)


def tape_page(entries: list[Entry], *, last: int) -> Response:
    """Respond with entries as they are stored, and where the next page begins, if there is one."""
    following = entries[-1].tape_seq if entries and entries[-1].tape_seq < last else None
    listed = ",".join(entry.to_json() for entry in entries)
    text = f'{{"entries":[{listed}],"next_after_seq":{following if following is not None else "null"}}}'
    return Response(text, media_type="application/json")
