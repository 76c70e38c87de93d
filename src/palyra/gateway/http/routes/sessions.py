"""Sessions over HTTP: find, list, search, change, read, follow, export."""

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from palyra.core.clock import from_ms
from palyra.core.events import Entry
from palyra.core.ids import PrincipalId, SessionId, parse_ulid
from palyra.core.session import Session, SessionNotFound, SessionRef
from palyra.gateway.cursor import from_session, page, to_number, to_position
from palyra.gateway.error_status import RequestInvalid
from palyra.gateway.http.declaration import Routes, operation
from palyra.gateway.http.event_stream import EventStream
from palyra.gateway.http.messages import cursor, flag, number
from palyra.gateway.http.operation import AFTER_SEQ, CURSOR, EVENTS, LAST_EVENT_ID, Parameter, page_limit
from palyra.gateway.http.routes.runs import TAPE_LIMIT, after_seq, tape_page
from palyra.gateway.records.runs import TapeEntry, TapePage
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
LIMIT = page_limit(50)
SEARCH_LIMIT = page_limit(20, 200)
FORMAT = Parameter("format", "string", "The type of the document.", default="json", choices=("json", "markdown"))
ARCHIVED = Parameter("archived", "boolean", "Only archived sessions.", default=False)
WORDS = Parameter("q", "string", "The words to find; the last may be a prefix.", required=True)


