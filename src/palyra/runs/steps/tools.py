"""Run the calls that are allowed, and record each result when it is there."""

import asyncio
from dataclasses import replace

from palyra.core import labels
from palyra.core.attestation import digest_of_json
from palyra.core.clock import Clock, to_ms
from palyra.core.errors import PalyraError
from palyra.core.events import ChildStarted, RunEvent, ToolFinished, ToolStarted
from palyra.core.ids import IdSource, RunId, SessionId
from palyra.core.message import mend_text
from palyra.core.run import CallState, RunState, Stage
from palyra.core.signal import SECRET, in_order
from palyra.core.step import ExecuteTools
from palyra.core.tool import Outcome, Runtime, ToolCall, Verdict
from palyra.journal import agents, approvals, grants, sessions, signals
from palyra.journal.engine import Connection, Engine
from palyra.journal.signals import Warned
from palyra.runs.attestations import Attester
from palyra.runs.children import limits_for_child, refusal
from palyra.runs.dispatch import CallSeals
from palyra.runs.emit import Emit
from palyra.runs.judge import Judge
from palyra.runs.keeping import CallKeeping
from palyra.runs.learned import labels_of_result, scanned
from palyra.runs.seals import Sealing, Seals
from palyra.runs.workbench import Workbench
from palyra.runs.writing import WrittenLabels
from palyra.tools.arguments import BadCall
from palyra.tools.base import Delegation, Tool, ToolContext
from palyra.tools.catalog import Catalog
from palyra.tools.execute import execute
from palyra.tools.witness import WatchedModules, WatchedSandbox, Witness

INTERRUPTED = (
    "the call was running when the daemon stopped; it may or may not have taken effect, and was not started again"
)
OVER = (
    "what let this call run holds no more, so it was not carried out: an answer was taken back or ran out, or the"
    " policies have changed since; propose it anew."
)
CHANGED = "what this call would do has changed since it was approved, so it was not carried out; propose it anew"
MOST_ATTEMPTS = 3
"""A call that is interrupted so often may be what stops the daemon."""


