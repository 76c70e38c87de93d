"""Agents: create, change and delete them, and choose the one that answers in a session."""

import asyncio
import difflib
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec

from palyra.core.agent import Agent, AgentNotFound
from palyra.core.clock import Clock
from palyra.core.errors import Conflict, Invalid, NotFound, PalyraError
from palyra.core.ids import AgentId, IdSource, PrincipalId, SessionId, parse_ulid
from palyra.core.limits import Limits
from palyra.core.message import clean_text
from palyra.core.session import Session, SessionNotFound
from palyra.core.session_events import SessionAgentBound
from palyra.core.text.secret_markers import without_secrets
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import agents, runs, sessions
from palyra.runs.recording.session_writer import SessionWriter
from palyra.sandbox.files.root import MAX_ROOTS
from palyra.sandbox.files.workspace import Workspace
from palyra.tools.toolbox import BUILTIN_ONLY, Toolbox

MAX_NAME_CHARS = 80
MAX_INSTRUCTIONS_BYTES = 32 * 1024
MAX_AGENTS = 500


class AgentMissing(NotFound):
    """There is no agent to answer. Create one, and make it the default."""


class AgentInvalid(Invalid):
    """The agent's definition is not valid."""


class AgentDefault(Conflict):
    """This is the default agent. Make another one the default first."""


class AgentBusy(Conflict):
    """The agent has active runs. Wait for them to end, or cancel them, then try again."""


def choose(
    conn: Connection, principal: PrincipalId, session: Session | None, *, named: str | None = None
) -> tuple[Agent, str]:
    """Return the agent that answers in a session, and why; an agent `named` by id or name takes precedence."""
    if named is not None:
        return _named(conn, principal, named), "named by the caller"
    reason = "the default agent"
    if session is not None and session.agent_id is not None:
        bound = agents.get(conn, session.agent_id, principal)
        if bound is not None:
            return bound, "bound to the session"
        reason = "the default agent, because the session's agent was deleted"
    default = agents.default(conn, principal)
    if default is None:
        raise AgentMissing
    return default, reason


