"""MCP servers over HTTP, for administrators: their status, and decisions about their tools."""

from starlette.requests import Request
from starlette.responses import Response

from palyra.core.ids import PrincipalId
from palyra.gateway.http.messages import json_response, read_body
from palyra.gateway.http.operation import Operation
from palyra.gateway.records.mcp import McpDecisionRequest, McpServerPage, McpServerResponse
from palyra.runs.services.mcp import McpService


class McpRoutes:
    """The operations that concern MCP servers."""

    def __init__(self, mcp: McpService) -> None:
        self._mcp = mcp

    def operations(self) -> list[Operation]:
        every, one = "/admin/v1/mcp/servers", "/admin/v1/mcp/servers/{server_name}"
        return [
            Operation(
                "listMcpServers", "GET", every, self.index, "List MCP servers.", need="admin", answer=McpServerPage
            ),
            Operation(
                "getMcpServer",
                "GET",
                one,
                self.show,
                "Show an MCP server and its tools.",
                need="admin",
                answer=McpServerResponse,
            ),
            Operation(
                "acceptMcpTools",
                "POST",
                f"{one}/accept",
                self.accept,
                "Let agents use tools of an MCP server.",
                need="admin",
                body=McpDecisionRequest,
                answer=McpServerResponse,
            ),
            Operation(
                "refuseMcpTools",
                "POST",
                f"{one}/refuse",
                self.refuse,
                "Keep tools of an MCP server from agents.",
                need="admin",
                body=McpDecisionRequest,
                answer=McpServerResponse,
            ),
            Operation(
                "restartMcpServer",
                "POST",
                f"{one}/restart",
                self.restart,
                "Restart an MCP server.",
                need="admin",
                answer=McpServerResponse,
            ),
            Operation(
                "testMcpServer",
                "POST",
                f"{one}/test",
                self.test,
                "Ask an MCP server for its tools.",
                need="admin",
                answer=McpServerResponse,
            ),
        ]

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        return json_response(McpServerPage(servers=await self._mcp.all()))

    async def show(self, request: Request, principal: PrincipalId) -> Response:
        return json_response(McpServerResponse(server=await self._mcp.one(_name(request))))

    async def accept(self, request: Request, principal: PrincipalId) -> Response:
        requested_request = await read_body(request, McpDecisionRequest)
        return json_response(
            McpServerResponse(
                server=await self._mcp.decide(principal, _name(request), requested_request.tools, accept=True)
            )
        )

    async def refuse(self, request: Request, principal: PrincipalId) -> Response:
        requested_request = await read_body(request, McpDecisionRequest)
        return json_response(
            McpServerResponse(
                server=await self._mcp.decide(principal, _name(request), requested_request.tools, accept=False)
            )
        )

    async def restart(self, request: Request, principal: PrincipalId) -> Response:
        return json_response(McpServerResponse(server=await self._mcp.restart(_name(request))))

    async def test(self, request: Request, principal: PrincipalId) -> Response:
        return json_response(McpServerResponse(server=await self._mcp.test(_name(request))))


def _name(request: Request) -> str:
    return str(request.path_params["server_name"])
