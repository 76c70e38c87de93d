"""Agents, as the HTTP API takes and returns them."""

from collections.abc import Sequence

from msgspec import Struct

from palyra.core.agent import Agent


class LimitsRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits of an agent's own, none above the daemon's; what is left out is the daemon's current limit."""

    model_turns: int | None = None
    tool_calls: int | None = None
    wall_clock_ms: int | None = None
    last_turn_timeout_ms: int | None = None
    tool_timeout_ms: int | None = None
    max_depth: int | None = None
    max_children: int | None = None


class AgentRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An agent as its owner describes it."""

    name: str
    instructions: str = ""
    tools: tuple[str, ...] | None = None
    workspace_roots: tuple[str, ...] = ()
    limits: LimitsRequest | None = None


class BindRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The agent that should answer in a session."""

    agent_id: str


class AgentPage(Struct, frozen=True, kw_only=True):
    """Agents by name."""

    agents: Sequence[Agent]
    next_cursor: str | None = None


class AgentResponse(Struct, frozen=True, kw_only=True):
    """One agent."""

    agent: Agent


class ResolvedAgentResponse(Struct, frozen=True, kw_only=True):
    """The agent that would answer, and why."""

    agent: Agent
    reason: str