class ToolsStep:
    """Carries out `ExecuteTools`."""

    def __init__(
        self,
        engine: Engine,
        *,
        judge: Judge,
        workbench: Workbench,
        attester: Attester,
        clock: Clock,
        ids: IdSource,
        seals: Seals,
    ) -> None:
        """`seals` takes the secrets out of a result."""
        self._seals = seals
        self._engine = engine
        self._judge = judge
        self._workbench = workbench
        self._attester = attester
        self._clock = clock
        self._ids = ids
        self._written = WrittenLabels(engine, ids=ids)

    async def perform(self, state: RunState, step: ExecuteTools, emit: Emit) -> None:
        """Run the calls: those that only read side by side, every other one alone and in its turn."""
        agent = await self._engine.read(lambda conn: agents.get(conn, state.agent_id, state.principal))
        catalog = self._workbench.catalog(state, agent)
        context = self._workbench.context(state, agent)
        for group in _groups(step.calls, catalog):
            async with asyncio.TaskGroup() as tasks:
                for call in group:
                    tasks.create_task(self._run(state, call, catalog=catalog, context=context, emit=emit))

    async def _run(
        self, state: RunState, call: CallState, *, catalog: Catalog, context: ToolContext, emit: Emit
    ) -> None:
        with self._written.call(state.principal, call.labels) as writing:
            await self._execute(
                state, call, catalog=catalog, context=context, witness=Witness(writing=writing), emit=emit
            )

    async def _execute(
        self,
        state: RunState,
        call: CallState,
        *,
        catalog: Catalog,
        context: ToolContext,
        witness: Witness,
        emit: Emit,
    ) -> None:
        tool = catalog.get(call.call.tool)
        repeatable = tool is not None and tool.spec.repeatable and call.attempts < MOST_ATTEMPTS
        if call.stage is Stage.INTERRUPTED and not repeatable:
            await emit([self._attester.attest(state, self._finished(call.call, Outcome.INTERRUPTED, INTERRUPTED))])
            return
        sealing = self._seals.sealing(state.principal)
        seals = CallSeals(self._seals, sealing, state, call.call)
        keeping = CallKeeping(
            self._engine,
            clock=self._clock,
            ids=self._ids,
            state=state,
            call=call.call,
            sealing=sealing,
            fence=emit.fence,
            origin=call.labels,
        )
        context = replace(
            context,
            keeping=keeping,
            witness=witness,
            sandbox=WatchedSandbox(context.sandbox, witness),
            modules=WatchedModules(context.modules, witness),
            # One that was set since the call was judged stays at home.
            credentials=context.credentials.only(call.credentials),
            sealed=seals,
        )
        # A call that began to change files knows from what it kept whether it may go on; by now they may be changed.
        has_begun = call.stage is Stage.INTERRUPTED and bool(await keeping.earlier())
        if not has_begun and (fault := await self._overtaken(state, call, catalog, context, seals)):
            learned = await labels_of_result(self._engine, state.principal, tool, witness)
            denied = self._finished(call.call, Outcome.DENIED, fault, learned=learned)
            await emit([self._attester.attest(state, denied)], also=sealing.guard(state.session_id))
            return
        state = await emit([self._started(call, tool)])
        try:
            opened = await seals.opened(tool) if tool is not None else call.call
        except PalyraError as error:
            # The vault's key has gone since the call was judged.
            await emit([self._attester.attest(state, self._finished(call.call, Outcome.ERROR, error.detail))])
            return
        result = await execute(
            opened,
            catalog=catalog,
            context=context,
            timeout_ms=state.limits.tool_ms,
            hide=lambda text: sealing.seal(text, _origin(call.call, witness)),
        )
        if isinstance(result, Delegation):
            await emit([self._delegated(state, call, result)])
        else:
            learned = await labels_of_result(self._engine, state.principal, tool, witness)
            found_in_it = await asyncio.to_thread(scanned, result.text)
            if sealing.sealed or sealing.removed:
                found_in_it = in_order({*found_in_it, SECRET})
            finished = self._finished(
                call.call,
                result.outcome,
                result.text,
                artifact=result.artifact,
                found=result.found,
                learned=learned,
                signals=found_in_it,
                sealing=sealing,
            )
            attested = self._attester.attest(state, finished, ran=witness.ran, whole=result.whole)
            await emit([attested], also=sealing.guard(state.session_id))

    async def _overtaken(
        self, state: RunState, call: CallState, catalog: Catalog, context: ToolContext, seals: CallSeals
    ) -> str:
        """Return why a call may not run after all, though it was allowed: an earlier one may have taken long."""
        if call.approval_id is not None:
            return await self._changed(state, call, catalog, context, seals)
        tool = catalog.get(call.call.tool)
        # How a program is held may have changed since: a daemon that started again has the sandbox of its settings now.
        held_otherwise = tool is not None and tool.runtime is Runtime.SHELL
        if call.grant_id is None and call.policy_hash in ("", self._judge.policy_hash) and not held_otherwise:
            return ""
        now = to_ms(self._clock.now())
        held = await self._engine.read(lambda conn: grants.valid(conn, state.principal, state.agent_id, now_ms=now))
        if call.policy_hash == self._judge.policy_hash and any(grant.grant_id == call.grant_id for grant in held):
            return ""
        judged = await self._judge.judge(
            state,
            call.call,
            catalog=catalog,
            context=context,
            seals=seals,
            grants=held,
            origin=call.labels,
            answered=call.edited,
            signals=await self._warned(state),
        )
        if isinstance(judged, BadCall):
            return judged.reason
        verdict = judged.judgement.verdict
        holds = verdict is Verdict.ALLOW or (verdict is Verdict.ASK and call.edited)
        return "" if holds else f"{OVER} {judged.judgement.reason}"

    async def _warned(self, state: RunState) -> tuple[str, ...]:
        def query(conn: Connection) -> Warned:
            reset_seq, _ = sessions.scope(conn, state.session_id)
            return signals.of_session(conn, state.session_id, after_seq=reset_seq)

        return (await self._engine.read(query)).signals

    async def _changed(
        self, state: RunState, call: CallState, catalog: Catalog, context: ToolContext, seals: CallSeals
    ) -> str:
        """Return why an approved call may not run after all: what was approved is this effect and no other."""
        approval_id = call.approval_id or ""
        asked = await self._engine.read(lambda conn: approvals.get(conn, approval_id, state.principal))
        judged = await self._judge.judge(
            state,
            call.call,
            catalog=catalog,
            context=context,
            seals=seals,
            grants=(),
            origin=asked.labels if asked is not None else (),
            answered=True,
            signals=await self._warned(state),
        )
        if isinstance(judged, BadCall):
            return judged.reason
        if judged.judgement.verdict is Verdict.DENY:
            return f"It was approved, but the policy has changed since: {judged.judgement.reason}"
        if asked is not None and judged.effect != asked.effect:
            return CHANGED
        return ""

    def _delegated(self, state: RunState, call: CallState, task: Delegation) -> RunEvent:
        if reason := refusal(state):
            return self._attester.attest(state, self._finished(call.call, Outcome.ERROR, reason))
        return ChildStarted(
            at=self._clock.now(),
            # The model wrote the task: it holds whatever the model had read.
            labels=call.labels,
            call_id=call.call.call_id,
            child_run_id=RunId(self._ids.new()),
            child_session_id=SessionId(self._ids.new()),
            # It becomes an input, and nothing has looked at what the model wrote into its arguments.
            text=mend_text(task.text),
            limits=limits_for_child(state),
        )

    def _started(self, call: CallState, tool: Tool | None) -> ToolStarted:
        return ToolStarted(
            at=self._clock.now(),
            call_id=call.call.call_id,
            attempt=call.attempts + 1,
            # A tool that is gone by now is answered for by the daemon.
            runtime=tool.runtime if tool is not None else Runtime.INTERNAL,
            spec=digest_of_json(tool.spec) if tool is not None else "",
        )

    def _finished(
        self,
        call: ToolCall,
        outcome: Outcome,
        text: str,
        *,
        artifact: str | None = None,
        found: tuple[str, ...] = (),
        learned: tuple[str, ...] = (labels.TOOL,),
        signals: tuple[str, ...] = (),
        sealing: Sealing | None = None,
    ) -> ToolFinished:
        return ToolFinished(
            at=self._clock.now(),
            actor=f"tool:{call.tool}",
            labels=learned,
            call_id=call.call_id,
            outcome=outcome,
            text=text,
            artifact=artifact,
            signals=signals,
            found=found,
            sealed=sealing.sealed if sealing is not None else 0,
            removed=sealing.removed if sealing is not None else 0,
        )


def _origin(call: ToolCall, witness: Witness) -> str:
    """Return where the secrets of a result came from: the file that was read, if it was one."""
    if len(witness.files) == 1 and not witness.folders:
        return f"file:{next(iter(witness.files))}"
    return f"tool:{call.tool}"


def _groups(calls: tuple[CallState, ...], catalog: Catalog) -> list[list[CallState]]:
    """Return the calls in the model's order, neighbours that only read in one group."""
    groups: list[list[CallState]] = []
    reading = False
    for call in calls:
        tool = catalog.get(call.call.tool)
        reads = tool is not None and tool.spec.read_only
        if reads and reading:
            groups[-1].append(call)
        else:
            groups.append([call])
        reading = reads
    return groups
