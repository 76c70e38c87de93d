"""Builds the context in which the tools of a run work."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from palyra.core.agent import Agent
from palyra.core.clock import Clock
from palyra.core.ids import PrincipalId
from palyra.core.run.state import RunState
from palyra.policy.gate import Gate
from palyra.runs.services.secrets import AgentCredentials, SecretService
from palyra.sandbox.base import Sandbox
from palyra.sandbox.files.workspace import Workspace
from palyra.sandbox.network.egress import Egress
from palyra.sandbox.wasm.module import ModuleRunner
from palyra.tools.base import PUBLIC, ToolContext
from palyra.tools.call_slots import CallSlots
from palyra.tools.catalog import ToolCatalog
from palyra.tools.toolbox import Toolbox


@dataclass(frozen=True, slots=True)
class ToolParts:
    """The tools, what they work with, and the policies that judge their calls."""

    toolbox: Toolbox
    gate: Callable[[], Gate]
    """Returns the policies in force."""
    workspaces: Callable[[PrincipalId], Workspace]
    sandbox: Sandbox
    modules: ModuleRunner
    egress: Egress = PUBLIC


class ToolContextFactory:
    """Builds the context of a run's tools: the same when a call is judged and when it is executed."""

    def __init__(self, parts: ToolParts, secrets: SecretService, *, clock: Clock) -> None:
        self._parts = parts
        self._secrets = secrets
        self._clock = clock
        self._shares = CallSlots()

    def catalog(self, state: RunState, agent: Agent | None) -> ToolCatalog:
        """Return the tools that a run of this agent may use now; none if the agent is gone, or the model is alone."""
        allowed = agent.tools if agent is not None and not state.options.plain else ()
        return self._parts.toolbox.offer(allowed, state.discovered_tools, who=state.principal)

    def context(self, state: RunState, agent: Agent | None) -> ToolContext:
        """Return what the tools of a run may reach: the agent's own folders, or the principal's."""
        workspace = self._parts.workspaces(state.principal)
        if agent is not None and agent.workspace_roots:
            workspace = workspace.within(tuple(Path(root) for root in agent.workspace_roots))
        return ToolContext(
            workspace=workspace,
            clock=self._clock,
            sandbox=self._parts.sandbox,
            searches=self._parts.sandbox,
            modules=self._parts.modules,
            egress=self._parts.egress,
            credentials=AgentCredentials(self._secrets, state.principal, state.agent_id),
            principal=state.principal,
            shares=self._shares,
        )
