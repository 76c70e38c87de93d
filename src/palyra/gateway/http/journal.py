"""The journal over HTTP: how much it holds, whether it holds, its anchors, and all of it to take away."""

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from palyra.background.inspection import Inspection
from palyra.core.ids import PrincipalId, SessionId, parse_ulid
from palyra.gateway.http.download import Download
from palyra.gateway.http.operation import CURSOR, LIMIT, Operation, Query
from palyra.gateway.http.presence import while_there
from palyra.gateway.http.wire import body, number, reply
from palyra.journal import anchors
from palyra.journal.anchors import Anchor
from palyra.journal.engine import Engine
from palyra.journal.stats import Stats
from palyra.journal.verify import Report

NDJSON = "application/x-ndjson"
MAX_ANCHORS = 100
MOST_PROBLEMS = 1_000


class VerifyRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the journal is held against."""

    anchor: Anchor | None = None
    """An anchor that was kept elsewhere; shows whether the journal was rolled back since."""


class Finding(Struct, frozen=True, kw_only=True):
    """Something that does not hold: where, and what."""

    session_id: SessionId | None
    tape_seq: int | None
    what: str


class Verdict(Struct, frozen=True, kw_only=True):
    """What was walked, and what was wrong."""

    ok: bool
    sessions: int
    entries: int
    anchors: int
    after_anchor: int
    """Entries that no anchor covers yet."""
    rotated: int
    """Sessions whose tapes were moved to the archive."""
    attested: int
    """Executions of tools that are attested."""
    unattested: int
    """Executions from before there were attestations."""
    problem_count: int
    problems: list[Finding]
    """The first thousand of them."""


class AnchorsPage(Struct, frozen=True, kw_only=True):
    """Anchors, the latest first."""

    anchors: list[Anchor]
    next_cursor: str | None


class JournalRoutes:
    """The operations that concern the journal as a whole."""

    def __init__(self, engine: Engine, inspection: Inspection) -> None:
        self._engine = engine
        self._inspection = inspection

    def operations(self) -> list[Operation]:
        at = "/admin/v1/journal"
        one = Query("session_id", "string", "Only the tape of this session.")
        since = Query("since", "integer", "Only what came after the anchor of this number.")
        return [
            Operation("GET", f"{at}/stats", self.stats, "Count what the journal holds.", need="admin", answer=Stats),
            Operation(
                "GET",
                f"{at}/anchors",
                self.anchors,
                "List anchors.",
                need="admin",
                query=(LIMIT, CURSOR),
                answer=AnchorsPage,
            ),
            Operation(
                "POST",
                f"{at}/verify",
                self.verify,
                "Prove that nothing recorded was changed.",
                need="admin",
                body=VerifyRequest,
                answer=Verdict,
            ),
            Operation(
                "GET",
                f"{at}/export",
                self.export,
                "Download the tapes as lines of JSON that prove themselves.",
                need="admin",
                query=(one, since),
                media=NDJSON,
            ),
        ]

    async def stats(self, request: Request, principal: PrincipalId) -> Response:
        """Count what the journal holds."""
        return reply(await self._inspection.stats())

    async def anchors(self, request: Request, principal: PrincipalId) -> Response:
        """List anchors, the latest first, each as `verify` takes it."""
        limit = number(request, "limit", default=20, most=MAX_ANCHORS)
        before = number(request, "cursor", default=0) if "cursor" in request.query_params else None
        found = await self._engine.read(lambda conn: anchors.before(conn, before, limit=limit))
        last = found[-1].number if found and found[-1].number > 1 else None
        return reply(AnchorsPage(anchors=found, next_cursor=str(last) if last is not None else None))

    async def verify(self, request: Request, principal: PrincipalId) -> Response:
        """Walk every tape and anchor for as long as the client waits."""
        asked = await body(request, VerifyRequest)
        async with while_there(request.receive):
            report = await self._inspection.verify(asked.anchor)
        return reply(_verdict(report))

    async def export(self, request: Request, principal: PrincipalId) -> ASGIApp:
        """Send an export in pieces."""
        named = request.query_params.get("session_id")
        session_id = SessionId(parse_ulid(named, "session id")) if named is not None else None
        since = number(request, "since", default=0) if "since" in request.query_params else None
        pieces = self._inspection.export(session_id=session_id, since=since)
        return Download(pieces, media=NDJSON, name="journal.ndjson")


def _verdict(report: Report) -> Verdict:
    found = [
        Finding(session_id=problem.session_id, tape_seq=problem.tape_seq, what=problem.what)
        for problem in report.problems[:MOST_PROBLEMS]
    ]
    return Verdict(
        ok=report.ok,
        sessions=report.sessions,
        entries=report.entries,
        anchors=report.anchors,
        after_anchor=report.after_anchor,
        rotated=report.rotated,
        attested=report.attested,
        unattested=report.unattested,
        problem_count=len(report.problems),
        problems=found,
    )
