"""Builds the context in which the tools of a run work."""

from collections.abc import Callable
from pathlib import Path

from palyra.core.agent import Agent
from palyra.core.clock import Clock
from palyra.core.ids import PrincipalId
from palyra.core.run.state import RunState
from palyra.runs.services.secrets import AgentCredentials, SecretService
from palyra.sandbox.base import Sandbox
from palyra.sandbox.files.workspace import Workspace
from palyra.sandbox.network.egress import Egress
from palyra.sandbox.wasm.runner import ModuleRunner, WasmRunner
from palyra.tools.base import NO_SANDBOX, PUBLIC, ToolContext
from palyra.tools.call_slots import CallSlots
from palyra.tools.catalog import ToolCatalog
from palyra.tools.credentials import NO_CREDENTIALS
from palyra.tools.toolbox import BUILTIN_ONLY, Toolbox


class ToolContextFactory:
    """Builds the context of a run's tools: the same when a call is judged and when it is executed."""

    def __init__(
        self,
        *,
        workspace: Callable[[PrincipalId], Workspace],
        clock: Clock,
        sandbox: Sandbox = NO_SANDBOX,
        modules: ModuleRunner | None = None,
        toolbox: Toolbox = BUILTIN_ONLY,
        egress: Egress = PUBLIC,
        secrets: SecretService | None = None,
    ) -> None:
        self._egress = egress
        self._secrets = secrets
        self._toolbox = toolbox
        self._workspace = workspace
        self._sandbox = sandbox
        self._modules = modules or WasmRunner()
        self._clock = clock
        self._shares = CallSlots()

    def catalog(self, state: RunState, agent: Agent | None) -> ToolCatalog:
        """Return the tools that a run of this agent may use now; none if the agent is gone, or the model is alone."""
        allowed = agent.tools if agent is not None and not state.options.plain else ()
        return self._toolbox.offer(allowed, state.discovered_tools, who=state.principal)

    def context(self, state: RunState, agent: Agent | None) -> ToolContext:
        """Return what the tools of a run may reach: the agent's own folders, or the principal's."""
        workspace = self._workspace(state.principal)
        if agent is not None and agent.workspace_roots:
            workspace = workspace.within(tuple(Path(root) for root in agent.workspace_roots))
        credentials = NO_CREDENTIALS
        if self._secrets is not None:
            credentials = AgentCredentials(self._secrets, state.principal, state.agent_id)
        return ToolContext(
            workspace=workspace,
            clock=self._clock,
            sandbox=self._sandbox,
            searches=self._sandbox,
            modules=self._modules,
            egress=self._egress,
            credentials=credentials,
            principal=state.principal,
            shares=self._shares,
        )
