"""Runs over HTTP: send a message, follow a run, show it, cancel it."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from palyra.core import channel
from palyra.core.events import Entry
from palyra.core.ids import PrincipalId, RunId, SessionId, parse_ulid
from palyra.core.message import AcceptedMessage, Inbound
from palyra.core.model.request_options import RequestOptions
from palyra.core.run.record import RunRecord
from palyra.gateway.cursor import from_run, page, to_position
from palyra.gateway.error_status import RequestInvalid
from palyra.gateway.http.event_stream import EventStream
from palyra.gateway.http.messages import cursor, json_response, number, read_body
from palyra.gateway.http.operation import AFTER_SEQ, CURSOR, EVENTS, LAST_EVENT_ID, Operation, Parameter, page_limit
from palyra.gateway.records.runs import CancelRequest, MessageRequest, RunPage, RunResponse, TapePage
from palyra.gateway.stream_limit import StreamLimiter
from palyra.journal import tape
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import runs
from palyra.journal.tail import Tail
from palyra.runs.services.cancellation import CancellationService, RunNotFound
from palyra.runs.services.intake import MessageIntake

LIMIT = page_limit(50)
TAPE_LIMIT = page_limit(tape.PAGE_ENTRIES, tape.PAGE_ENTRIES)


class RunRoutes:
    """The operations that concern runs."""

    def __init__(
        self, engine: Engine, tail: Tail, *, streams: StreamLimiter, intake: MessageIntake, control: CancellationService
    ) -> None:
        self._engine = engine
        self._tail = tail
        self._streams = streams
        self._intake = intake
        self._control = control

    def operations(self) -> list[Operation]:
        every, one = "/console/v1/runs", "/console/v1/runs/{run_id}"
        session = Parameter("session_id", "string", "Only runs of this session.")
        key = Parameter("Idempotency-Key", "string", "Instead of the body's `idempotency_key`.", "header")
        return [
            Operation(
                "streamMessage",
                "POST",
                "/console/v1/chat",
                self.chat,
                "Send a message and follow its run.",
                need="write",
                query=(key,),
                body=MessageRequest,
                media=EVENTS,
                headers=(
                    ("x-palyra-run-id", "The run of the message."),
                    ("x-palyra-session-id", "Its session."),
                    ("x-palyra-after-seq", "The position of the session's tape before the run."),
                ),
            ),
            Operation(
                "sendMessage",
                "POST",
                every,
                self.send,
                "Send a message.",
                need="write",
                query=(key,),
                body=MessageRequest,
                answer=AcceptedMessage,
                status=202,
            ),
            Operation(
                "listRuns", "GET", every, self.index, "List runs.", query=(session, LIMIT, CURSOR), answer=RunPage
            ),
            Operation("getRun", "GET", one, self.show, "Show a run.", answer=RunResponse),
            Operation(
                "getRunTape",
                "GET",
                f"{one}/tape",
                self.tape,
                "Read a run's tape.",
                query=(AFTER_SEQ, LAST_EVENT_ID, TAPE_LIMIT),
                answer=TapePage,
            ),
            Operation(
                "followRun",
                "GET",
                f"{one}/events",
                self.events,
                "Follow a run to its end.",
                query=(AFTER_SEQ, LAST_EVENT_ID),
                media=EVENTS,
                headers=(("x-palyra-run-id", "The run."),),
                empty=True,
            ),
            Operation(
                "cancelRun",
                "POST",
                f"{one}/cancel",
                self.cancel,
                "Cancel a run.",
                need="write",
                body=CancelRequest,
                answer=RunResponse,
            ),
        ]

    async def send(self, request: Request, principal: PrincipalId) -> Response:
        """Accept a message and return its run."""
        return json_response(await self._accept(request, principal), status=202)

    async def chat(self, request: Request, principal: PrincipalId) -> ASGIApp:
        """Accept a message and respond with the run's events as they come."""
        with self._streams.slot(principal) as position:
            accepted = await self._accept(request, principal)
            stored = position.pop_all()
        follower = self._tail.follow(accepted.session_id, after_seq=accepted.after_seq, run_id=accepted.run_id)
        headers = {
            "x-palyra-run-id": accepted.run_id,
            "x-palyra-session-id": accepted.session_id,
            "x-palyra-after-seq": str(accepted.after_seq),
        }
        return EventStream(follower, stack=stored, headers=headers, ends_with_run=True)

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        """List runs, the latest first."""
        limit, before = number(request, LIMIT), cursor(request, to_position)
        session = request.query_params.get("session_id")
        session_id = None if session is None else SessionId(parse_ulid(session, "session id"))
        matching_runs = await self._control.page(principal, session_id=session_id, before=before, limit=limit + 1)
        runs, following = page(matching_runs, limit, from_run)
        return json_response(RunPage(runs=runs, next_cursor=following))

    async def show(self, request: Request, principal: PrincipalId) -> Response:
        """Show one run."""
        return json_response(RunResponse(run=await self._run(request, principal)))

    async def tape(self, request: Request, principal: PrincipalId) -> Response:
        """Return a page of the run's tape."""
        run = await self._run(request, principal)
        after, limit = after_seq(request), number(request, TAPE_LIMIT)

        def query(conn: Connection) -> list[Entry]:
            tape.check_position(after, tape.end(conn, run.session_id))
            return tape.page_of_run(conn, run.run_id, after_seq=after, limit=limit)

        return tape_page(await self._engine.read(query), last=run.last_seq)

    async def events(self, request: Request, principal: PrincipalId) -> ASGIApp:
        """Follow the run from a position of its session's tape to its end."""
        run = await self._run(request, principal)
        after = after_seq(request)
        end = await self._engine.read(lambda conn: tape.end(conn, run.session_id))
        tape.check_position(after, end)
        if run.ended_at is not None and after >= run.last_seq:
            return Response(status_code=204)
        position = self._streams.slot(principal)
        follower = self._tail.follow(run.session_id, after_seq=after, run_id=run.run_id)
        return EventStream(follower, stack=position, headers={"x-palyra-run-id": run.run_id}, ends_with_run=True)

    async def cancel(self, request: Request, principal: PrincipalId) -> Response:
        """Request cancellation of the run."""
        requested_request = await read_body(request, CancelRequest)
        run = await self._control.cancel(principal, request.path_params["run_id"], reason=requested_request.reason)
        return json_response(RunResponse(run=run))

    async def _accept(self, request: Request, principal: PrincipalId) -> AcceptedMessage:
        message = await read_body(request, MessageRequest)
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

    async def _run(self, request: Request, principal: PrincipalId) -> RunRecord:
        run_id = RunId(parse_ulid(request.path_params["run_id"], "run id"))
        run = await self._engine.read(lambda conn: runs.get(conn, run_id, principal))
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
