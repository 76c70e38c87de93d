"""Decide which calls may run."""

from collections.abc import Sequence

from palyra.core.agent import Agent
from palyra.core.clock import Clock, to_ms
from palyra.core.events import Entry, PolicyDecided, RunEvent, ToolProposed
from palyra.core.policy import labels
from palyra.core.policy.approval import Grant
from palyra.core.run.decided_calls import DecidedCall
from palyra.core.run.state import RunState
from palyra.core.run.steps import CheckPolicy
from palyra.core.text.scanner_signals import describe_signals
from palyra.core.tool import ToolCall, Verdict
from palyra.journal import tape
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import agents, grants, scanner_signals, sessions
from palyra.journal.stores.scanner_signals import SignalSource
from palyra.runs.engine.policy_check import PolicyJudge, PolicyJudgement, ProposedCall, origins
from palyra.runs.engine.tool_contexts import ToolContextFactory
from palyra.runs.engine.unsealing import CallUnsealer
from palyra.runs.labels.result_labels import labels_of_files
from palyra.runs.recording.emit import Emit
from palyra.runs.services.policy_shadow import Asked, PolicyShadowService
from palyra.runs.services.sealing import SecretSealer
from palyra.tools.arguments import CallProblem
from palyra.tools.catalog import ToolCatalog

OWN_WORDS = "a person edited these arguments"


class PolicyStep:
    """Executes `CheckPolicy`."""

    def __init__(
        self,
        engine: Engine,
        *,
        judge: PolicyJudge,
        workbench: ToolContextFactory,
        seals: SecretSealer,
        clock: Clock,
        shadows: PolicyShadowService | None = None,
    ) -> None:
        """`shadows` lets a candidate judge beside the policies in force, if there is one."""
        self._shadows = shadows
        self._engine = engine
        self._seals = seals
        self._judge = judge
        self._workbench = workbench
        self._clock = clock

    async def perform(self, state: RunState, step: CheckPolicy, emit: Emit) -> None:
        """Judge every call of the turn, in one commit."""
        agent, allowed, entries, warned = await self._engine.read(lambda conn: self._read_grants(conn, state))
        catalog = self._workbench.catalog(state, agent)
        context = self._workbench.context(state, agent)
        origin = origins(entries, (call.call_id for call in step.calls))
        decided: list[RunEvent] = []
        sealing = self._seals.sealing(state.principal)
        patient = True
        for call in step.calls:
            judged = await self._judge.judge(
                state,
                ProposedCall(call, catalog, context, CallUnsealer(self._seals, sealing, state, call)),
                grants=allowed,
                origin=origin.get(call.call_id, ()),
                # The person who edited the arguments has answered, even if no longer connected.
                answered=state.call(call.call_id).edited,
                # Wait once for all calls of the turn: further waits would only add up.
                patient=patient,
                signals=warned.signals,
            )
            patient = patient and not (isinstance(judged, PolicyJudgement) and judged.approval_expired)
            of_call = origin.get(call.call_id, ())
            if isinstance(judged, CallProblem):
                # The error quotes the call, and the files that it is about.
                read = await labels_of_files(self._engine, state.principal, context.witness)
                of_call = labels.join(of_call or (labels.UNKNOWN,), read)
            decided.append(self._decided(state, call, judged, of_call, warned))
        await emit(decided, also=sealing.guard(state.session_id))
        if self._shadows is not None and self._shadows.active:
            await self._shadows.compare(_both(state, entries, decided, catalog))

    def _read_grants(
        self, conn: Connection, state: RunState
    ) -> tuple[Agent | None, Sequence[Grant], Sequence[Entry], SignalSource]:
        now_ms = to_ms(self._clock.now())
        reset_seq, _ = sessions.scope(conn, state.session_id)
        return (
            agents.get(conn, state.agent_id, state.principal),
            grants.valid(conn, state.principal, state.agent_id, now_ms=now_ms),
            tape.of_run(conn, state.run_id),
            scanner_signals.of_session(conn, state.session_id, after_seq=reset_seq),
        )

    def _decided(
        self,
        state: RunState,
        call: ToolCall,
        judged: PolicyJudgement | CallProblem,
        origin: tuple[str, ...],
        warned: SignalSource,
    ) -> PolicyDecided:
        at = self._clock.now()
        if isinstance(judged, CallProblem):
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
            reason = f"{reason} The session has read ({', '.join(warned.by)}) {describe_signals(warned.signals)}."
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
            approver_reachable=judged.approver_reachable,
            grant_id=judgement.grant_id,
            manifest_hash=judged.manifest_hash,
            signals=warned.signals,
        )


def _both(state: RunState, entries: Sequence[Entry], decided: Sequence[RunEvent], catalog: ToolCatalog) -> list[Asked]:
    """Return the calls that were judged just now, without those judged after a person's answer."""
    proposed = {
        event.call_id: event
        for entry in entries
        if entry.kind == "tool_proposed" and isinstance(event := entry.event, ToolProposed)
    }
    result: list[Asked] = []
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
            result.append((call, tool.spec))
    return result
