"""MCP servers over HTTP, for administrators: their status, and decisions about their tools."""

from palyra.core.ids import PrincipalId
from palyra.gateway.http.declaration import Routes, operation
from palyra.gateway.records.mcp import McpDecisionRequest, McpServerPage, McpServerResponse
from palyra.runs.services.mcp import McpService


class McpRoutes(Routes):
    """The operations that concern MCP servers."""

    def __init__(self, mcp: McpService) -> None:
        self._mcp = mcp

    @operation("listMcpServers", "GET /admin/v1/mcp/servers", need="admin")
    async def index(self) -> McpServerPage:
        """List MCP servers."""
        return McpServerPage(servers=await self._mcp.all())

    @operation("getMcpServer", "GET /admin/v1/mcp/servers/{server_name}", need="admin")
    async def show(self, server_name: str) -> McpServerResponse:
        """Show an MCP server and its tools."""
        return McpServerResponse(server=await self._mcp.one(server_name))

    @operation("acceptMcpTools", "POST /admin/v1/mcp/servers/{server_name}/accept", need="admin")
    async def accept(self, principal: PrincipalId, server_name: str, body: McpDecisionRequest) -> McpServerResponse:
        """Let agents use tools of an MCP server."""
        return McpServerResponse(server=await self._mcp.decide(principal, server_name, body.tools, accept=True))

    @operation("rejectMcpTools", "POST /admin/v1/mcp/servers/{server_name}/reject", need="admin")
    async def reject(self, principal: PrincipalId, server_name: str, body: McpDecisionRequest) -> McpServerResponse:
        """Keep tools of an MCP server from agents."""
        return McpServerResponse(server=await self._mcp.decide(principal, server_name, body.tools, accept=False))

    @operation("restartMcpServer", "POST /admin/v1/mcp/servers/{server_name}/restart", need="admin")
    async def restart(self, server_name: str) -> McpServerResponse:
        """Restart an MCP server."""
        return McpServerResponse(server=await self._mcp.restart(server_name))

    @operation("testMcpServer", "POST /admin/v1/mcp/servers/{server_name}/test", need="admin")
    async def test(self, server_name: str) -> McpServerResponse:
        """Ask an MCP server for its tools."""
        return McpServerResponse(server=await self._mcp.test(server_name))