class SessionRoutes(Routes):
    """The operations that concern sessions."""

    def __init__(self, engine: Engine, tail: Tail, *, streams: StreamLimiter, sessions: SessionService) -> None:
        self._engine = engine
        self._tail = tail
        self._streams = streams
        self._sessions = sessions

    @operation("listSessions", "GET /console/v1/sessions", query=(ARCHIVED, LIMIT, CURSOR))
    async def index(self, request: Request, principal: PrincipalId) -> SessionPage:
        """List sessions."""
        limit, before = number(request, LIMIT), cursor(request, to_position)
        matching_sessions = await self._sessions.page(
            principal, archived=flag(request, "archived"), before=before, limit=limit + 1
        )
        sessions, following = page(matching_sessions, limit, from_session)
        return SessionPage(sessions=sessions, next_cursor=following)

    @operation("resolveSession", "POST /console/v1/sessions/resolve")
    async def resolve(self, principal: PrincipalId, body: SessionRef) -> ResolvedSessionResponse:
        """Find or create a session."""
        session, created = await self._sessions.resolve(principal, body)
        return ResolvedSessionResponse(session=session, created=created)

    @operation("searchMessages", "GET /console/v1/sessions/search", query=(WORDS, SEARCH_LIMIT, CURSOR))
    async def search(self, request: Request, principal: PrincipalId) -> SearchHitPage:
        """Search all messages."""
        query = request.query_params.get("q", "")[:MAX_QUERY_CHARS]
        limit, offset = number(request, SEARCH_LIMIT), cursor(request, to_number) or 0

        def find(conn: Connection) -> SearchHitPage:
            message_hits = search.find(conn, principal, query, offset=offset, limit=limit + 1)
            # Hits have a rank, and no order of their own: a page begins after so many.
            hits, following = page(message_hits, limit, lambda _: str(offset + limit))
            return SearchHitPage(
                hits=[
                    SearchHit(session_id=hit.session_id, tape_seq=hit.tape_seq, title=session.title, text=hit.text)
                    for hit in hits
                    if (session := sessions.get(conn, hit.session_id, principal)) is not None
                ],
                next_cursor=following,
            )

        return await self._engine.read(find)

    @operation("getSession", "GET /console/v1/sessions/{session_id}")
    async def show(self, principal: PrincipalId, session_id: str) -> SessionResponse:
        """Show a session."""
        return SessionResponse(session=await self._session(principal, session_id))

    @operation("updateSession", "PATCH /console/v1/sessions/{session_id}")
    async def rename(self, principal: PrincipalId, session_id: str, body: RenameRequest) -> SessionResponse:
        """Rename a session."""
        return SessionResponse(session=await self._sessions.rename(principal, session_id, body.title))

    @operation("resetSession", "POST /console/v1/sessions/{session_id}/reset")
    async def reset(self, principal: PrincipalId, session_id: str) -> SessionResponse:
        """Reset a session: earlier messages are no longer context."""
        return SessionResponse(session=await self._sessions.reset(principal, session_id))

    @operation("archiveSession", "POST /console/v1/sessions/{session_id}/archive")
    async def archive(self, principal: PrincipalId, session_id: str) -> SessionResponse:
        """Archive a session."""
        return SessionResponse(session=await self._sessions.archive(principal, session_id))

    @operation("unarchiveSession", "POST /console/v1/sessions/{session_id}/unarchive")
    async def unarchive(self, principal: PrincipalId, session_id: str) -> SessionResponse:
        """Unarchive a session."""
        return SessionResponse(session=await self._sessions.unarchive(principal, session_id))

    @operation("cleanupSession", "POST /console/v1/sessions/{session_id}/cleanup")
    async def cleanup(self, principal: PrincipalId, session_id: str) -> SessionResponse:
        """Cancel the active runs, archive the session, free its key."""
        return SessionResponse(session=await self._sessions.cleanup(principal, session_id))

    @operation("listMessages", "GET /console/v1/sessions/{session_id}/messages", query=(LIMIT, CURSOR))
    async def messages(self, request: Request, principal: PrincipalId, session_id: str) -> MessagePage:
        """List the messages of a session."""
        session = await self._session(principal, session_id)
        limit, before = number(request, LIMIT), cursor(request, to_number)
        matching_messages = await self._engine.read(
            lambda conn: messages.transcript(conn, session.session_id, before=before, limit=limit + 1)
        )
        stored, following = page(matching_messages, limit, lambda item: str(item.tape_seq))
        sent_messages = [
            SessionMessage(
                tape_seq=item.tape_seq,
                run_id=item.run_id,
                role=item.message.role,
                text=item.message.text,
                at=from_ms(item.at_ms),
            )
            for item in stored
        ]
        return MessagePage(messages=sent_messages, next_cursor=following)

    @operation(
        "exportSession",
        "GET /console/v1/sessions/{session_id}/export",
        query=(FORMAT,),
        media=("application/json", "text/markdown"),
    )
    async def export(self, request: Request, principal: PrincipalId, session_id: str) -> Response:
        """Export a session."""
        session = await self._session(principal, session_id)
        match request.query_params.get("format", "json"):
            case "json":
                return StreamingResponse(session_export.as_json(self._engine, session), media_type="application/json")
            case "markdown":
                return StreamingResponse(session_export.as_markdown(self._engine, session), media_type="text/markdown")
            case _:
                raise RequestInvalid("format must be json or markdown.")

    @operation(
        "getSessionTape",
        "GET /console/v1/sessions/{session_id}/tape",
        query=(AFTER_SEQ, LAST_EVENT_ID, TAPE_LIMIT),
        answer=TapePage,
    )
    async def tape(self, request: Request, principal: PrincipalId, session_id: str) -> Response:
        """Read a session's tape."""
        session = await self._session(principal, session_id)
        after, limit = after_seq(request), number(request, TAPE_LIMIT)

        def query(conn: Connection) -> tuple[list[Entry], int]:
            end = tape.end(conn, session.session_id)
            tape.check_position(after, end)
            return tape.page(conn, session.session_id, after_seq=after, limit=limit), end

        entries, end = await self._engine.read(query)
        return tape_page(entries, last=end)

    @operation(
        "followSession",
        "GET /console/v1/sessions/{session_id}/events",
        query=(AFTER_SEQ, LAST_EVENT_ID),
        media=EVENTS,
        answer=TapeEntry,
        headers=(("x-palyra-session-id", "The session."),),
    )
    async def events(self, request: Request, principal: PrincipalId, session_id: str) -> EventStream:
        """Follow a session."""
        session = await self._session(principal, session_id)
        after = after_seq(request)
        tape.check_position(after, await self._engine.read(lambda conn: tape.end(conn, session.session_id)))
        position = self._streams.slot(principal)
        follower = self._tail.follow(session.session_id, after_seq=after)
        return EventStream(
            follower, stack=position, headers={"x-palyra-session-id": session.session_id}, ends_with_run=False
        )

    async def _session(self, principal: PrincipalId, session_id: str) -> Session:
        named = SessionId(parse_ulid(session_id, "session id"))
        session = await self._engine.read(lambda conn: sessions.get(conn, named, principal))
        if session is None:
            raise SessionNotFound
        return session
