"""Decide which calls may run."""

from collections.abc import Sequence

from palyra.core import labels
from palyra.core.agent import Agent
from palyra.core.approval import Grant
from palyra.core.call import DecidedCall
from palyra.core.clock import Clock, to_ms
from palyra.core.events import Entry, PolicyDecided, RunEvent, ToolProposed
from palyra.core.run import RunState
from palyra.core.signal import told
from palyra.core.step import CheckPolicy
from palyra.core.tool import ToolCall, Verdict
from palyra.journal import agents, grants, sessions, signals, tape
from palyra.journal.engine import Connection, Engine
from palyra.journal.signals import Warned
from palyra.runs.dispatch import CallSeals
from palyra.runs.emit import Emit
from palyra.runs.judge import Judge, Judged, origins
from palyra.runs.learned import labels_of_files
from palyra.runs.seals import Seals
from palyra.runs.shadow import Asked, Shadows
from palyra.runs.workbench import Workbench
from palyra.tools.arguments import BadCall
from palyra.tools.catalog import Catalog

OWN_WORDS = "a person wrote these arguments"


class PolicyStep:
    """Carries out `CheckPolicy`."""

    def __init__(
        self,
        engine: Engine,
        *,
        judge: Judge,
        workbench: Workbench,
        seals: Seals,
        clock: Clock,
        shadows: Shadows | None = None,
    ) -> None:
        """`shadows` has a candidate judge beside the policies in force, if there is one."""
        self._shadows = shadows
        self._engine = engine
        self._seals = seals
        self._judge = judge
        self._workbench = workbench
        self._clock = clock

    async def perform(self, state: RunState, step: CheckPolicy, emit: Emit) -> None:
        """Judge every call of the turn, in one commit."""
        agent, allowed, entries, warned = await self._engine.read(lambda conn: self._look(conn, state))
        catalog = self._workbench.catalog(state, agent)
        context = self._workbench.context(state, agent)
        origin = origins(entries, (call.call_id for call in step.calls))
        decided: list[RunEvent] = []
        sealing = self._seals.sealing(state.principal)
        patient = True
        for call in step.calls:
            judged = await self._judge.judge(
                state,
                call,
                catalog=catalog,
                context=context,
                seals=CallSeals(self._seals, sealing, state, call),
                grants=allowed,
                origin=origin.get(call.call_id, ()),
                # Whoever wrote the arguments has answered, be he gone by now.
                answered=state.call(call.call_id).edited,
                # Once for all calls of the turn: the rest would only add up.
                patient=patient,
                signals=warned.signals,
            )
            patient = patient and not (isinstance(judged, Judged) and judged.nobody_came)
            of_call = origin.get(call.call_id, ())
            if isinstance(judged, BadCall):
                # What is wrong with a call is told in the call's own words, and in those of files that it is about.
                read = await labels_of_files(self._engine, state.principal, context.witness)
                of_call = labels.join(of_call or (labels.UNKNOWN,), read)
            decided.append(self._decided(state, call, judged, of_call, warned))
        await emit(decided, also=sealing.guard(state.session_id))
        if self._shadows is not None and self._shadows.active:
            await self._shadows.compare(_both(state, entries, decided, catalog))

    def _look(self, conn: Connection, state: RunState) -> tuple[Agent | None, Sequence[Grant], Sequence[Entry], Warned]:
        now_ms = to_ms(self._clock.now())
        reset_seq, _ = sessions.scope(conn, state.session_id)
        return (
            agents.get(conn, state.agent_id, state.principal),
            grants.valid(conn, state.principal, state.agent_id, now_ms=now_ms),
            tape.of_run(conn, state.run_id),
            signals.of_session(conn, state.session_id, after_seq=reset_seq),
        )

    def _decided(
        self, state: RunState, call: ToolCall, judged: Judged | BadCall, origin: tuple[str, ...], warned: Warned
    ) -> PolicyDecided:
        at = self._clock.now()
        if isinstance(judged, BadCall):
            return PolicyDecided(
                at=at,
                labels=origin,
                call_id=call.call_id,
                verdict=Verdict.DENY,
                risk=None,
                reason=judged.reason,
                policies=(judged.rule,),
            )
        judgement = judged.judgement
        verdict, reason = judgement.verdict, judgement.reason
        if verdict is Verdict.ASK and state.call(call.call_id).edited:
            verdict, reason = Verdict.ALLOW, OWN_WORDS
        if verdict is Verdict.ASK and warned.signals:
            reason = f"{reason} What it has read ({', '.join(warned.by)}) holds {told(warned.signals)}."
        return PolicyDecided(
            at=at,
            labels=judged.labels,
            call_id=call.call_id,
            verdict=verdict,
            risk=judgement.risk,
            reason=reason,
            policies=judgement.policies,
            policy_hash=judgement.policy_hash,
            effect=judged.effect,
            has_channel=judged.has_channel,
            grant_id=judgement.grant_id,
            manifest_hash=judged.manifest_hash,
            signals=warned.signals,
        )


def _both(state: RunState, entries: Sequence[Entry], decided: Sequence[RunEvent], catalog: Catalog) -> list[Asked]:
    """Return the calls that were put before the policies just now, and not after a person's answer."""
    proposed = {
        event.call_id: event
        for entry in entries
        if entry.kind == "tool_proposed" and isinstance(event := entry.event, ToolProposed)
    }
    found: list[Asked] = []
    for event in decided:
        if not isinstance(event, PolicyDecided) or event.risk is None or state.call(event.call_id).edited:
            continue
        call = DecidedCall(
            principal=state.principal,
            agent_id=state.agent_id,
            session_id=state.session_id,
            run_id=state.run_id,
            proposed=proposed[event.call_id],
            decided=event,
            channels=state.channels,
        )
        if (tool := catalog.get(call.proposed.tool)) is not None:
            found.append((call, tool.spec))
    return found
