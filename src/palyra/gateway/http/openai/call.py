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
from palyra.core.events import ApprovalRequested, Mode
from palyra.core.ids import PrincipalId
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
MOST_OPEN = 20


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


def manner_of(request: Request, *, user: str | None) -> Manner:
    """Read the headers. A session is named by one of them, or by the request's `user`."""
    key = request.headers.get("x-palyra-session")
    if key is None and user:
        key = f"v1:user:{user}"
    mode = request.headers.get("x-palyra-mode", Mode.QUEUE.value)
    if mode not in list(Mode):
        raise ParameterRefused("X-Palyra-Mode", f"X-Palyra-Mode is one of {', '.join(Mode)}, not {mode[:20]!r}.")
    return Manner(
        session=SessionRef(key=key) if key is not None else SessionRef(),
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
        if self._accepted.waiting_for is not None and not self._accepted.repeated:
            # It would wait for as long as somebody takes to answer a question that this caller may not know of.
            yield [self.telling.add(await self._queued()), self._end()]
            return
        while not self._over and not self._follower.closed:
            entries = await self._follower.next(seconds=KEEP_ALIVE_SECONDS)
            told = [piece for entry in entries for piece in self.telling.take(entry)]
            self._over = self.telling.end is not None
            if self.telling.asked and not self._over and await self._waits():
                told += [self.telling.add(self._questions()), self._end()]
            if entries and not told:
                continue
            yield told

    async def watch(self, receive: Receive) -> None:
        """Stop following when the caller is gone."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._follower.close()

    async def close(self) -> None:
        """Leave; the run of a caller that went away is cancelled."""
        self._follower.close()
        self._place.close()
        joined = self._accepted.steered or self._accepted.repeated
        if not self._gone or self._over or joined or self._manner.stays or await self._open_questions(of_run=True):
            return
        try:
            await self._control.cancel(self._principal, self._accepted.run_id, reason=GONE)
        except (NotFound, Unavailable):
            pass  # it has been moved away, or nothing can be written now; then it comes to its own end

    def _end(self) -> Over:
        self._over = True
        return Over()

    async def _waits(self) -> bool:
        """Tell whether the run waits for a person."""
        run = await self._engine.read(lambda conn: runs.get(conn, self._accepted.run_id, self._principal))
        return run is not None and run.status is RunStatus.WAITING

    def _questions(self) -> str:
        lines = ["This needs your word before it goes on:"]
        for event in self.telling.asked.values():
            lines += self._question(event.approval_id, _about(event))
        return "\n".join([*lines, "The run waits, and goes on when you have answered."])

    async def _queued(self) -> str:
        lines = ["Your message is kept, and has its turn when the run before it ends. That one waits for your word:"]
        for one in await self._open_questions(of_run=False):
            lines += self._question(one.approval_id, one.effect.summary or one.reason)
        return "\n".join(lines)

    async def _open_questions(self, *, of_run: bool) -> list[Approval]:
        """Return what somebody is asked about the run, or else about any run of its session."""

        def query(conn: Connection) -> list[Approval]:
            return approvals.page(conn, self._principal, only_open=True, before=None, limit=MOST_OPEN)

        accepted = self._accepted
        return [
            one
            for one in await self._engine.read(query)
            if (one.run_id == accepted.run_id if of_run else one.session_id == accepted.session_id)
        ]

    def _question(self, approval_id: str, about: str) -> list[str]:
        code = approval_id[-CODE_CHARS:]
        return [
            f"- {about}",
            f"  Code {code}: `palyra approvals allow {code}` or `palyra approvals deny {code}`,"
            f" or {self._manner.link}/console/v1/approvals/{approval_id}",
        ]


def _about(event: ApprovalRequested) -> str:
    if event.effect is not None and event.effect.summary:
        return event.effect.summary
    return event.tool or event.reason