class AgentService:
    """Manages a principal's agents."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock,
        ids: IdSource,
        workspace: Callable[[PrincipalId], Workspace],
        toolbox: Toolbox = BUILTIN_ONLY,
        limits: Callable[[], Limits] = Limits,
    ) -> None:
        """`limits` returns those of the daemon, which no agent's limits may exceed."""
        self._toolbox = toolbox
        self.limits = limits
        self._engine = engine
        self._clock = clock
        self._ids = ids
        self._workspace = workspace

    async def list(self, principal: PrincipalId) -> list[Agent]:
        """Return the principal's agents by name."""
        return await self._engine.read(lambda conn: agents.of(conn, principal))

    async def get(self, principal: PrincipalId, agent_id: str) -> Agent:
        """Return one agent."""
        requested_agent_id = _id(agent_id)
        return await self._engine.read(lambda conn: _existing(conn, requested_agent_id, principal))

    async def create(self, principal: PrincipalId, agent: Agent) -> Agent:
        """Store a new agent; the first one becomes the default."""
        made = msgspec.structs.replace(agent, agent_id=AgentId(self._ids.new()), principal=principal)
        await asyncio.to_thread(self._check, made)

        def unit(conn: Connection) -> Agent:
            cached_agents = agents.of(conn, principal)
            if len(cached_agents) >= MAX_AGENTS:
                raise AgentInvalid(f"You have {MAX_AGENTS} agents, which is the maximum. Delete one first.")
            _check_name_is_free(cached_agents, made)
            stored_agent = msgspec.structs.replace(made, is_default=not cached_agents)
            agents.put(conn, stored_agent)
            return stored_agent

        return await self._engine.write(unit)

    async def update(self, principal: PrincipalId, agent: Agent) -> Agent:
        """Replace an agent; current runs use the new one from their next turn."""
        agent_id = _id(agent.agent_id)
        await asyncio.to_thread(self._check, msgspec.structs.replace(agent, principal=principal))

        def unit(conn: Connection) -> Agent:
            before = _existing(conn, agent_id, principal)
            changed = msgspec.structs.replace(
                agent, agent_id=agent_id, principal=principal, is_default=before.is_default
            )
            _check_name_is_free(agents.of(conn, principal), changed)
            agents.put(conn, changed)
            return changed

        return await self._engine.write(unit)

    async def delete(self, principal: PrincipalId, agent_id: str) -> None:
        """Delete an agent; sessions that it was bound to fall back to the default."""
        requested_agent_id = _id(agent_id)

        def unit(conn: Connection) -> None:
            if _existing(conn, requested_agent_id, principal).is_default:
                raise AgentDefault
            if runs.open_of_agent(conn, requested_agent_id, principal):
                raise AgentBusy
            agents.delete(conn, requested_agent_id, principal)

        await self._engine.write(unit)

    async def set_default(self, principal: PrincipalId, agent_id: str) -> Agent:
        """Make an agent the default: it answers wherever no other is chosen."""
        requested_agent_id = _id(agent_id)

        def unit(conn: Connection) -> Agent:
            chosen = _existing(conn, requested_agent_id, principal)
            before = agents.default(conn, principal)
            if before is not None and before.agent_id != requested_agent_id:
                agents.put(conn, msgspec.structs.replace(before, is_default=False))
            agent = msgspec.structs.replace(chosen, is_default=True)
            agents.put(conn, agent)
            return agent

        return await self._engine.write(unit)

    async def bind(self, principal: PrincipalId, agent_id: str, session_id: str) -> Session:
        """Make an agent answer in a session, from its next run on."""
        requested_agent_id = _id(agent_id)
        return await self._bind(principal, session_id, requested_agent_id)

    async def unbind(self, principal: PrincipalId, session_id: str) -> Session:
        """Let the default agent answer in a session again."""
        return await self._bind(principal, session_id, None)

    async def resolve(self, principal: PrincipalId, session_id: str | None) -> tuple[Agent, str]:
        """Return the agent that would answer in a session, or in a new one, and why."""
        requested_session_id = SessionId(parse_ulid(session_id, "session id")) if session_id else None

        def query(conn: Connection) -> tuple[Agent, str]:
            session = sessions.get(conn, requested_session_id, principal) if requested_session_id is not None else None
            if requested_session_id is not None and session is None:
                raise SessionNotFound
            return choose(conn, principal, session)

        return await self._engine.read(query)

    async def _bind(self, principal: PrincipalId, session_id: str, agent_id: AgentId | None) -> Session:
        requested_session_id = SessionId(parse_ulid(session_id, "session id"))
        at = self._clock.now()
        return await self._engine.write(
            lambda conn: self._bound(conn, principal, requested_session_id, agent_id, at=at)
        )

    def _bound(
        self, conn: Connection, principal: PrincipalId, session_id: SessionId, agent_id: AgentId | None, *, at: datetime
    ) -> Session:
        if sessions.get(conn, session_id, principal) is None:
            raise SessionNotFound
        if agent_id is not None:
            _existing(conn, agent_id, principal)
        writer = SessionWriter.open(conn, session_id, ids=self._ids)
        writer.note(SessionAgentBound(at=at, actor=principal, agent_id=agent_id))
        writer.close()
        changed = sessions.get(conn, session_id, principal)
        assert changed is not None
        return changed

    def _check(self, agent: Agent) -> None:
        """Raise unless the agent is valid. Blocks: its folders are checked."""
        clean_text(agent.name, what="name")
        clean_text(agent.instructions, what="instructions")
        if not agent.name.strip() or len(agent.name) > MAX_NAME_CHARS:
            raise AgentInvalid(
                f"An agent's name must have 1 to {MAX_NAME_CHARS} characters; this one has {len(agent.name)}."
            )
        if without_secrets(agent.instructions) != agent.instructions:
            raise AgentInvalid(
                "The instructions contain what looks like a secret, which the model would see in every "
                "turn. Remove it, and store it with `palyra secrets set NAME --host HOST`."
            )
        if len(agent.instructions.encode()) > MAX_INSTRUCTIONS_BYTES:
            raise AgentInvalid(
                "The agent's instructions are longer than 32 KiB. Put long text into a file in the workspace."
            )
        names = self._toolbox.catalog(None, who=agent.principal).names()
        for name in agent.tools or ():
            if name not in names:
                close = difflib.get_close_matches(name, names, n=1)
                raise AgentInvalid(f"Unknown tool {name[:60]!r}.{f' Did you mean {close[0]}?' if close else ''}")
        if agent.limits is not None:
            _check_limits(agent.limits, self.limits())
        self._check_roots(agent)

    def _check_roots(self, agent: Agent) -> None:
        """Raise unless the roots can be used now. This gives a clear error early: each use checks them again."""
        if len(agent.workspace_roots) > MAX_ROOTS:
            raise AgentInvalid(
                f"An agent may have at most {MAX_ROOTS} workspace roots. Name a folder that contains several of them."
            )
        workspace = self._workspace(agent.principal)
        for root in agent.workspace_roots:
            clean_text(root, what="workspace root")
            try:
                workspace.within((Path(root),)).root_paths()
            except PalyraError as error:
                allowed = workspace.roots[0].trusted
                raise AgentInvalid(
                    f"A workspace root must be a folder inside {allowed}, and {root[:200]!r} is not. {error.detail}"
                ) from None


def _check_limits(limits: Limits, allowed: Limits) -> None:
    # They are also capped where they are used: the daemon's may be lowered later.
    for name in limits.__struct_fields__:
        value, maximum = getattr(limits, name), getattr(allowed, name)
        if value < 0:
            raise AgentInvalid(f"The limit {name} is {value}. A limit cannot be negative.")
        if value > maximum:
            raise AgentInvalid(
                f"The limit {name} is {value}, but the maximum of this daemon is {maximum} (limits.{name})."
            )


def _id(agent_id: str) -> AgentId:
    return AgentId(parse_ulid(agent_id, "agent id"))


def _named(conn: Connection, principal: PrincipalId, name: str) -> Agent:
    for agent in agents.of(conn, principal):
        if name in (agent.name, agent.agent_id):
            return agent
    raise AgentNotFound("You have no such agent.")


def _existing(conn: Connection, agent_id: AgentId, principal: PrincipalId) -> Agent:
    agent = agents.get(conn, agent_id, principal)
    if agent is None:
        raise AgentNotFound("You have no such agent.")
    return agent


def _check_name_is_free(cached_agents: list[Agent], agent: Agent) -> None:
    if any(other.name == agent.name and other.agent_id != agent.agent_id for other in cached_agents):
        raise AgentInvalid(f"You already have an agent named {agent.name!r}.")
