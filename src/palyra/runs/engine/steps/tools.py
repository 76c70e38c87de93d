"""Run the calls that are allowed, and record each result when it arrives."""

import asyncio
from dataclasses import replace

from palyra.core.attestation import digest_of_json
from palyra.core.clock import Clock, to_ms
from palyra.core.errors import PalyraError
from palyra.core.events import ChildStarted, RunEvent, ToolFinished, ToolStarted
from palyra.core.ids import IdSource, RunId, SessionId
from palyra.core.message import repair_text
from palyra.core.policy import labels
from palyra.core.run.state import CallStage, CallState, RunState
from palyra.core.run.steps import ExecuteTools
from palyra.core.text.scanner_signals import SECRET, sort_signals
from palyra.core.tool import CallOutcome, CallRuntime, ToolCall, Verdict
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import agents, approvals, grants, scanner_signals, sessions
from palyra.journal.stores.scanner_signals import SignalSource
from palyra.runs.engine.attester import ExecutionAttester
from palyra.runs.engine.call_storage import JournalCallStorage
from palyra.runs.engine.child_runs import limits_for_child, refusal
from palyra.runs.engine.policy_check import PolicyJudge, ProposedCall
from palyra.runs.engine.tool_contexts import ToolContextFactory
from palyra.runs.engine.unsealing import CallUnsealer
from palyra.runs.labels.result_labels import labels_of_result, scan_result
from palyra.runs.labels.written_labels import WrittenLabels
from palyra.runs.recording.emit import Emit
from palyra.runs.services.sealing import SealingUnit, SecretSealer
from palyra.tools.arguments import CallProblem
from palyra.tools.base import Delegation, Tool, ToolContext
from palyra.tools.catalog import ToolCatalog
from palyra.tools.execution import execute
from palyra.tools.execution_record import ExecutionRecorder, RecordedModules, RecordedSandbox

INTERRUPTED = (
    "the call was in progress when the daemon stopped; it may or may not have taken effect, and was not repeated"
)
OVER = (
    "the permission for this call is no longer valid, so it was not executed: an approval was revoked "
    "or expired, or the policies have changed; propose it again."
)
CHANGED = "the effect of this call has changed since it was approved, so it was not executed; propose it again"
MAX_ATTEMPTS = 3
"""A call that is interrupted this often may itself be what stops the daemon."""


