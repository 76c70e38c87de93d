"""MCP servers over HTTP, for whoever administers this Palyra: how they stand, and the word on their tools."""

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from palyra.core.ids import PrincipalId
from palyra.core.mcp import McpStanding
from palyra.gateway.http.operation import Operation
from palyra.gateway.http.wire import body, reply
from palyra.runs.mcp import Mcp


class DecisionRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tools that are decided about."""

    tools: dict[str, str]
    """The server's own name of each, with the digest of the definition that was looked at."""


class ServersAnswer(Struct, frozen=True, kw_only=True):
    """Every server of the settings."""

    servers: list[McpStanding]


class ServerAnswer(Struct, frozen=True, kw_only=True):
    """One server."""

    server: McpStanding


class McpRoutes:
    """The operations that concern MCP servers."""

    def __init__(self, mcp: Mcp) -> None:
        self._mcp = mcp

    def operations(self) -> list[Operation]:
        every, one = "/admin/v1/mcp", "/admin/v1/mcp/{server_name}"
        return [
            Operation("GET", every, self.index, "List MCP servers.", need="admin", answer=ServersAnswer),
            Operation("GET", one, self.show, "Show an MCP server and its tools.", need="admin", answer=ServerAnswer),
            Operation(
                "POST",
                f"{one}/accept",
                self.accept,
                "Let agents use tools of a server.",
                need="admin",
                body=DecisionRequest,
                answer=ServerAnswer,
            ),
            Operation(
                "POST",
                f"{one}/refuse",
                self.refuse,
                "Keep agents from tools of a server.",
                need="admin",
                body=DecisionRequest,
                answer=ServerAnswer,
            ),
            Operation(
                "POST", f"{one}/restart", self.restart, "Start a server anew.", need="admin", answer=ServerAnswer
            ),
            Operation(
                "POST", f"{one}/test", self.test, "Ask a server for its tools.", need="admin", answer=ServerAnswer
            ),
        ]

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        return reply(ServersAnswer(servers=await self._mcp.all()))

    async def show(self, request: Request, principal: PrincipalId) -> Response:
        return reply(ServerAnswer(server=await self._mcp.one(_name(request))))

    async def accept(self, request: Request, principal: PrincipalId) -> Response:
        asked = await body(request, DecisionRequest)
        return reply(ServerAnswer(server=await self._mcp.decide(principal, _name(request), asked.tools, accept=True)))

    async def refuse(self, request: Request, principal: PrincipalId) -> Response:
        asked = await body(request, DecisionRequest)
        return reply(ServerAnswer(server=await self._mcp.decide(principal, _name(request), asked.tools, accept=False)))

    async def restart(self, request: Request, principal: PrincipalId) -> Response:
        return reply(ServerAnswer(server=await self._mcp.restart(_name(request))))

    async def test(self, request: Request, principal: PrincipalId) -> Response:
        return reply(ServerAnswer(server=await self._mcp.test(_name(request))))


def _name(request: Request) -> str:
    return str(request.path_params["server_name"])
