"""Agents: the instructions, tools, workspace and limits that a run works with."""

from msgspec import Struct

from palyra.core.errors import NotFound
from palyra.core.ids import AgentId, PrincipalId
from palyra.core.limits import Limits


class AgentNotFound(NotFound):
    """You have no such agent. `palyra agents` lists yours."""


class Agent(Struct, frozen=True, kw_only=True):
    """An agent record."""

    agent_id: AgentId
    principal: PrincipalId
    name: str
    instructions: str
    tools: tuple[str, ...] | None = None
    """Names of the tools it may use; None means all."""
    workspace_roots: tuple[str, ...] = ()
    """Folders it works in; the configured workspace if empty."""
    limits: Limits | None = None
    """Its own limits; the configured ones if None."""
    is_default: bool = False