class ToolsStep:
    """Executes `ExecuteTools`."""

    def __init__(
        self,
        engine: Engine,
        *,
        judge: PolicyJudge,
        workbench: ToolContextFactory,
        attester: ExecutionAttester,
        clock: Clock,
        ids: IdSource,
        seals: SecretSealer,
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
        """Run the calls: those that only read run in parallel, every other one alone and in order."""
        agent = await self._engine.read(lambda conn: agents.get(conn, state.agent_id, state.principal))
        catalog = self._workbench.catalog(state, agent)
        context = self._workbench.context(state, agent)
        for group in _groups(step.calls, catalog):
            async with asyncio.TaskGroup() as tasks:
                for call in group:
                    tasks.create_task(self._run(state, call, catalog=catalog, context=context, emit=emit))

    async def _run(
        self, state: RunState, call: CallState, *, catalog: ToolCatalog, context: ToolContext, emit: Emit
    ) -> None:
        with self._written.call(state.principal, call.labels) as writing:
            await self._execute(
                state, call, catalog=catalog, context=context, witness=ExecutionRecorder(writing=writing), emit=emit
            )

    async def _execute(
        self,
        state: RunState,
        call: CallState,
        *,
        catalog: ToolCatalog,
        context: ToolContext,
        witness: ExecutionRecorder,
        emit: Emit,
    ) -> None:
        tool = catalog.get(call.call.tool)
        repeatable = tool is not None and tool.spec.repeatable and call.attempts < MAX_ATTEMPTS
        if call.stage is CallStage.INTERRUPTED and not repeatable:
            await emit([self._attester.attest(state, self._finished(call.call, CallOutcome.INTERRUPTED, INTERRUPTED))])
            return
        sealing = self._seals.sealing(state.principal)
        seals = CallUnsealer(self._seals, sealing, state, call.call)
        journal_call_storage = JournalCallStorage(
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
            storage=journal_call_storage,
            witness=witness,
            sandbox=RecordedSandbox(context.sandbox, witness),
            modules=RecordedModules(context.modules, witness),
            # A secret that was stored after the call was judged is not sent.
            credentials=context.credentials.only(call.credentials),
            sealed=seals,
        )
        # A call that began to change files knows from its file checkpoints whether it may go on; the files may differ.
        has_begun = call.stage is CallStage.INTERRUPTED and bool(await journal_call_storage.earlier())
        proposed = ProposedCall(call.call, catalog, context, seals)
        if not has_begun and (fault := await self._overtaken(state, call, proposed)):
            learned = await labels_of_result(self._engine, state.principal, tool, witness)
            denied = self._finished(call.call, CallOutcome.DENIED, fault, learned=learned)
            await emit([self._attester.attest(state, denied)], also=sealing.guard(state.session_id))
            return
        state = await emit([self._started(call, tool)])
        try:
            opened = await seals.opened(tool) if tool is not None else call.call
        except PalyraError as error:
            # The vault key was removed after the call was judged.
            await emit([self._attester.attest(state, self._finished(call.call, CallOutcome.ERROR, error.detail))])
            return
        result = await execute(
            opened,
            catalog=catalog,
            context=context,
            timeout_ms=state.limits.tool_timeout_ms,
            hide=lambda text: sealing.seal(text, _origin(call.call, witness)),
        )
        if isinstance(result, Delegation):
            await emit([self._delegated(state, call, result)])
        else:
            learned = await labels_of_result(self._engine, state.principal, tool, witness)
            found_in_it = await asyncio.to_thread(scan_result, result.text)
            if sealing.sealed or sealing.removed:
                found_in_it = sort_signals({*found_in_it, SECRET})
            finished = self._finished(
                call.call,
                result.outcome,
                result.text,
                artifact=result.artifact,
                matches=result.discovered_tools,
                learned=learned,
                signals=found_in_it,
                sealing=sealing,
            )
            attested = self._attester.attest(state, finished, ran=witness.programs, full_result=result.full)
            await emit([attested], also=sealing.guard(state.session_id))

    async def _overtaken(self, state: RunState, call: CallState, proposed: ProposedCall) -> str:
        """Return why an allowed call may not run after all: an earlier one may have taken long."""
        if call.approval_id is not None:
            return await self._changed(state, call, proposed)
        tool = proposed.catalog.get(call.call.tool)
        # The isolation may have changed since: a restarted daemon uses the sandbox of its current settings.
        held_otherwise = tool is not None and tool.runtime is CallRuntime.SHELL
        if call.grant_id is None and call.policy_hash in ("", self._judge.policy_hash) and not held_otherwise:
            return ""
        now = to_ms(self._clock.now())
        held = await self._engine.read(lambda conn: grants.valid(conn, state.principal, state.agent_id, now_ms=now))
        if call.policy_hash == self._judge.policy_hash and any(grant.grant_id == call.grant_id for grant in held):
            return ""
        judged = await self._judge.judge(
            state,
            proposed,
            grants=held,
            origin=call.labels,
            answered=call.edited,
            signals=await self._warned(state),
        )
        if isinstance(judged, CallProblem):
            return judged.reason
        verdict = judged.judgement.verdict
        holds = verdict is Verdict.ALLOW or (verdict is Verdict.ASK and call.edited)
        return "" if holds else f"{OVER} {judged.judgement.reason}"

    async def _warned(self, state: RunState) -> tuple[str, ...]:
        def query(conn: Connection) -> SignalSource:
            reset_seq, _ = sessions.scope(conn, state.session_id)
            return scanner_signals.of_session(conn, state.session_id, after_seq=reset_seq)

        return (await self._engine.read(query)).signals

    async def _changed(self, state: RunState, call: CallState, proposed: ProposedCall) -> str:
        """Return why an approved call may not run after all: the approval covers this effect and no other."""
        approval_id = call.approval_id or ""
        approval = await self._engine.read(lambda conn: approvals.get(conn, approval_id, state.principal))
        judged = await self._judge.judge(
            state,
            proposed,
            grants=(),
            origin=approval.labels if approval is not None else (),
            answered=True,
            signals=await self._warned(state),
        )
        if isinstance(judged, CallProblem):
            return judged.reason
        if judged.judgement.verdict is Verdict.DENY:
            return f"It was approved, but the policy has changed since then: {judged.judgement.reason}"
        if approval is not None and judged.effect != approval.effect:
            return CHANGED
        return ""

    def _delegated(self, state: RunState, call: CallState, task: Delegation) -> RunEvent:
        if reason := refusal(state):
            return self._attester.attest(state, self._finished(call.call, CallOutcome.ERROR, reason))
        return ChildStarted(
            at=self._clock.now(),
            # The model wrote the task, so the task has the labels of everything the model had read.
            labels=call.labels,
            call_id=call.call.call_id,
            child_run_id=RunId(self._ids.new()),
            child_session_id=SessionId(self._ids.new()),
            # It becomes an input, and the model's text in the arguments was not scanned yet.
            text=repair_text(task.text),
            limits=limits_for_child(state),
        )

    def _started(self, call: CallState, tool: Tool | None) -> ToolStarted:
        return ToolStarted(
            at=self._clock.now(),
            call_id=call.call.call_id,
            attempt=call.attempts + 1,
            # For a tool that no longer exists, the daemon answers.
            runtime=tool.runtime if tool is not None else CallRuntime.INTERNAL,
            spec=digest_of_json(tool.spec) if tool is not None else "",
        )

    def _finished(
        self,
        call: ToolCall,
        outcome: CallOutcome,
        text: str,
        *,
        artifact: str | None = None,
        matches: tuple[str, ...] = (),
        learned: tuple[str, ...] = (labels.TOOL,),
        signals: tuple[str, ...] = (),
        sealing: SealingUnit | None = None,
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
            discovered_tools=matches,
            sealed=sealing.sealed if sealing is not None else 0,
            removed=sealing.removed if sealing is not None else 0,
        )


def _origin(call: ToolCall, witness: ExecutionRecorder) -> str:
    """Return the origin of the secrets in a result: the file that was read, if there was one."""
    if len(witness.files) == 1 and not witness.folders:
        return f"file:{next(iter(witness.files))}"
    return f"tool:{call.tool}"


def _groups(calls: tuple[CallState, ...], catalog: ToolCatalog) -> list[list[CallState]]:
    """Return the calls in the model's order, with neighbours that only read in one group."""
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
