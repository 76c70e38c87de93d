"""Follows the run of a call, and yields its answer as it grows.

If the client disconnects before the end, its run is cancelled, unless the client said that it may come back (with an
idempotency key, or by detaching the run), or the run waits for an approval.
"""

from collections.abc import AsyncGenerator
from contextlib import ExitStack
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Receive

from palyra.core.errors import NotFound, Unavailable
from palyra.core.events import InputMode
from palyra.core.ids import PrincipalId, RunId
from palyra.core.message import AcceptedMessage
from palyra.core.policy.approval import Approval
from palyra.core.run.state import RunStatus
from palyra.core.session import SessionRef
from palyra.gateway.http.event_stream import KEEP_ALIVE_SECONDS
from palyra.gateway.http.openai.errors import ParameterUnsupported
from palyra.gateway.http.openai.run_answer import AnswerEnded, Piece, RunAnswer
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import approvals, runs
from palyra.journal.tail import TapeReader
from palyra.runs.services.approvals import CODE_CHARS
from palyra.runs.services.cancellation import CancellationService

RUN_GONE = "the client of /v1 closed the connection"
ATTEMPT_DISCARDED = "the stream to the client of /v1 was interrupted, and the client cannot get the rest"
APPROVAL_NEEDED = (
    "This needs your approval before it continues:\n{questions}\nThe run waits, and continues when you have answered."
)
QUEUED = "Your message is queued until the run before it ends. That run waits for your approval:\n{questions}"
MAX_OPEN = 1_000
CHILDREN_SECONDS = 2.0
"""How often to check for approval requests of child runs: they are on other tapes."""


@dataclass(frozen=True, slots=True)
class RequestHeaders:
    """The headers of a call that control how it is answered."""

    session: SessionRef
    mode: InputMode
    idempotency_key: str | None
    detached: bool
    base_url: str
    """The base URL of the API."""

    @property
    def stays(self) -> bool:
        """Whether the run continues without its client."""
        return self.detached or self.idempotency_key is not None

    @property
    def named(self) -> bool:
        """Whether there is a session in which the rest of an answer can be found."""
        return self.session != SessionRef()


def session_of(request: Request, *, user: str | None) -> SessionRef:
    """Return the session named by a header, or by the request's `user`; an empty reference if none is."""
    key = request.headers.get("x-palyra-session")
    if key is None and user:
        key = f"v1:user:{user}"
    return SessionRef(key=key) if key is not None else SessionRef()


def request_headers(request: Request, *, user: str | None) -> RequestHeaders:
    """Read the headers."""
    mode = request.headers.get("x-palyra-mode", InputMode.QUEUE.value)
    if mode not in list(InputMode):
        raise ParameterUnsupported(
            "X-Palyra-Mode", f"X-Palyra-Mode must be one of {', '.join(InputMode)}, not {mode[:20]!r}."
        )
    return RequestHeaders(
        session=session_of(request, user=user),
        mode=InputMode(mode),
        idempotency_key=request.headers.get("idempotency-key"),
        detached=request.headers.get("x-palyra-detach", "").lower() == "true",
        base_url=str(request.base_url).rstrip("/"),
    )


