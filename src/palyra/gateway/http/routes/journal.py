"""The journal over HTTP: statistics, verification, anchors, and export."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from palyra.background.journal_inspection import JournalInspector
from palyra.core.ids import PrincipalId, SessionId, parse_ulid
from palyra.gateway.cursor import to_number
from palyra.gateway.http.client_presence import while_connected
from palyra.gateway.http.download import StreamedDownload
from palyra.gateway.http.messages import cursor, json_response, number, read_body
from palyra.gateway.http.operation import CURSOR, Operation, Parameter, page_limit
from palyra.gateway.records.journal import AnchorPage, VerificationProblem, VerificationResponse, VerifyRequest
from palyra.journal.engines.base import Engine
from palyra.journal.proof import anchors
from palyra.journal.proof.tape_proof import ProofReport
from palyra.journal.stats import Stats

NDJSON = "application/x-ndjson"
LIMIT = page_limit(20, 100)
SINCE = Parameter("since", "integer", "Only entries after the anchor of this number.")
MAX_PROBLEMS = 1_000


class JournalRoutes:
    """The operations that concern the journal as a whole."""

    def __init__(self, engine: Engine, inspection: JournalInspector) -> None:
        self._engine = engine
        self._inspection = inspection

    def operations(self) -> list[Operation]:
        at = "/admin/v1/journal"
        one = Parameter("session_id", "string", "Only the tape of this session.")
        return [
            Operation(
                "getJournalStats",
                "GET",
                f"{at}/stats",
                self.stats,
                "Count what the journal contains.",
                need="admin",
                answer=Stats,
            ),
            Operation(
                "listAnchors",
                "GET",
                f"{at}/anchors",
                self.anchors,
                "List anchors.",
                need="admin",
                query=(LIMIT, CURSOR),
                answer=AnchorPage,
            ),
            Operation(
                "verifyJournal",
                "POST",
                f"{at}/verify",
                self.verify,
                "Verify that nothing recorded was changed.",
                need="admin",
                body=VerifyRequest,
                answer=VerificationResponse,
            ),
            Operation(
                "exportJournal",
                "GET",
                f"{at}/export",
                self.export,
                "Download the tapes as lines of JSON with their proof.",
                need="admin",
                query=(one, SINCE),
                media=(NDJSON,),
            ),
        ]

    async def stats(self, request: Request, principal: PrincipalId) -> Response:
        """Count what the journal holds."""
        return json_response(await self._inspection.stats())

    async def anchors(self, request: Request, principal: PrincipalId) -> Response:
        """List anchors, the latest first, each as `verify` takes it."""
        limit, before = number(request, LIMIT), cursor(request, to_number)
        matching_anchors = await self._engine.read(lambda conn: anchors.before(conn, before, limit=limit))
        last = matching_anchors[-1].number if matching_anchors and matching_anchors[-1].number > 1 else None
        return json_response(AnchorPage(anchors=matching_anchors, next_cursor=str(last) if last is not None else None))

    async def verify(self, request: Request, principal: PrincipalId) -> Response:
        """Verify every tape and anchor for as long as the client waits."""
        requested_request = await read_body(request, VerifyRequest)
        async with while_connected(request.receive):
            report = await self._inspection.verify(requested_request.anchor)
        return json_response(_verdict(report))

    async def export(self, request: Request, principal: PrincipalId) -> ASGIApp:
        """Send an export in pieces."""
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
