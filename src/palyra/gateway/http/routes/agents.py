"""Agents over HTTP."""

from msgspec.structs import asdict, replace
from starlette.requests import Request
from starlette.responses import Response

from palyra.core.agent import Agent
from palyra.core.ids import AgentId, PrincipalId
from palyra.gateway.http.messages import json_response, read_body
from palyra.gateway.http.operation import Operation, QueryParameter
from palyra.gateway.records.agents import AgentPage, AgentRequest, AgentResponse, BindRequest, ResolvedAgentResponse
from palyra.gateway.records.sessions import SessionResponse
from palyra.runs.services.agents import AgentService


class AgentRoutes:
    """The operations that concern agents."""

    def __init__(self, agents: AgentService) -> None:
        self._agents = agents

    def operations(self) -> list[Operation]:
        every, one = "/console/v1/agents", "/console/v1/agents/{agent_id}"
        session = QueryParameter("session_id", "string", "The session in which a message would come.")
        return [
            Operation("GET", every, self.index, "List agents.", answer=AgentPage),
            Operation(
                "POST", every, self.create, "Make an agent.", need="write", body=AgentRequest, answer=AgentResponse
            ),
            Operation(
                "GET",
                f"{every}/resolve",
                self.resolve,
                "Say who would answer.",
                query=(session,),
                answer=ResolvedAgentResponse,
            ),
            Operation("GET", one, self.show, "Show an agent.", answer=AgentResponse),
            Operation(
                "PUT", one, self.update, "Change an agent.", need="write", body=AgentRequest, answer=AgentResponse
            ),
            Operation("DELETE", one, self.delete, "Forget an agent.", need="write", status=204),
            Operation(
                "POST", f"{one}/default", self.default, "Make it the default.", need="write", answer=AgentResponse
            ),
            Operation(
                "POST",
                f"{one}/bind",
                self.bind,
                "Bind it to a session.",
                need="write",
                body=BindRequest,
                answer=SessionResponse,
            ),
            Operation(
                "POST",
                "/console/v1/sessions/{session_id}/unbind",
                self.unbind,
                "Let the default agent answer in a session again.",
                need="write",
                answer=SessionResponse,
            ),
        ]

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        return json_response(AgentPage(agents=await self._agents.list(principal)))

    async def show(self, request: Request, principal: PrincipalId) -> Response:
        return json_response(AgentResponse(agent=await self._agents.get(principal, request.path_params["agent_id"])))

    async def create(self, request: Request, principal: PrincipalId) -> Response:
        asked = await read_body(request, AgentRequest)
        agent = self._agent("", principal, asked)
        return json_response(AgentResponse(agent=await self._agents.create(principal, agent)))

    async def update(self, request: Request, principal: PrincipalId) -> Response:
        asked = await read_body(request, AgentRequest)
        agent = self._agent(request.path_params["agent_id"], principal, asked)
        return json_response(AgentResponse(agent=await self._agents.update(principal, agent)))

    async def delete(self, request: Request, principal: PrincipalId) -> Response:
        await self._agents.delete(principal, request.path_params["agent_id"])
        return Response(status_code=204)

    async def default(self, request: Request, principal: PrincipalId) -> Response:
        return json_response(
            AgentResponse(agent=await self._agents.set_default(principal, request.path_params["agent_id"]))
        )

    async def bind(self, request: Request, principal: PrincipalId) -> Response:
        asked = await read_body(request, BindRequest)
        session = await self._agents.bind(principal, request.path_params["agent_id"], asked.session_id)
        return json_response(SessionResponse(session=session))

    async def unbind(self, request: Request, principal: PrincipalId) -> Response:
        return json_response(
            SessionResponse(session=await self._agents.unbind(principal, request.path_params["session_id"]))
        )

    async def resolve(self, request: Request, principal: PrincipalId) -> Response:
        agent, reason = await self._agents.resolve(principal, request.query_params.get("session_id"))
        return json_response(ResolvedAgentResponse(agent=agent, reason=reason))

    def _agent(self, agent_id: str, principal: PrincipalId, asked: AgentRequest) -> Agent:
        limits = None
        if asked.limits is not None:
            set_here = {name: value for name, value in asdict(asked.limits).items() if value is not None}
            limits = replace(self._agents.limits(), **set_here)
        return Agent(
            agent_id=AgentId(agent_id),
            principal=principal,
            name=asked.name,
            instructions=asked.instructions,
            tools=asked.tools,
            workspace_roots=asked.workspace_roots,
            limits=limits,
        )
