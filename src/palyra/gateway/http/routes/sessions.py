"""Sessions over HTTP: find, list, search, change, read, follow, export."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp

from palyra.core.clock import from_ms
from palyra.core.events import Entry
from palyra.core.ids import PrincipalId, SessionId, parse_ulid
from palyra.core.session import Session, SessionNotFound, SessionRef
from palyra.gateway.cursor import from_session
from palyra.gateway.error_status import RequestInvalid
from palyra.gateway.http.event_stream import EventStream
from palyra.gateway.http.messages import MAX_PAGE, cursor, json_response, number, read_body
from palyra.gateway.http.operation import AFTER_SEQ, CURSOR, LIMIT, Handler, Operation, QueryParameter
from palyra.gateway.http.routes.runs import after_seq, tape_page
from palyra.gateway.records.runs import TapePage
from palyra.gateway.records.sessions import (
    MessagePage,
    RenameRequest,
    ResolvedSessionResponse,
    SearchHit,
    SearchHitPage,
    SessionMessage,
    SessionPage,
    SessionResponse,
)
from palyra.gateway.stream_limit import StreamLimiter
from palyra.journal import tape
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import messages, search, sessions
from palyra.journal.tail import Tail
from palyra.runs.services import session_export
from palyra.runs.services.sessions import SessionService

MAX_QUERY_CHARS = 500


class SessionRoutes:
    """The operations that concern sessions."""

    def __init__(self, engine: Engine, tail: Tail, *, streams: StreamLimiter, sessions: SessionService) -> None:
        self._engine = engine
        self._tail = tail
        self._streams = streams
        self._sessions = sessions

    def operations(self) -> list[Operation]:
        every, one = "/console/v1/sessions", "/console/v1/sessions/{session_id}"
        archived = QueryParameter("archived", "boolean", "Those that were put away instead.")
        words = QueryParameter("q", "string", "The words to find; the last may be a beginning.")
        before = QueryParameter("before", "integer", "Only messages before this position.")
        form = QueryParameter("format", "string", "`json` or `markdown`.")
        return [
            Operation("GET", every, self.index, "List sessions.", query=(archived, LIMIT, CURSOR), answer=SessionPage),
            Operation(
                "POST",
                f"{every}/resolve",
                self.resolve,
                "Find or make a session.",
                need="write",
                body=SessionRef,
                answer=ResolvedSessionResponse,
            ),
            Operation(
                "GET",
                f"{every}/search",
                self.search,
                "Search what was said.",
                query=(words, LIMIT),
                answer=SearchHitPage,
            ),
            Operation("GET", one, self.show, "Show a session.", answer=SessionResponse),
            Operation(
                "PATCH", one, self.rename, "Rename a session.", need="write", body=RenameRequest, answer=SessionResponse
            ),
            *(
                Operation("POST", f"{one}/{name}", self._changing(door), about, need="write", answer=SessionResponse)
                for name, door, about in (
                    ("reset", self._sessions.reset, "Begin afresh: what was said before is no longer context."),
                    ("archive", self._sessions.archive, "Put a session away."),
                    ("unarchive", self._sessions.unarchive, "Take a session back."),
                    ("cleanup", self._sessions.cleanup, "Cancel what is active, archive, free the key."),
                )
            ),
            Operation(
                "GET",
                f"{one}/messages",
                self.messages,
                "Read a conversation.",
                query=(before, LIMIT),
                answer=MessagePage,
            ),
            Operation("GET", f"{one}/export", self.export, "Get a whole session.", query=(form,), media="*/*"),
            Operation(
                "GET", f"{one}/tape", self.tape, "Read a session's tape.", query=(AFTER_SEQ, LIMIT), answer=TapePage
            ),
            Operation(
                "GET", f"{one}/events", self.events, "Follow a session.", query=(AFTER_SEQ,), media="text/event-stream"
            ),
        ]

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        """List sessions, the latest first."""
        limit, before = number(request, "limit", default=50, most=MAX_PAGE), cursor(request)
        archived = request.query_params.get("archived", "false")
        if archived not in ("true", "false"):
            raise RequestInvalid("archived is true or false.")
        found = await self._sessions.page(principal, archived=archived == "true", before=before, limit=limit)
        last = found[-1] if len(found) == limit else None
        return json_response(SessionPage(sessions=found, next_cursor=from_session(last) if last else None))

    async def resolve(self, request: Request, principal: PrincipalId) -> Response:
        """Find or create a session."""
        session, created = await self._sessions.resolve(principal, await read_body(request, SessionRef))
        return json_response(ResolvedSessionResponse(session=session, created=created))

    async def search(self, request: Request, principal: PrincipalId) -> Response:
        """Search all messages."""
        query = request.query_params.get("q", "")[:MAX_QUERY_CHARS]
        limit = number(request, "limit", default=20, most=100)

        def find(conn: Connection) -> list[SearchHit]:
            return [
                SearchHit(session_id=hit.session_id, tape_seq=hit.tape_seq, title=session.title, text=hit.text)
                for hit in search.find(conn, principal, query, limit=limit)
                if (session := sessions.get(conn, hit.session_id, principal)) is not None
            ]

        return json_response(SearchHitPage(hits=await self._engine.read(find)))

    async def show(self, request: Request, principal: PrincipalId) -> Response:
        """Show one session."""
        return json_response(SessionResponse(session=await self._session(request, principal)))

    async def rename(self, request: Request, principal: PrincipalId) -> Response:
        """Change the title."""
        asked = await read_body(request, RenameRequest)
        return json_response(
            {"session": await self._sessions.rename(principal, request.path_params["session_id"], asked.title)}
        )

    async def messages(self, request: Request, principal: PrincipalId) -> Response:
        """Return the conversation, the latest message first."""
        session = await self._session(request, principal)
        limit = number(request, "limit", default=50, most=MAX_PAGE)
        before = number(request, "before", default=0) or None
        kept = await self._engine.read(
            lambda conn: messages.transcript(conn, session.session_id, before=before, limit=limit)
        )
        said = [
            SessionMessage(
                tape_seq=item.tape_seq,
                run_id=item.run_id,
                role=item.message.role,
                text=item.message.text,
                at=from_ms(item.at_ms),
            )
            for item in kept
        ]
        return json_response(MessagePage(messages=said, next_before=kept[-1].tape_seq if len(kept) == limit else None))

    async def export(self, request: Request, principal: PrincipalId) -> Response:
        """Return the whole session as a document."""
        session = await self._session(request, principal)
        match request.query_params.get("format", "json"):
            case "json":
                return StreamingResponse(session_export.as_json(self._engine, session), media_type="application/json")
            case "markdown":
                return StreamingResponse(session_export.as_markdown(self._engine, session), media_type="text/markdown")
            case _:
                raise RequestInvalid("format is json or markdown.")

    async def tape(self, request: Request, principal: PrincipalId) -> Response:
        """Return a page of the session's tape."""
        session = await self._session(request, principal)
        after, limit = after_seq(request), number(request, "limit", default=tape.PAGE_ENTRIES, most=tape.PAGE_ENTRIES)

        def query(conn: Connection) -> tuple[list[Entry], int]:
            end = tape.end(conn, session.session_id)
            tape.check_position(after, end)
            return tape.page(conn, session.session_id, after_seq=after, limit=limit), end

        entries, end = await self._engine.read(query)
        return tape_page(entries, last=end)

    async def events(self, request: Request, principal: PrincipalId) -> ASGIApp:
        """Follow everything that happens in the session, from a position on."""
        session = await self._session(request, principal)
        after = after_seq(request)
        tape.check_position(after, await self._engine.read(lambda conn: tape.end(conn, session.session_id)))
        place = self._streams.slot(principal)
        follower = self._tail.follow(session.session_id, after_seq=after)
        return EventStream(
            follower, place=place, headers={"x-palyra-session-id": session.session_id}, ends_with_run=False
        )

    def _changing(self, door: Callable[[PrincipalId, str], Awaitable[Session]]) -> Handler:
        async def change(request: Request, principal: PrincipalId) -> Response:
            return json_response(SessionResponse(session=await door(principal, request.path_params["session_id"])))

        return change

    async def _session(self, request: Request, principal: PrincipalId) -> Session:
        session_id = SessionId(parse_ulid(request.path_params["session_id"], "session id"))
        session = await self._engine.read(lambda conn: sessions.get(conn, session_id, principal))
        if session is None:
            raise SessionNotFound
        return session
