"""A call that is being answered: its run is followed, and told as it goes.

A caller that goes away before the end wants no more: its run is cancelled, unless it said that it may come back (with
an idempotency key, or by detaching the run), or a person is asked about it.
"""

from collections.abc import AsyncGenerator
from contextlib import ExitStack
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Receive

from palyra.core.approval import Approval
from palyra.core.errors import NotFound, Unavailable
from palyra.core.events import Mode
from palyra.core.ids import PrincipalId, RunId
from palyra.core.message import Accepted
from palyra.core.run import RunStatus
from palyra.core.session import SessionRef
from palyra.gateway.http.openai.errors import ParameterRefused
from palyra.gateway.http.openai.telling import Over, Piece, Telling
from palyra.gateway.http.stream import KEEP_ALIVE_SECONDS
from palyra.journal import approvals, runs
from palyra.journal.engine import Connection, Engine
from palyra.journal.tail import Follower
from palyra.runs.approvals import CODE_CHARS
from palyra.runs.control import Control

GONE = "the client of /v1 went away"
TORN = "what the client of /v1 was told broke off, and it can not be told the rest"
ASKED = "This needs your word before it goes on:\n{questions}\nThe run waits, and goes on when you have answered."
QUEUED = (
    "Your message is kept, and has its turn when the run before it ends. That one waits for your word:\n{questions}"
)
MOST_OPEN = 1_000
CHILDREN_SECONDS = 2.0
"""So soon it is seen that a run is asked about that works for this one: its questions are on another tape."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How a caller wants to be dealt with, as the headers say it."""

    session: SessionRef
    mode: Mode
    idempotency_key: str | None
    detached: bool
    link: str
    """Where the door is."""

    @property
    def stays(self) -> bool:
        """Whether the run goes on without its caller."""
        return self.detached or self.idempotency_key is not None

    @property
    def named(self) -> bool:
        """Whether there is a session in which the rest of an answer can be found."""
        return self.session != SessionRef()


def session_of(request: Request, *, user: str | None) -> SessionRef:
    """Return the session that is named by a header, or by the request's `user`; an empty reference if none is."""
    key = request.headers.get("x-palyra-session")
    if key is None and user:
        key = f"v1:user:{user}"
    return SessionRef(key=key) if key is not None else SessionRef()


def manner_of(request: Request, *, user: str | None) -> Manner:
    """Read the headers."""
    mode = request.headers.get("x-palyra-mode", Mode.QUEUE.value)
    if mode not in list(Mode):
        raise ParameterRefused("X-Palyra-Mode", f"X-Palyra-Mode is one of {', '.join(Mode)}, not {mode[:20]!r}.")
    return Manner(
        session=session_of(request, user=user),
        mode=Mode(mode),
        idempotency_key=request.headers.get("idempotency-key"),
        detached=request.headers.get("x-palyra-detach", "").lower() == "true",
        link=str(request.base_url).rstrip("/"),
    )


class Call:
    """A call that is being answered."""

    def __init__(
        self,
        engine: Engine,
        control: Control,
        principal: PrincipalId,
        accepted: Accepted,
        *,
        manner: Manner,
        follower: Follower,
        place: ExitStack,
        telling: Telling,
    ) -> None:
        self._engine = engine
        self._control = control
        self._principal = principal
        self._accepted = accepted
        self._manner = manner
        self._follower = follower
        self._place = place
        self._gone = False
        """Nobody waits for the rest of the answer."""
        self._cause = GONE
        self._over = False
        self.telling = telling

    @property
    def headers(self) -> dict[str, str]:
        """What the head of the answer says of the run."""
        run_id = self._accepted.run_id
        session_id = self._accepted.session_id
        return {"x-palyra-run-id": run_id, "x-palyra-session-id": session_id, "x-request-id": run_id}

    async def pieces(self) -> AsyncGenerator[list[Piece], None]:
        """Yield what there is to tell, in groups; an empty group when there was nothing for a while.

        Ends early if the caller is gone or the daemon stops.
        """
        if before := await self._asked_before():
            # It would wait for as long as somebody takes to answer a question that this caller may not know of.
            yield [self.telling.add(self._told(QUEUED, before)), self._end()]
            return
        while not self._over and not self._follower.closed:
            patience = CHILDREN_SECONDS if self.telling.children else KEEP_ALIVE_SECONDS
            entries = await self._follower.next(seconds=patience)
            told = [piece for entry in entries for piece in self.telling.take(entry)]
            self._over = self.telling.end is not None
            if not self._over and (asked := await self._asked()):
                told += [self.telling.add(self._told(ASKED, asked)), self._end()]
            if entries and not told:
                continue
            yield told

    async def watch(self, receive: Receive) -> None:
        """Stop following when the caller is gone."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._follower.close()

    def tear(self) -> bool:
        """Say no more of an answer that broke off; tell whether its run goes on, for somebody who may look for it."""
        if not self._manner.named and not self._manner.stays:
            self._gone, self._cause = True, TORN
        return not self._gone

    async def close(self) -> None:
        """Leave; the run of a caller that went away is cancelled."""
        self._follower.close()
        self._place.close()
        joined = self._accepted.steered or self._accepted.repeated
        if not self._gone or self._over or joined or self._manner.stays or await self._asked():
            return
        try:
            await self._control.cancel(self._principal, self._accepted.run_id, reason=self._cause)
        except (NotFound, Unavailable):
            pass  # it has been moved away, or nothing can be written now; then it comes to its own end

    def _end(self) -> Over:
        self._over = True
        return Over()

    async def _asked_before(self) -> list[Approval]:
        """Return the questions that the run before this one in its session waits for."""
        if self._accepted.waiting_for is None or self._accepted.repeated:
            return []
        asked = await self._engine.read(self._open_in)
        return [one for one in asked if one.session_id == self._accepted.session_id]

    async def _asked(self) -> list[Approval]:
        """Return the questions that the run waits for, its own and those of runs that work for it."""
        if not self.telling.asked and not self.telling.children:
            return []

        def query(conn: Connection) -> list[Approval]:
            run = runs.get(conn, self._accepted.run_id, self._principal)
            if run is None or run.status is not RunStatus.WAITING:
                return []
            return [one for one in self._open_in(conn) if self._is_for_ours(conn, one.run_id)]

        return await self._engine.read(query)

    def _is_for_ours(self, conn: Connection, run_id: RunId | None) -> bool:
        """Tell whether a run is ours, or works for it, or for one that does."""
        while run_id is not None and run_id != self._accepted.run_id:
            run = runs.get(conn, run_id, self._principal)
            run_id = run.parent_run_id if run is not None else None
        return run_id is not None

    def _open_in(self, conn: Connection) -> list[Approval]:
        return approvals.page(conn, self._principal, only_open=True, before=None, limit=MOST_OPEN)

    def _told(self, words: str, asked: list[Approval]) -> str:
        lines = []
        for one in asked:
            code = one.approval_id[-CODE_CHARS:]
            lines += [
                f"- {one.effect.summary or one.tool or one.reason}",
                f"  Code {code}: `palyra approvals allow {code}` or `palyra approvals deny {code}`,"
                f" or {self._manner.link}/console/v1/approvals/{one.approval_id}",
            ]
        return words.format(questions="\n".join(lines))
