"""Who does the work: instructions, tools, workspace, limits."""

from msgspec import Struct

from palyra.core.ids import AgentId, PrincipalId
from palyra.core.limits import Limits


class Agent(Struct, frozen=True, kw_only=True):
    """An agent record."""

    agent_id: AgentId
    principal: PrincipalId
    name: str
    instructions: str
    tools: tuple[str, ...] | None = None
    """Names of the tools it may use; None for all."""
    workspace_roots: tuple[str, ...] = ()
    """Folders it works in; the configured workspace if there are none."""
    limits: Limits | None = None
    """Its own limits; the configured ones if it has none."""
    is_default: bool = False
