"""Decisions about the tools of MCP servers as rows: the last one of each tool counts."""

from datetime import UTC, datetime

import msgspec

from palyra.core.mcp import McpToolDecision, McpToolDefinition
from palyra.journal.engines.base import Connection
from palyra.journal.stores import mcp_decisions

AT = datetime(2026, 1, 2, tzinfo=UTC)
LATER = datetime(2026, 1, 3, tzinfo=UTC)


def pin(tool: str = "note", *, server: str = "s", accepted: bool = True) -> McpToolDecision:
    parameters = {"type": "object", "properties": {"text": {"type": "string", "description": "Žluťoučký kůň"}}}
    definition = McpToolDefinition(name=tool, description="Write\na note.", parameters=parameters, digest="d1")
    return McpToolDecision(
        server=server,
        server_digest="p1",
        definition=definition,
        accepted=accepted,
        decided_at=AT,
        decided_by="user:owner",
    )


def test_decisions_are_found_as_they_were_made(conn: Connection) -> None:
    for each in (pin("b"), pin("a", accepted=False), pin("a", server="r")):
        mcp_decisions.put(conn, each)

    assert mcp_decisions.all_pins(conn) == [pin("a", server="r"), pin("a", accepted=False), pin("b")]


def test_the_last_decision_about_a_tool_counts(conn: Connection) -> None:
    mcp_decisions.put(conn, pin())
    other = msgspec.structs.replace(pin().definition, digest="d2", description="Something else.", reads_only=True)
    again = McpToolDecision(
        server="s", server_digest="p2", definition=other, accepted=False, decided_at=LATER, decided_by="user:second"
    )
    mcp_decisions.put(conn, again)

    assert mcp_decisions.all_pins(conn) == [again]
