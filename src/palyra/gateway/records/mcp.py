"""MCP servers, as the HTTP API takes and returns them."""

from collections.abc import Sequence

from msgspec import Struct

from palyra.core.mcp import McpServerStatus


class McpDecisionRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The tools that a decision is about."""

    tools: dict[str, str]
    """The server's own name of each tool, with the digest of the definition that was reviewed."""


class McpServerPage(Struct, frozen=True, kw_only=True):
    """Every server of the settings."""

    servers: Sequence[McpServerStatus]
    next_cursor: str | None = None


class McpServerResponse(Struct, frozen=True, kw_only=True):
    """One server."""

    server: McpServerStatus
