"""Sessions over HTTP: find, list, search, change, read, follow, export."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp

from palyra.core.clock import from_ms
from palyra.core.events import Entry
from palyra.core.ids import PrincipalId, SessionId, parse_ulid
from palyra.core.session import Session, SessionNotFound, SessionRef
from palyra.gateway.cursor import from_session, page, to_number, to_position
from palyra.gateway.error_status import RequestInvalid
from palyra.gateway.http.event_stream import EventStream
from palyra.gateway.http.messages import cursor, flag, json_response, number, read_body
from palyra.gateway.http.operation import (
    AFTER_SEQ,
    CURSOR,
    EVENTS,
    LAST_EVENT_ID,
    Handler,
    Operation,
    Parameter,
    page_limit,
)
from palyra.gateway.http.routes.runs import TAPE_LIMIT, after_seq, tape_page
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
LIMIT = page_limit(50)
SEARCH_LIMIT = page_limit(20, 200)
FORMAT = Parameter("format", "string", "The type of the document.", default="json", choices=("json", "markdown"))


class SessionRoutes:
    """The operations that concern sessions."""

    def __init__(self, engine: Engine, tail: Tail, *, streams: StreamLimiter, sessions: SessionService) -> None:
        self._engine = engine
        self._tail = tail
        self._streams = streams
        self._sessions = sessions

    def operations(self) -> list[Operation]:
        every, one = "/console/v1/sessions", "/console/v1/sessions/{session_id}"
        archived = Parameter("archived", "boolean", "Only archived sessions.", default=False)
        words = Parameter("q", "string", "The words to find; the last may be a prefix.", required=True)
        return [
            Operation(
                "listSessions",
                "GET",
                every,
                self.index,
                "List sessions.",
                query=(archived, LIMIT, CURSOR),
                answer=SessionPage,
            ),
            Operation(
                "resolveSession",
                "POST",
                f"{every}/resolve",
                self.resolve,
                "Find or create a session.",
                need="write",
                body=SessionRef,
                answer=ResolvedSessionResponse,
            ),
            Operation(
                "searchMessages",
                "GET",
                f"{every}/search",
                self.search,
                "Search all messages.",
                query=(words, SEARCH_LIMIT, CURSOR),
                answer=SearchHitPage,
            ),
            Operation("getSession", "GET", one, self.show, "Show a session.", answer=SessionResponse),
            Operation(
                "updateSession",
                "PATCH",
                one,
                self.rename,
                "Rename a session.",
                need="write",
                body=RenameRequest,
                answer=SessionResponse,
            ),
            *(
                Operation(
                    f"{verb}Session",
                    "POST",
                    f"{one}/{verb}",
                    self._changing(change),
                    about,
                    need="write",
                    answer=SessionResponse,
                )
                for verb, change, about in (
                    ("reset", self._sessions.reset, "Reset a session: earlier messages are no longer context."),
                    ("archive", self._sessions.archive, "Archive a session."),
                    ("unarchive", self._sessions.unarchive, "Unarchive a session."),
                    ("cleanup", self._sessions.cleanup, "Cancel the active runs, archive the session, free its key."),
                )
            ),
            Operation(
                "listMessages",
                "GET",
                f"{one}/messages",
                self.messages,
                "List the messages of a session.",
                query=(LIMIT, CURSOR),
                answer=MessagePage,
            ),
            Operation(
                "exportSession",
                "GET",
                f"{one}/export",
                self.export,
                "Export a session.",
                query=(FORMAT,),
                media=("application/json", "text/markdown"),
            ),
            Operation(
                "getSessionTape",
                "GET",
                f"{one}/tape",
                self.tape,
                "Read a session's tape.",
                query=(AFTER_SEQ, LAST_EVENT_ID, TAPE_LIMIT),
                answer=TapePage,
            ),
            Operation(
                "followSession",
                "GET",
                f"{one}/events",
                self.events,
                "Follow a session.",
                query=(AFTER_SEQ, LAST_EVENT_ID),
                media=EVENTS,
                headers=(("x-palyra-session-id", "The session."),),
            ),
        ]

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        """List sessions, the latest first."""
        limit, before = number(request, LIMIT), cursor(request, to_position)
        matching_sessions = await self._sessions.page(
            principal, archived=flag(request, "archived"), before=before, limit=limit + 1
        )
        sessions, following = page(matching_sessions, limit, from_session)
        return json_response(SessionPage(sessions=sessions, next_cursor=following))

    async def resolve(self, request: Request, principal: PrincipalId) -> Response:
        """Find or create a session."""
        session, created = await self._sessions.resolve(principal, await read_body(request, SessionRef))
        return json_response(ResolvedSessionResponse(session=session, created=created))

    async def search(self, request: Request, principal: PrincipalId) -> Response:
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

        return json_response(await self._engine.read(find))

    async def show(self, request: Request, principal: PrincipalId) -> Response:
        """Show one session."""
        return json_response(SessionResponse(session=await self._session(request, principal)))

    async def rename(self, request: Request, principal: PrincipalId) -> Response:
        """Change the title."""
        requested_request = await read_body(request, RenameRequest)
        renamed = await self._sessions.rename(principal, request.path_params["session_id"], requested_request.title)
        return json_response(SessionResponse(session=renamed))

    async def messages(self, request: Request, principal: PrincipalId) -> Response:
        """Return the conversation, the latest message first."""
        session = await self._session(request, principal)
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
        return json_response(MessagePage(messages=sent_messages, next_cursor=following))

    async def export(self, request: Request, principal: PrincipalId) -> Response:
        """Return the whole session as a document."""
        session = await self._session(request, principal)
        match request.query_params.get("format", "json"):
            case "json":
                return StreamingResponse(session_export.as_json(self._engine, session), media_type="application/json")
            case "markdown":
                return StreamingResponse(session_export.as_markdown(self._engine, session), media_type="text/markdown")
            case _:
                raise RequestInvalid("format must be json or markdown.")

    async def tape(self, request: Request, principal: PrincipalId) -> Response:
        """Return a page of the session's tape."""
        session = await self._session(request, principal)
        after, limit = after_seq(request), number(request, TAPE_LIMIT)

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
        position = self._streams.slot(principal)
        follower = self._tail.follow(session.session_id, after_seq=after)
        return EventStream(
            follower, stack=position, headers={"x-palyra-session-id": session.session_id}, ends_with_run=False
        )

    def _changing(self, service: Callable[[PrincipalId, str], Awaitable[Session]]) -> Handler:
        async def change(request: Request, principal: PrincipalId) -> Response:
            return json_response(SessionResponse(session=await service(principal, request.path_params["session_id"])))

        return change

    async def _session(self, request: Request, principal: PrincipalId) -> Session:
        session_id = SessionId(parse_ulid(request.path_params["session_id"], "session id"))
        session = await self._engine.read(lambda conn: sessions.get(conn, session_id, principal))
        if session is None:
            raise SessionNotFound
        return session
