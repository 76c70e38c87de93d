"""HTTP calls that concern MCP servers."""

from collections.abc import Mapping, Sequence

from palyra.core.mcp import McpServerStatus
from palyra.gateway.client.http_calls import HttpCalls, segment
from palyra.gateway.records.mcp import McpDecisionRequest, McpServerPage, McpServerResponse

ROOT = "/admin/v1/mcp/servers"


class McpCalls:
    """Calls the operations on MCP servers of one daemon."""

    def __init__(self, http: HttpCalls) -> None:
        self._http = http

    def list(self) -> Sequence[McpServerStatus]:
        """Return the servers of the settings."""
        return self._http.get(McpServerPage, ROOT).servers

    def get(self, name: str) -> McpServerStatus:
        """Return a server with its tools."""
        return self._http.get(McpServerResponse, f"{ROOT}/{segment(name)}").server

    def accept(self, name: str, tools: Mapping[str, str]) -> McpServerStatus:
        """Let agents use tools of a server; each has the digest of the definition that was reviewed."""
        return self._decide(f"{ROOT}/{segment(name)}/accept", tools)

    def reject(self, name: str, tools: Mapping[str, str]) -> McpServerStatus:
        """Keep tools of a server from agents."""
        return self._decide(f"{ROOT}/{segment(name)}/reject", tools)

    def restart(self, name: str) -> McpServerStatus:
        """Restart a server."""
        return self._http.post(McpServerResponse, f"{ROOT}/{segment(name)}/restart").server

    def test(self, name: str) -> McpServerStatus:
        """Ask a server for its tools."""
        return self._http.post(McpServerResponse, f"{ROOT}/{segment(name)}/test").server

    def _decide(self, path: str, tools: Mapping[str, str]) -> McpServerStatus:
        return self._http.post(McpServerResponse, path, McpDecisionRequest(tools=dict(tools))).server
