"""What the policies are asked about a call."""

from dataclasses import dataclass
from datetime import datetime

from palyra.core.ids import AgentId, PrincipalId, SessionId
from palyra.core.policy.effect import Effect
from palyra.core.policy.manifest import CapabilityManifest
from palyra.core.tool import ToolSpec


@dataclass(frozen=True, slots=True)
class PolicyQuery:
    """A call, and everything that the decision may depend on."""

    principal: PrincipalId
    agent_id: AgentId
    session_id: SessionId
    tool: ToolSpec
    effect: Effect
    labels: tuple[str, ...]
    """The labels of the texts that the arguments were made of."""
    channels: tuple[str, ...]
    """The channels of the messages that the run follows; empty if they were not recorded."""
    approver_reachable: bool
    """An approver is reachable."""
    now: datetime
    manifest: CapabilityManifest | None = None
    signals: tuple[str, ...] = ()
    """What scanners found in the texts that the session has read."""
