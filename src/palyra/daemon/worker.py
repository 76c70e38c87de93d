"""Builds the worker of a daemon with everything that its steps need."""

from datetime import timedelta

from palyra.core.clock import Clock
from palyra.core.ids import IdSource
from palyra.daemon.home_setup import WorkspaceFolders
from palyra.daemon.live_config import LiveConfig
from palyra.journal.engines.base import Engine
from palyra.journal.storage_health import Storage
from palyra.memory.prompt_assembly import PromptAssembler
from palyra.policy.current_policies import CurrentPolicies
from palyra.providers.model_pool import ModelPool
from palyra.runs.engine.attester import ExecutionAttester
from palyra.runs.engine.loop import RunLoop
from palyra.runs.engine.overdraft import OverdraftPolicy
from palyra.runs.engine.policy_check import PolicyJudge
from palyra.runs.engine.steps.approval import ApprovalStep
from palyra.runs.engine.steps.model import ModelStep
from palyra.runs.engine.steps.policy import PolicyStep
from palyra.runs.engine.steps.tools import ToolsStep
from palyra.runs.engine.tool_contexts import ToolContextFactory
from palyra.runs.engine.worker import RunWorker
from palyra.runs.services.approvers import ApproverPresence
from palyra.runs.services.budgets import BudgetService
from palyra.runs.services.emergency_stops import StopService
from palyra.runs.services.policy_shadow import PolicyShadowService
from palyra.runs.services.sealing import SecretSealer
from palyra.runs.services.secrets import SecretService
from palyra.sandbox.base import Sandbox
from palyra.sandbox.wasm.runner import WasmRunner
from palyra.tools.toolbox import Toolbox


def build(
    engine: Engine,
    settings: LiveConfig,
    *,
    context: PromptAssembler,
    roster: ModelPool,
    budgets: BudgetService,
    workspaces: WorkspaceFolders,
    sandbox: Sandbox,
    modules: WasmRunner,
    secrets: SecretService,
    seals: SecretSealer,
    toolbox: Toolbox,
    policies: CurrentPolicies,
    shadows: PolicyShadowService,
    channels: ApproverPresence,
    stops: StopService,
    storage: Storage,
    attester: ExecutionAttester,
    clock: Clock,
    ids: IdSource,
    owner: str,
) -> RunWorker:
    """Return the worker that executes runs."""

    def expires() -> timedelta:
        return timedelta(seconds=settings.now.approvals.expire_seconds)

    judge = PolicyJudge(lambda: policies.gate, channels, clock=clock)
    workbench = ToolContextFactory(
        workspace=workspaces, clock=clock, sandbox=sandbox, modules=modules, toolbox=toolbox, secrets=secrets
    )
    loop = RunLoop(
        engine,
        clock=clock,
        ids=ids,
        model=ModelStep(
            engine,
            context=context,
            roster=roster,
            budgets=budgets,
            overdraft=OverdraftPolicy(channels, expires=expires, clock=clock, ids=ids),
            clock=clock,
            ids=ids,
            settings_hash=lambda: settings.hash,
            seals=seals,
            toolbox=toolbox,
        ),
        policy=PolicyStep(engine, judge=judge, workbench=workbench, seals=seals, clock=clock, shadows=shadows),
        approval=ApprovalStep(
            engine,
            expires=expires,
            clock=clock,
            ids=ids,
        ),
        tools=ToolsStep(
            engine,
            judge=judge,
            workbench=workbench,
            attester=attester,
            clock=clock,
            ids=ids,
            seals=seals,
        ),
        attester=attester,
        stops=stops,
    )
    return RunWorker(
        engine,
        loop,
        stops=stops,
        storage=storage,
        clock=clock,
        owner=owner,
        concurrency=settings.now.runs.concurrency,
    )
