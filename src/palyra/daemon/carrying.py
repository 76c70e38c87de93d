"""The worker of a daemon: put together with all that its steps need."""

from datetime import timedelta

from palyra.core.clock import Clock
from palyra.core.ids import IdSource
from palyra.daemon.current import Current
from palyra.daemon.home import Workspaces
from palyra.journal.engine import Engine
from palyra.journal.storage import Storage
from palyra.memory.context import Context
from palyra.policy.current import CurrentPolicies
from palyra.providers.roster import Roster
from palyra.runs.attestations import Attester
from palyra.runs.budgets import Budgets
from palyra.runs.channels import Channels
from palyra.runs.judge import Judge
from palyra.runs.loop import Loop
from palyra.runs.overdraft import Overdraft
from palyra.runs.seals import Seals
from palyra.runs.secrets import Secrets
from palyra.runs.shadow import Shadows
from palyra.runs.steps.approval import ApprovalStep
from palyra.runs.steps.model import ModelStep
from palyra.runs.steps.policy import PolicyStep
from palyra.runs.steps.tools import ToolsStep
from palyra.runs.stops import Stops
from palyra.runs.workbench import Workbench
from palyra.runs.worker import Worker
from palyra.sandbox.base import Sandbox
from palyra.sandbox.wasm import Modules
from palyra.tools.toolbox import Toolbox


def build(
    engine: Engine,
    settings: Current,
    *,
    context: Context,
    roster: Roster,
    budgets: Budgets,
    workspaces: Workspaces,
    sandbox: Sandbox,
    modules: Modules,
    secrets: Secrets,
    seals: Seals,
    toolbox: Toolbox,
    policies: CurrentPolicies,
    shadows: Shadows,
    channels: Channels,
    stops: Stops,
    storage: Storage,
    attester: Attester,
    clock: Clock,
    ids: IdSource,
    owner: str,
) -> Worker:
    """Return what carries runs."""

    def expires() -> timedelta:
        return timedelta(seconds=settings.now.approvals.expire_seconds)

    judge = Judge(lambda: policies.gate, channels, clock=clock)
    workbench = Workbench(
        workspace=workspaces, clock=clock, sandbox=sandbox, modules=modules, toolbox=toolbox, secrets=secrets
    )
    loop = Loop(
        engine,
        clock=clock,
        ids=ids,
        model=ModelStep(
            engine,
            context=context,
            roster=roster,
            budgets=budgets,
            overdraft=Overdraft(channels, expires=expires, clock=clock, ids=ids),
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
    return Worker(
        engine,
        loop,
        stops=stops,
        storage=storage,
        clock=clock,
        owner=owner,
        concurrency=settings.now.runs.concurrency,
    )
