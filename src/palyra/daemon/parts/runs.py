"""Builds what executes runs: the worker with its loop and steps, and the queue of background tasks."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from palyra.background.jobs import approvals, children, cleanup, title
from palyra.background.queue import Job, JobContext, TaskQueue
from palyra.daemon.parts.subsystems import Subsystems
from palyra.runs.engine.attester import ExecutionAttester
from palyra.runs.engine.loop import RunLoop, RunSteps
from palyra.runs.engine.overdraft import OverdraftPolicy
from palyra.runs.engine.policy_check import PolicyJudge
from palyra.runs.engine.steps.approval import ApprovalStep
from palyra.runs.engine.steps.finish import FinishStep
from palyra.runs.engine.steps.model import ModelStep
from palyra.runs.engine.steps.policy import PolicyStep
from palyra.runs.engine.steps.tools import ToolsStep
from palyra.runs.engine.tool_contexts import ToolContextFactory
from palyra.runs.engine.worker import RunWorker
from palyra.runs.services.approval_watch import ApprovalWatch
from palyra.runs.services.approvers import ApproverPresence
from palyra.runs.services.embeddings import EmbeddingsService


@dataclass(frozen=True, slots=True)
class RunParts:
    """What executes runs, background tasks and requests for embeddings."""

    worker: RunWorker
    loop: RunLoop
    queue: TaskQueue
    embeddings: EmbeddingsService
    approval_watch: ApprovalWatch


def build_runs(parts: Subsystems, *, jobs: Mapping[str, Job]) -> RunParts:
    """Return everything that executes; `jobs` are jobs of the queue besides those that runs leave behind."""
    system, journal = parts.system, parts.journal
    clock, ids, owner = system.clock, system.ids, journal.identity.owner
    attester = ExecutionAttester(journal.identity.signer)
    approvers = ApproverPresence(journal.tail, inbox=lambda: system.config.now.approvals.inbox)
    loop = _build_loop(parts, approvers, attester)
    all_jobs = {**approvals.JOBS, **children.jobs(attester), **title.JOBS, **cleanup.JOBS, **jobs}
    return RunParts(
        worker=build_worker(parts, loop, owner=owner),
        loop=loop,
        queue=TaskQueue(JobContext(journal.engine, clock, ids), all_jobs, owner=owner),
        embeddings=EmbeddingsService(
            journal.engine,
            budgets=parts.models.budgets,
            stops=parts.guards.stops,
            clock=clock,
            ids=ids,
            owner=owner,
            settings_hash=lambda: system.config.hash,
        ),
        approval_watch=ApprovalWatch(journal.engine, approvers),
    )


def build_worker(parts: Subsystems, loop: RunLoop, *, owner: str) -> RunWorker:
    """Return a worker that executes runs with this loop, and leases them for the owner."""
    return RunWorker(
        parts.journal.engine,
        loop,
        stops=parts.guards.stops,
        storage=parts.journal.storage,
        clock=parts.system.clock,
        owner=owner,
        concurrency=parts.system.config.now.runs.max_concurrent,
    )


def _build_loop(parts: Subsystems, approvers: ApproverPresence, attester: ExecutionAttester) -> RunLoop:
    system, engine, tools, sealer = parts.system, parts.journal.engine, parts.tools, parts.vault.sealer
    clock, ids = system.clock, system.ids

    def expires() -> timedelta:
        return timedelta(seconds=system.config.now.approvals.timeout_seconds)

    judge = PolicyJudge(tools.gate, approvers, clock=clock)
    workbench = ToolContextFactory(tools, parts.vault.secrets, clock=clock)
    steps = RunSteps(
        model=ModelStep(
            engine,
            system,
            parts.models,
            overdraft=OverdraftPolicy(approvers, expires=expires, clock=clock, ids=ids),
            seals=sealer,
            toolbox=tools.toolbox,
        ),
        policy=PolicyStep(
            engine, judge=judge, workbench=workbench, seals=sealer, clock=clock, shadows=parts.guards.shadows
        ),
        approval=ApprovalStep(engine, expires=expires, clock=clock, ids=ids),
        tools=ToolsStep(
            engine, judge=judge, workbench=workbench, attester=attester, clock=clock, ids=ids, seals=sealer
        ),
        finish=FinishStep(attester=attester, clock=clock),
    )
    return RunLoop(engine, steps, clock=clock, ids=ids, stops=parts.guards.stops)
