"""Agents as rows."""

import msgspec

from palyra.core.agent import Agent
from palyra.core.ids import AgentId, PrincipalId
from palyra.journal.engines.base import Connection

_encode = msgspec.json.Encoder()
_decode = msgspec.json.Decoder(Agent)


def put(conn: Connection, agent: Agent) -> None:
    """Write an agent, new or changed."""
    conn.execute(
        "INSERT INTO agents (agent_id, principal, record, is_default)"
        " VALUES (:agent_id, :principal, :record, :is_default)"
        " ON CONFLICT (agent_id) DO UPDATE SET record = excluded.record, is_default = excluded.is_default",
        {
            "agent_id": agent.agent_id,
            "principal": agent.principal,
            "record": _encode.encode(agent).decode(),
            "is_default": int(agent.is_default),
        },
    )


def get(conn: Connection, agent_id: AgentId, principal: PrincipalId) -> Agent | None:
    """Return the principal's agent of that id."""
    row = conn.fetch_one(
        "SELECT record FROM agents WHERE agent_id = :agent_id AND principal = :principal",
        {"agent_id": agent_id, "principal": principal},
    )
    return _decode.decode(row[0]) if row else None


def name_of(conn: Connection, agent_id: AgentId) -> str | None:
    """Return the name of an agent, of any principal."""
    row = conn.fetch_one("SELECT record FROM agents WHERE agent_id = :agent_id", {"agent_id": agent_id})
    return _decode.decode(row[0]).name if row else None


def default(conn: Connection, principal: PrincipalId) -> Agent | None:
    """Return the principal's default agent."""
    row = conn.fetch_one(
        "SELECT record FROM agents WHERE principal = :principal AND is_default = 1", {"principal": principal}
    )
    return _decode.decode(row[0]) if row else None


def of(conn: Connection, principal: PrincipalId) -> list[Agent]:
    """Return the principal's agents by name."""
    rows = conn.fetch("SELECT record FROM agents WHERE principal = :principal", {"principal": principal})
    return sorted((_decode.decode(row[0]) for row in rows), key=lambda agent: agent.name)


def count(conn: Connection) -> int:
    """Return how many agents there are, of all principals."""
    row = conn.fetch_one("SELECT COUNT(*) FROM agents")
    return int(row[0]) if row else 0


def delete(conn: Connection, agent_id: AgentId, principal: PrincipalId) -> None:
    """Delete an agent."""
    conn.execute(
        "DELETE FROM agents WHERE agent_id = :agent_id AND principal = :principal",
        {"agent_id": agent_id, "principal": principal},
    )
