"""Builds the services that endpoints call: messages, cancellation, sessions, approvals and agents."""

from dataclasses import dataclass

from palyra.daemon.subsystems import Subsystems
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
    intake = MessageIntake(
        engine,
        clock=clock,
        ids=ids,
        limits=config.now.limits,
        bounds=config.now.runs,
        stops=parts.guards.stops,
        meant=parts.models.pool.meant,
        glance=parts.models.prompts.prefetch,
        seals=sealer,
        place=worker.reserve_slot,
    )
    config.watch(lambda new: intake.adopt(new.limits, new.runs))
    return ServiceParts(
        intake=intake,
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
