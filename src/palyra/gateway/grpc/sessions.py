"""Sessions over gRPC: list, resolve, clean up."""

from palyra.core.ids import PrincipalId
from palyra.gateway.cursor import from_session, page, to_position
from palyra.gateway.grpc import convert
from palyra.gateway.grpc.methods import Handler, Methods
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.journal.engines.base import Engine
from palyra.runs.services.sessions import SessionService

DEFAULT_PAGE = 50
MAX_PAGE = 500


class SessionMethods:
    """The methods that concern sessions."""

    def __init__(self, engine: Engine, *, sessions: SessionService) -> None:
        self._engine = engine
        self._sessions = sessions

    def handlers(self, methods: Methods) -> dict[str, Handler]:
        return {
            "ListSessions": methods.unary(self.list_sessions, pb.ListSessionsRequest),
            "ResolveSession": methods.unary(self.resolve_session, pb.ResolveSessionRequest, need="write"),
            "CleanupSession": methods.unary(self.cleanup_session, pb.CleanupSessionRequest, need="write"),
        }

    async def list_sessions(self, request: pb.ListSessionsRequest, principal: PrincipalId) -> pb.ListSessionsResponse:
        """Return a page of the principal's sessions, the latest first."""
        limit = min(request.limit, MAX_PAGE) if request.limit > 0 else DEFAULT_PAGE
        before = to_position(request.cursor) if request.cursor else None
        matching_sessions = await self._sessions.page(
            principal, archived=request.archived, before=before, limit=limit + 1
        )
        sessions, following = page(matching_sessions, limit, from_session)
        return pb.ListSessionsResponse(sessions=convert.to_messages(pb.Session, sessions), next_cursor=following)

    async def resolve_session(
        self, request: pb.ResolveSessionRequest, principal: PrincipalId
    ) -> pb.ResolveSessionResponse:
        """Find or create a session."""
        session, created = await self._sessions.resolve(principal, convert.to_session_ref(request.session))
        return pb.ResolveSessionResponse(session=convert.to_message(pb.Session, session), created=created)

    async def cleanup_session(
        self, request: pb.CleanupSessionRequest, principal: PrincipalId
    ) -> pb.CleanupSessionResponse:
        """Cancel the active runs, archive the session, free its key."""
        session = await self._sessions.cleanup(principal, request.session_id)
        return pb.CleanupSessionResponse(session=convert.to_message(pb.Session, session))
