"""The journal over HTTP: statistics, verification, anchors, and export."""

from starlette.requests import Request
from starlette.types import ASGIApp

from palyra.background.journal_inspection import JournalInspector
from palyra.core.ids import SessionId, parse_ulid
from palyra.gateway.cursor import to_number
from palyra.gateway.http.client_presence import while_connected
from palyra.gateway.http.declaration import Routes, operation
from palyra.gateway.http.download import StreamedDownload
from palyra.gateway.http.messages import cursor, number
from palyra.gateway.http.operation import CURSOR, Parameter, page_limit
from palyra.gateway.records.journal import AnchorPage, VerificationProblem, VerificationResponse, VerifyRequest
from palyra.journal.engines.base import Engine
from palyra.journal.proof import anchors
from palyra.journal.proof.tape_proof import ProofReport
from palyra.journal.stats import Stats

NDJSON = "application/x-ndjson"
LIMIT = page_limit(20, 100)
SINCE = Parameter("since", "integer", "Only entries after the anchor of this number.")
MAX_PROBLEMS = 1_000
SESSION = Parameter("session_id", "string", "Only the tape of this session.")


class JournalRoutes(Routes):
    """The operations that concern the journal as a whole."""

    def __init__(self, engine: Engine, inspection: JournalInspector) -> None:
        self._engine = engine
        self._inspection = inspection

    @operation("getJournalStats", "GET /admin/v1/journal/stats", need="admin")
    async def stats(self) -> Stats:
        """Count what the journal contains."""
        return await self._inspection.stats()

    @operation("listAnchors", "GET /admin/v1/journal/anchors", need="admin", query=(LIMIT, CURSOR))
    async def anchors(self, request: Request) -> AnchorPage:
        """List anchors."""
        limit, before = number(request, LIMIT), cursor(request, to_number)
        matching_anchors = await self._engine.read(lambda conn: anchors.before(conn, before, limit=limit))
        last = matching_anchors[-1].number if matching_anchors and matching_anchors[-1].number > 1 else None
        return AnchorPage(anchors=matching_anchors, next_cursor=str(last) if last is not None else None)

    @operation("verifyJournal", "POST /admin/v1/journal/verify", need="admin")
    async def verify(self, request: Request, body: VerifyRequest) -> VerificationResponse:
        """Verify that nothing recorded was changed."""
        async with while_connected(request.receive):
            report = await self._inspection.verify(body.anchor)
        return _verdict(report)

    @operation("exportJournal", "GET /admin/v1/journal/export", need="admin", query=(SESSION, SINCE), media=(NDJSON,))
    async def export(self, request: Request) -> ASGIApp:
        """Download the tapes as lines of JSON with their proof."""
        named = request.query_params.get("session_id")
        session_id = SessionId(parse_ulid(named, "session id")) if named is not None else None
        since = number(request, SINCE) if SINCE.name in request.query_params else None
        pieces = self._inspection.export(session_id=session_id, since=since)
        return StreamedDownload(pieces, media=NDJSON, name="journal.ndjson")


def _verdict(report: ProofReport) -> VerificationResponse:
    verification_problems = [
        VerificationProblem(session_id=problem.session_id, tape_seq=problem.tape_seq, what=problem.what)
        for problem in report.problems[:MAX_PROBLEMS]
    ]
    return VerificationResponse(
        ok=report.ok,
        sessions=report.sessions,
        entries=report.entries,
        anchors=report.anchors,
        after_anchor=report.after_anchor,
        rotated=report.rotated,
        attested=report.attested,
        unattested=report.unattested,
        problem_count=len(report.problems),
        problems=verification_problems,
    )
