"""Embeddings: a provider turns texts into vectors. Not a run, but on a tape, in the ledger and under the budgets.

What a call may use is reserved in the commit that writes `embeddings_started`, and settled in the one that writes
`embeddings_ended`. Calls do not queue: all of them run in parallel. While a call waits for a provider, its daemon holds
the lease on the call's row. A call without a holder was left by a daemon that died; the next daemon that checks settles
it at its full reservation.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from palyra.core.clock import Clock, to_ms
from palyra.core.errors import Unavailable
from palyra.core.ids import IdSource, PrincipalId, RunId, SessionId
from palyra.core.projection.ledger import Spender, turn_abandoned
from palyra.core.session import SessionArchivedError, SessionRef
from palyra.core.session_events import (
    EmbeddingsEnded,
    EmbeddingsOutcome,
    EmbeddingsStarted,
    SessionRenamed,
    SessionUnarchived,
)
from palyra.core.spending.usage import Usage
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.ledger import embeddings
from palyra.journal.stores import leases, stops
from palyra.providers.base import ProviderFailed
from palyra.runs.recording.session_writer import SessionWriter
from palyra.runs.services.agents import choose
from palyra.runs.services.budgets import BudgetService
from palyra.runs.services.emergency_stops import StopService, WorkStopped
from palyra.runs.services.sessions import ResolvedSession, resolve

POLL_SECONDS = leases.RENEW_MS / 1000
MAX_CONCURRENT = 100
KEY = "v1:embeddings:{month}"
"""The session of callers that name none: one for each month, so that no tape grows forever."""
TITLE = "Embeddings of {month}"
ENDED = "the daemon ended before the provider answered"
BROKE = "Palyra itself failed"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EmbeddingsRequestRecord:
    """What is to be turned into vectors, and for whom. The texts themselves are not here."""

    principal: PrincipalId
    session: SessionRef | None
    """The session whose tape it goes on; None for the default session of such calls."""
    provider: str
    model: str
    texts: int
    size: int
    digest: str
    tokens: int
    """The maximum number of tokens in the texts."""

    @property
    def name(self) -> str:
        """The model as `PROVIDER/MODEL`."""
        return f"{self.provider}/{self.model}"


@dataclass(frozen=True, slots=True)
class Vectors:
    """What a provider returned for the texts."""

    content: bytes
    """The answer, as it is passed on."""
    count: int
    usage: Usage | None
    """None if the provider reported no usage."""


@dataclass(frozen=True, slots=True)
class EmbeddingsInProgress:
    """A call in progress."""

    session_id: SessionId
    event: EmbeddingsStarted

    @property
    def request_id(self) -> RunId:
        return self.event.request_id


class EmbeddingsService:
    """Requests embeddings from providers, and records their usage."""

    def __init__(
        self,
        engine: Engine,
        *,
        budgets: BudgetService,
        stops: StopService,
        clock: Clock,
        ids: IdSource,
        owner: str,
        settings_hash: Callable[[], str] = lambda: "",
    ) -> None:
        """`owner` is this daemon, by the name under which it holds leases."""
        self._engine = engine
        self._budgets = budgets
        self._stops = stops
        self._clock = clock
        self._ids = ids
        self._owner = owner
        self._settings_hash = settings_hash
        self._under_way: set[RunId] = set()
        self._waiting: dict[RunId, tuple[PrincipalId, asyncio.Timeout]] = {}
        """The calls that wait for an answer, and what ends the wait."""
        self._unwritten: dict[RunId, tuple[SessionId, EmbeddingsEnded]] = {}
        """Outcomes of calls from while the journal could not be written."""
        self._beyond: set[RunId] = set()
        """Calls whose tape cannot be written: `palyra journal verify --deep` says why."""
        stops.on_stop(self._cancel_stopped)

    async def ask(
        self, record: EmbeddingsRequestRecord, send: Callable[[], Awaitable[Vectors]]
    ) -> tuple[EmbeddingsInProgress, Vectors]:
        """Reserve the cost, send the request, and settle it. Raises what `send` raises, and `BudgetExceeded`."""
        self._check_stopped(record.principal)
        begun = await self._begin(record)
        self._under_way.add(begun.request_id)
        sent = False
        try:
            # A stop that came after the rows were read could not notify this call.
            self._check_stopped(record.principal)
            sent = True
            vectors = await self._answer(begun, send)
        except ProviderFailed as failed:
            log.warning(
                "%s/%s failed (model_%s): the request fails",
                record.provider,
                record.model,
                failed.kind.value,
                extra={
                    "run_id": begun.request_id,
                    "provider": record.provider,
                    "model": record.model,
                    "code": f"model_{failed.kind.value}",
                    "status": failed.status or None,
                    "cause": failed.cause,
                    "next": "fail",
                },
            )
            await self._end(
                begun, EmbeddingsOutcome.FAILED, failed.detail, failure=failed.kind.value, refused=failed.refused
            )
            raise
        except WorkStopped as stopped:
            await self._end(
                begun, EmbeddingsOutcome.LOST if sent else EmbeddingsOutcome.FAILED, stopped.detail, refused=not sent
            )
            raise
        except asyncio.CancelledError:
            await self._end(begun, EmbeddingsOutcome.LOST, ENDED)
            raise
        except BaseException as error:
            await self._end(begun, EmbeddingsOutcome.FAILED, f"{BROKE} ({type(error).__name__}).")
            raise
        else:
            await self._end(begun, EmbeddingsOutcome.ANSWERED, counted=vectors.usage, vectors=vectors.count)
            return begun, vectors
        finally:
            self._under_way.discard(begun.request_id)

    async def _answer(self, begun: EmbeddingsInProgress, send: Callable[[], Awaitable[Vectors]]) -> Vectors:
        """Wait for the provider, or for a stop."""
        request_id, principal = begun.request_id, begun.event.principal
        try:
            async with asyncio.timeout(None) as limit:
                self._waiting[request_id] = (principal, limit)
                try:
                    return await send()
                finally:
                    del self._waiting[request_id]
        except TimeoutError:
            if not limit.expired():
                raise
            self._check_stopped(principal)
            raise WorkStopped from None

    def _check_stopped(self, principal: PrincipalId) -> None:
        if (stop := self._stops.stopped(principal)) is not None:
            raise WorkStopped(f"{stop.description} No new work is accepted. `palyra resume` ends the stop.")

    async def keep(self) -> None:
        """Renew the calls in progress, and settle those left behind, until cancelled."""
        while True:
            with suppress(Unavailable):
                await self._poll()
            await asyncio.sleep(POLL_SECONDS)

    async def _poll(self) -> None:
        now_ms = to_ms(self._clock.now())
        # Those only: one of ours that is not here was interrupted while it waited.
        if held := [*self._under_way, *self._unwritten]:
            await self._engine.write(lambda conn: embeddings.renew(conn, held, owner=self._owner, now_ms=now_ms))
        for request_id, (session_id, ended) in list(self._unwritten.items()):
            await self._try_to_write(session_id, ended)
            del self._unwritten[request_id]
        left = await self._engine.read(lambda conn: embeddings.abandoned(conn, now_ms=now_ms, limit=MAX_CONCURRENT))
        for session_id, request_id in left:
            if request_id not in self._beyond:
                await self._try_to_settle(session_id, request_id, now_ms=now_ms)

    async def _try_to_write(self, session_id: SessionId, ended: EmbeddingsEnded) -> None:
        """Write the outcome of a call; a call whose outcome cannot be written then counts as left behind."""
        try:
            await self._write(session_id, ended)
        except Unavailable:
            raise
        except Exception:
            log.exception("the outcome of embeddings %s cannot be recorded", ended.request_id)

    async def _try_to_settle(self, session_id: SessionId, request_id: RunId, *, now_ms: int) -> None:
        """Settle a call that was left behind; a failure to do so is logged once."""
        try:
            settled = await self._settle_left_behind(session_id, request_id, now_ms=now_ms)
        except Unavailable:
            raise
        except Exception:
            self._beyond.add(request_id)
            log.exception("embeddings %s were interrupted and cannot be settled", request_id)
        else:
            if settled:
                log.warning("embeddings %s were interrupted, and are settled at their estimate", request_id)

    async def _settle_left_behind(self, session_id: SessionId, request_id: RunId, *, now_ms: int) -> bool:
        at = self._clock.now()

        def unit(conn: Connection) -> bool:
            writer = SessionWriter.open(conn, session_id, ids=self._ids)
            # Another daemon may have been faster, or the holder is not dead after all.
            turn = embeddings.find(conn, request_id, None)
            if turn is None or not embeddings.is_abandoned(conn, request_id, now_ms=now_ms):
                return False
            used, micros = turn_abandoned(turn.reserved)
            ended = EmbeddingsEnded(
                at=at,
                request_id=request_id,
                outcome=EmbeddingsOutcome.LOST,
                usage=used,
                cost_micros=micros,
                reason=ENDED,
            )
            return end(writer, ended)

        return await self._engine.write(unit)

    async def _begin(self, record: EmbeddingsRequestRecord) -> EmbeddingsInProgress:
        request_id, at = RunId(self._ids.new()), self._clock.now()
        reserved = self._budgets.estimate(record.name, record.tokens, 0)

        def unit(conn: Connection) -> EmbeddingsInProgress:
            if stops.is_stopped(conn, record.principal):
                raise WorkStopped
            resolved = self._resolve(conn, record, at=at)
            session = resolved.session
            agent, _ = choose(conn, record.principal, session)
            spender = Spender(
                record.principal, agent.agent_id, session.session_id, request_id, is_new=True, is_alone=True
            )
            event = EmbeddingsStarted(
                at=at,
                actor=record.principal,
                request_id=request_id,
                principal=record.principal,
                agent_id=agent.agent_id,
                provider=record.provider,
                model=record.model,
                texts=record.texts,
                bytes=record.size,
                digest=record.digest,
                reserved=reserved,
                warned=self._budgets.admit(conn, spender, record.name, reserved, at),
                settings_hash=self._settings_hash(),
            )
            begin(conn, resolved.writer, event, owner=self._owner)
            return EmbeddingsInProgress(session.session_id, event)

        return await self._engine.write(unit)

    def _resolve(self, conn: Connection, record: EmbeddingsRequestRecord, *, at: datetime) -> ResolvedSession:
        """Find or create the session whose tape the call goes on."""
        month = f"{at:%Y-%m}"
        ref = record.session or SessionRef(key=KEY.format(month=month))
        resolved = resolve(conn, record.principal, ref=ref, ids=self._ids, at=at)
        if resolved.created and record.session is None:
            resolved.writer.note(SessionRenamed(at=at, title=TITLE.format(month=month)))
        if resolved.session.archived_at is not None:
            if record.session is not None:
                raise SessionArchivedError
            # The caller did not name it, so would not know what to do about it.
            resolved.writer.note(SessionUnarchived(at=at))
        return resolved

    async def _end(
        self,
        begun: EmbeddingsInProgress,
        outcome: EmbeddingsOutcome,
        reason: str = "",
        *,
        failure: str = "",
        refused: bool = False,
        counted: Usage | None = None,
        vectors: int = 0,
    ) -> None:
        """Settle a call: nothing if the provider refused it, the full reservation if no usage was reported."""
        model = f"{begun.event.provider}/{begun.event.model}"
        if refused or counted is not None:
            used = counted or Usage()
            micros = self._budgets.cost(model, used)
        else:
            used, micros = turn_abandoned(begun.event.reserved)
        ended = EmbeddingsEnded(
            at=self._clock.now(),
            actor=f"model:{begun.event.provider}" if outcome is not EmbeddingsOutcome.LOST else "system",
            request_id=begun.request_id,
            outcome=outcome,
            usage=used,
            cost_micros=micros,
            vectors=vectors,
            reason=reason,
            failure=failure,
        )
        try:
            await self._write(begun.session_id, ended)
        except Unavailable:
            # The answer has arrived and is paid for; its usage is written as soon as possible.
            self._unwritten[begun.request_id] = (begun.session_id, ended)

    async def _write(self, session_id: SessionId, ended: EmbeddingsEnded) -> None:
        await self._engine.write(lambda conn: end(SessionWriter.open(conn, session_id, ids=self._ids), ended))

    def _cancel_stopped(self) -> None:
        """Stop waiting for calls of principals whose work is stopped."""
        now = asyncio.get_running_loop().time()
        for principal, limit in self._waiting.values():
            if self._stops.stopped(principal) is not None and not limit.expired():
                limit.reschedule(now)


def begin(conn: Connection, writer: SessionWriter, event: EmbeddingsStarted, *, owner: str) -> None:
    """Write that a call begins, and who waits for it. The caller's unit commits."""
    writer.note(event)
    embeddings.hold(conn, event.request_id, owner=owner, now_ms=to_ms(event.at))
    writer.close()


def end(writer: SessionWriter, ended: EmbeddingsEnded) -> bool:
    """Write the outcome of a call, unless it is settled already; tell whether it was written."""
    if not writer.note(ended):
        return False
    writer.close()
    return True
