"""Decisions about tools of MCP servers as rows: one per tool, with the definition that was accepted or rejected."""

import msgspec

from palyra.core.clock import from_ms, to_ms
from palyra.core.mcp import McpToolDecision, McpToolDefinition
from palyra.journal.engines.base import Connection, Row

_COLUMNS = "server, tool, server_digest, digest, definition, accepted, decided_ms, decided_by"

_definition = msgspec.json.Decoder(McpToolDefinition)


def put(conn: Connection, pin: McpToolDecision) -> None:
    """Store a decision; it replaces an earlier one."""
    conn.execute(
        f"INSERT INTO mcp_pins ({_COLUMNS}) VALUES (:server, :tool, :server_digest, :digest, :definition, :accepted,"
        " :decided_ms, :decided_by) ON CONFLICT (server, tool) DO UPDATE SET server_digest = excluded.server_digest,"
        " digest = excluded.digest, definition = excluded.definition, accepted = excluded.accepted,"
        " decided_ms = excluded.decided_ms, decided_by = excluded.decided_by",
        {
            "server": pin.server,
            "tool": pin.definition.name,
            "server_digest": pin.server_digest,
            "digest": pin.definition.digest,
            "definition": msgspec.json.encode(pin.definition).decode(),
            "accepted": int(pin.accepted),
            "decided_ms": to_ms(pin.decided_at),
            "decided_by": pin.decided_by,
        },
    )


def all_pins(conn: Connection) -> list[McpToolDecision]:
    """Return every decision, by server and tool."""
    return [_pin(row) for row in conn.fetch(f"SELECT {_COLUMNS} FROM mcp_pins ORDER BY server, tool")]


def _pin(row: Row) -> McpToolDecision:
    server, _, server_digest, _, definition, accepted, decided_ms, decided_by = row
    return McpToolDecision(
        server=server,
        server_digest=server_digest,
        definition=_definition.decode(definition),
        accepted=bool(accepted),
        decided_at=from_ms(decided_ms),
        decided_by=decided_by,
    )
