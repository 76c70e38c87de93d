"""Builds the services that endpoints call: messages, cancellation, sessions, approvals and agents."""

from dataclasses import dataclass

from palyra.daemon.parts.subsystems import Subsystems
from palyra.runs.engine.worker import RunWorker
from palyra.runs.services.agents import AgentService
from palyra.runs.services.approvals import ApprovalService
from palyra.runs.services.cancellation import CancellationService
from palyra.runs.services.intake import MessageIntake
from palyra.runs.services.sessions import SessionService


@dataclass(frozen=True, slots=True)
class ServiceParts:
    """The services that several endpoints call."""

    intake: MessageIntake
    cancellation: CancellationService
    sessions: SessionService
    approvals: ApprovalService
    agents: AgentService


def build_services(parts: Subsystems, worker: RunWorker) -> ServiceParts:
    """Return the services; the worker gets the first runs of sessions without a search."""
    system, tools, sealer = parts.system, parts.tools, parts.vault.sealer
    engine, clock, ids, config = parts.journal.engine, system.clock, system.ids, system.config
    return ServiceParts(
        intake=MessageIntake(
            engine,
            system,
            stops=parts.guards.stops,
            meant=parts.models.pool.meant,
            prefetch=parts.models.prompts.prefetch,
            seals=sealer,
            reserve_slot=worker.reserve_slot,
        ),
        cancellation=CancellationService(engine, clock=clock, ids=ids),
        sessions=SessionService(engine, clock=clock, ids=ids),
        approvals=ApprovalService(engine, clock=clock, ids=ids, seals=sealer, toolbox=tools.toolbox),
        agents=AgentService(
            engine,
            clock=clock,
            ids=ids,
            workspace=tools.workspaces,
            toolbox=tools.toolbox,
            limits=lambda: config.now.limits,
        ),
    )
