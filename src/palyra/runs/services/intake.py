"""Accepts messages: the only way in. Every message, from any channel, becomes a run here or joins one."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta

from msgspec.structs import replace

from palyra.core.agent import Agent
from palyra.core.clock import to_ms
from palyra.core.errors import Conflict, Unavailable
from palyra.core.events import (
    ApprovalDecision,
    ApprovalResolved,
    CancelRequested,
    InputMode,
    InputSteered,
    RunAccepted,
    RunCancelled,
)
from palyra.core.ids import PrincipalId, RunId
from palyra.core.message import (
    MAX_MESSAGE_BYTES,
    AcceptedMessage,
    Inbound,
    MessageEmpty,
    MessageTooLarge,
    clean_text,
)
from palyra.core.policy import labels
from palyra.core.run.state import CallStage, RunState, RunStatus
from palyra.core.session import SessionArchivedError
from palyra.core.stop import EmergencyStop
from palyra.journal.content import images
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import runs
from palyra.runs.recording.replay import replay
from palyra.runs.recording.session_writer import SessionWriter
from palyra.runs.services import attached_history, idempotency, reissue
from palyra.runs.services.agents import choose
from palyra.runs.services.attached_history import AttachedHistory
from palyra.runs.services.emergency_stops import StopService, WorkStopped
from palyra.runs.services.sealing import SealingUnit, SecretSealer
from palyra.runs.services.sessions import ResolvedSession, SessionBusy, resolve
from palyra.runs.system import System

Prefetch = Callable[[Connection, RunState, Agent], None]
ReserveSlot = Callable[[PrincipalId], AbstractContextManager[str | None]]


class RunQueueFull(Unavailable):
    """The session has the maximum number of queued inputs, or you have the maximum number of open runs. Wait, or cancel
    one.
    """


class RunSuperseded(Conflict):
    """The conversation has continued since that run. Continue from the last run instead."""


class MessageIntake:
    """Accepts messages. An accepted message is on the tape, and its run will come to an end."""

    def __init__(
        self,
        engine: Engine,
        system: System,
        *,
        stops: StopService,
        meant: Callable[[str], str],
        prefetch: Prefetch,
        seals: SecretSealer,
        reserve_slot: ReserveSlot = lambda principal: nullcontext(),
    ) -> None:
        """`meant` returns the full name of a model, or raises if there is none.

        `seals` takes the secrets out of a message before anything else uses it.

        `prefetch` is called in the commit that starts a run and leases it to a worker: it loads what that one needs.

        `reserve_slot` reserves a slot for a principal while a message is written, and yields the worker; None if none
        is free.
        """
        self._meant = meant
        self._prefetch = prefetch
        self._seals = seals
        self._reserve_slot = reserve_slot
        self._stops = stops
        self._engine = engine
        self._config = system.config
        self._clock = system.clock
        self._ids = system.ids

    def check_open(self, principal: PrincipalId) -> None:
        """Raise while no messages of a principal are accepted."""
        if (stop := self._stops.stopped(principal)) is not None:
            raise _stopped(stop)

    async def accept(self, inbound: Inbound) -> AcceptedMessage:
        """Accept a message: as a new run, or as a further input of the active one."""
        _check(inbound)
        if inbound.options.model:
            options = replace(inbound.options, model=self._meant(inbound.options.model))
            inbound = replace(inbound, options=options)
        sealing = self._seals.sealing(inbound.principal)
        inbound = await attached_history.seal_history(inbound, sealing)
        if (stop := self._stops.stopped(inbound.principal)) is not None:
            return await self._refuse(inbound, stop)
        at = self._clock.now()
        brings = inbound.pictures or inbound.history
        along = (
            await asyncio.to_thread(attached_history.prepare_history, inbound, at=at) if brings else AttachedHistory()
        )
        run_id = RunId(self._ids.new())
        with self._reserve_slot(inbound.principal) as lease:

            def unit(conn: Connection) -> AcceptedMessage:
                return self._unit(conn, inbound, along, sealing, run_id=run_id, at=at, lease=lease)

            try:
                return await self._engine.write(unit)
            except (idempotency.IdempotencyKeyInUse, RunSuperseded):
                # If the same request came twice at the same time and the other was faster, that one has the answer.
                return await self._engine.write(unit)

    async def _refuse(self, inbound: Inbound, stop: EmergencyStop) -> AcceptedMessage:
        """Accept nothing; only a repeated request for a message accepted before gets its earlier answer."""
        claim = idempotency.claim_of(inbound)
        if (earlier := await self._engine.read(lambda conn: idempotency.answer(conn, claim))) is not None:
            return earlier
        raise _stopped(stop)

    async def reissue(self, principal: PrincipalId, name: str) -> AcceptedMessage:
        """Start a run that proposes a call again whose approval request expired; the open one, if there is one.

        `name` is the id of the approval request, or its code.
        """
        self.check_open(principal)
        at = self._clock.now()
        run_id = RunId(self._ids.new())
        with self._reserve_slot(principal) as lease:
            return await self._engine.write(
                lambda conn: self._again(conn, principal, name, run_id=run_id, at=at, lease=lease)
            )

    def _again(
        self,
        conn: Connection,
        principal: PrincipalId,
        name: str,
        *,
        run_id: RunId,
        at: datetime,
        lease: str | None,
    ) -> AcceptedMessage:
        approval, session = reissue.find(conn, principal, name, at=at)
        writer = SessionWriter.open(conn, session.session_id, ids=self._ids)
        # Read again now that the session is locked: another request may have been faster.
        approval, session = reissue.find(conn, principal, approval.approval_id, at=at)
        if (accepted := reissue.under_way(conn, approval)) is not None:
            return accepted
        settled = reissue.settle(conn, writer, approval, at=at)
        open_runs = runs.open_in(conn, session.session_id)
        self._check_room(conn, principal, len(open_runs))
        after_seq = writer.seq
        again = reissue.prepare(conn, principal, approval, session)
        state = writer.accept(run_id, again.accepted(principal, self._config.now.limits, at=at), carrier=lease)
        active = settled
        if active is None and (run := next((run for run, is_active in open_runs if is_active), None)) is not None:
            active = replay(conn, run)
        writer.close()
        return AcceptedMessage(
            run_id=run_id,
            session_id=session.session_id,
            after_seq=after_seq,
            queued=not state.started,
            waiting_for=_waits_for(active) if active is not None else None,
        )

    def _unit(
        self,
        conn: Connection,
        inbound: Inbound,
        along: AttachedHistory,
        sealing: SealingUnit,
        *,
        run_id: RunId,
        at: datetime,
        lease: str | None,
    ) -> AcceptedMessage:
        claim = idempotency.claim_of(inbound)
        if (earlier := idempotency.answer(conn, claim)) is not None:
            return earlier
        resolved = resolve(conn, inbound.principal, ref=inbound.session, ids=self._ids, at=at)
        if resolved.session.archived_at is not None:
            raise SessionArchivedError
        if inbound.after is not None and not _is_last(conn, inbound.principal, inbound.after, resolved):
            raise RunSuperseded
        accepted, begun = self._write_run(conn, inbound, along, resolved, sealing, run_id=run_id, at=at, lease=lease)
        accepted = replace(accepted, sealed=sealing.sealed, removed=sealing.removed)
        resolved.writer.close()
        sealing.keep(conn, accepted.session_id)
        if begun is not None and begun[0].started and lease is not None:
            self._prefetch(conn, *begun)
        images.add(conn, accepted.session_id, along.pictures, now_ms=to_ms(at))
        idempotency.keep(conn, claim, accepted, at=at)
        return accepted

    def _write_run(
        self,
        conn: Connection,
        inbound: Inbound,
        along: AttachedHistory,
        resolved: ResolvedSession,
        sealing: SealingUnit,
        *,
        run_id: RunId,
        at: datetime,
        lease: str | None,
    ) -> tuple[AcceptedMessage, tuple[RunState, Agent] | None]:
        session, writer = resolved.session, resolved.writer
        open_runs = [] if resolved.created else runs.open_in(conn, session.session_id)
        active_id = next((run for run, active in open_runs if active), None)
        active = replay(conn, active_id) if active_id is not None else None
        # A run at its limit has read the conversation for the last time; the message gets its own run.
        if inbound.mode is InputMode.STEER and active is not None and _takes_input(active):
            attached_history.check_can_join(inbound)
            return self._steer(writer, active, inbound, sealing, at=at), None
        self._check_room(conn, inbound.principal, len(open_runs))
        if inbound.history and open_runs:
            # The attached history goes before the message, and the active run may still add messages.
            raise SessionBusy
        attached_history.match_results(conn, inbound.principal, session, inbound)
        after_seq = writer.seq
        agent, reason = choose(conn, inbound.principal, session, named=inbound.agent)
        limits = self._config.now.limits
        event = RunAccepted(
            at=at,
            actor=inbound.principal,
            labels=(labels.OWNER,),
            text=inbound.text,
            principal=inbound.principal,
            agent_id=agent.agent_id,
            agent_reason=reason,
            limits=(agent.limits or limits).capped(limits),
            channel=inbound.channel,
            mode=inbound.mode,
            idempotency_key=inbound.idempotency_key,
            images=inbound.images,
            options=inbound.options,
            sealed=sealing.sealed,
            removed=sealing.removed,
        )
        interrupts = inbound.mode is InputMode.INTERRUPT and active is not None
        state = writer.accept(run_id, event, attached_messages=along.messages, first=interrupts, carrier=lease)
        if interrupts and active is not None:
            state = self._interrupt(conn, writer, active, state, inbound, at=at)
        accepted = AcceptedMessage(
            run_id=run_id,
            session_id=session.session_id,
            after_seq=after_seq,
            queued=not state.started,
            waiting_for=_waits_for(active) if active is not None and not state.started else None,
        )
        return accepted, (state, agent)

    def _check_room(self, conn: Connection, principal: PrincipalId, in_session: int) -> None:
        bounds = self._config.now.runs
        if in_session > bounds.max_queued_inputs:
            raise RunQueueFull(
                (
                    f"{in_session - 1} inputs are queued in this session, which is the maximum. Wait for "
                    "its runs to end, or cancel one."
                ),
                retry_after=timedelta(seconds=2),
            )
        if runs.open_of_principal(conn, principal, limit=bounds.max_open_runs) >= bounds.max_open_runs:
            raise RunQueueFull(
                (
                    f"{bounds.max_open_runs} of your runs are open, which is the maximum (runs.max_open_runs). Wait "
                    "for some to end, or cancel one."
                ),
                retry_after=timedelta(seconds=2),
            )

    def _steer(
        self, writer: SessionWriter, active: RunState, inbound: Inbound, sealing: SealingUnit, *, at: datetime
    ) -> AcceptedMessage:
        after_seq = writer.seq
        state = active
        for call_id, approval_id in active.open_questions:
            # An open approval request is withdrawn: the person said something else instead.
            state = writer.add(
                state,
                ApprovalResolved(
                    at=at,
                    actor=inbound.principal,
                    labels=(labels.OWNER,),
                    call_id=call_id,
                    approval_id=approval_id,
                    decision=ApprovalDecision.WITHDRAWN,
                    reason=inbound.text[:200],
                ),
            )
        event = InputSteered(
            at=at,
            actor=inbound.principal,
            labels=(labels.OWNER,),
            text=inbound.text,
            idempotency_key=inbound.idempotency_key,
            channel=inbound.channel,
            sealed=sealing.sealed,
            removed=sealing.removed,
        )
        writer.add(state, event)
        return AcceptedMessage(run_id=active.run_id, session_id=active.session_id, after_seq=after_seq, steered=True)

    def _interrupt(
        self,
        conn: Connection,
        writer: SessionWriter,
        active: RunState,
        fresh: RunState,
        inbound: Inbound,
        *,
        at: datetime,
    ) -> RunState:
        """Cancel the active run; the new one is first in the queue, and starts when that has ended."""
        reason = "interrupted by a new message"
        state = writer.add(active, CancelRequested(at=at, actor=inbound.principal, reason=reason))
        if runs.is_leased(conn, active.run_id, now_ms=to_ms(at)):
            return fresh
        writer.add(state, RunCancelled(at=at, actor=inbound.principal, reason=reason))
        return writer.state_of(fresh.run_id)


def _stopped(stop: EmergencyStop) -> WorkStopped:
    return WorkStopped(f"{stop.description} No new work is accepted. `palyra resume` ends the stop.")


def _check(inbound: Inbound) -> None:
    clean_text(inbound.text, what="message")
    if inbound.is_empty:
        raise MessageEmpty
    if len(inbound.text.encode()) > MAX_MESSAGE_BYTES:
        raise MessageTooLarge
    idempotency.check(inbound)
    attached_history.check_history(inbound)


def _is_last(conn: Connection, principal: PrincipalId, run_id: RunId, resolved: ResolvedSession) -> bool:
    """Tell whether a run is the last of its session, now that no other can begin there."""
    last = runs.last_in(conn, resolved.session.session_id, principal)
    return last is not None and last.run_id == run_id


def _takes_input(active: RunState) -> bool:
    """Tell whether a further message can join the run, instead of starting another."""
    return active.limit is None and active.cancel is None and active.refused is None


def _waits_for(active: RunState) -> str | None:
    if active.status is not RunStatus.WAITING:
        return None
    if active.question is not None:
        names = [f"the budget {', '.join(active.at_stake)}"]
    else:
        waiting = [call for call in active.calls if call.stage is CallStage.WAITING]
        names = [call.call.tool for call in waiting if not call.for_child]
        if not names:
            return "the active run waits for a child run; steer it with a message, or cancel it"
    return (
        f"the active run waits for your approval of {', '.join(names)}: answer with `palyra approvals`, "
        "steer the run with a message, or cancel it"
    )