class RunFollower:
    """Follows the run of one call."""

    def __init__(
        self,
        engine: Engine,
        control: CancellationService,
        principal: PrincipalId,
        accepted: AcceptedMessage,
        *,
        manner: RequestHeaders,
        follower: TapeReader,
        stack: ExitStack,
        answer: RunAnswer,
    ) -> None:
        self._engine = engine
        self._control = control
        self._principal = principal
        self._accepted = accepted
        self._manner = manner
        self._follower = follower
        self._place = stack
        self._gone = False
        """The client no longer waits for the rest of the answer."""
        self._cause = RUN_GONE
        self._over = False
        self.telling = answer

    @property
    def headers(self) -> dict[str, str]:
        """The response headers that identify the run."""
        run_id = self._accepted.run_id
        session_id = self._accepted.session_id
        return {"x-palyra-run-id": run_id, "x-palyra-session-id": session_id, "x-request-id": run_id}

    async def pieces(self) -> AsyncGenerator[list[Piece], None]:
        """Yield the pieces of the answer, in groups; an empty group when there was nothing for a while.

        Ends early if the client disconnects or the daemon stops.
        """
        if before := await self._earlier_approvals():
            # It would wait until an approval request is answered that this client may not know of.
            yield [self.telling.add(self._approval_text(QUEUED, before)), self._end()]
            return
        while not self._over and not self._follower.closed:
            timeout = CHILDREN_SECONDS if self.telling.children else KEEP_ALIVE_SECONDS
            entries = await self._follower.next(seconds=timeout)
            pieces = [piece for entry in entries for piece in self.telling.take(entry)]
            self._over = self.telling.end is not None
            if not self._over and (requested_approvals := await self._open_approvals()):
                pieces += [self.telling.add(self._approval_text(APPROVAL_NEEDED, requested_approvals)), self._end()]
            if entries and not pieces:
                continue
            yield pieces

    async def watch(self, receive: Receive) -> None:
        """Stop following when the client disconnects."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._follower.close()

    def tear(self) -> bool:
        """End an answer whose attempt was discarded; return whether its run continues for a client that may return."""
        if not self._manner.named and not self._manner.stays:
            self._gone, self._cause = True, ATTEMPT_DISCARDED
        return not self._gone

    async def close(self) -> None:
        """Stop following; the run of a client that disconnected is cancelled."""
        self._follower.close()
        self._place.close()
        joined = self._accepted.steered or self._accepted.repeated
        if not self._gone or self._over or joined or self._manner.stays or await self._open_approvals():
            return
        try:
            await self._control.cancel(self._principal, self._accepted.run_id, reason=self._cause)
        except (NotFound, Unavailable):
            pass  # it was moved to the archive, or the journal cannot be written now; then it ends by itself

    def _end(self) -> AnswerEnded:
        self._over = True
        return AnswerEnded()

    async def _earlier_approvals(self) -> list[Approval]:
        """Return the approval requests that the previous run of the session waits for."""
        if self._accepted.waiting_for is None or self._accepted.repeated:
            return []
        requested_approvals = await self._engine.read(self._open_in)
        return [one for one in requested_approvals if one.session_id == self._accepted.session_id]

    async def _open_approvals(self) -> list[Approval]:
        """Return the approval requests that the run waits for, its own and those of its child runs."""
        if not self.telling.asked and not self.telling.children:
            return []

        def query(conn: Connection) -> list[Approval]:
            run = runs.get(conn, self._accepted.run_id, self._principal)
            if run is None or run.status is not RunStatus.WAITING:
                return []
            return [one for one in self._open_in(conn) if self._is_for_ours(conn, one.run_id)]

        return await self._engine.read(query)

    def _is_for_ours(self, conn: Connection, run_id: RunId | None) -> bool:
        """Return whether a run is ours or a descendant of it."""
        while run_id is not None and run_id != self._accepted.run_id:
            run = runs.get(conn, run_id, self._principal)
            run_id = run.parent_run_id if run is not None else None
        return run_id is not None

    def _open_in(self, conn: Connection) -> list[Approval]:
        return approvals.page(conn, self._principal, only_open=True, before=None, limit=MAX_OPEN)

    def _approval_text(self, words: str, requested_approvals: list[Approval]) -> str:
        lines = []
        for one in requested_approvals:
            code = one.approval_id[-CODE_CHARS:]
            lines += [
                f"- {one.effect.summary or one.tool or one.reason}",
                f"  Code {code}: `palyra approvals allow {code}` or `palyra approvals deny {code}`,"
                f" or {self._manner.base_url}/console/v1/approvals/{one.approval_id}",
            ]
        return words.format(questions="\n".join(lines))
