"""Agents over HTTP."""

from msgspec.structs import asdict, replace
from starlette.requests import Request
from starlette.responses import Response

from palyra.core.agent import Agent
from palyra.core.ids import AgentId, PrincipalId
from palyra.gateway.http.messages import json_response, read_body
from palyra.gateway.http.operation import Operation, Parameter
from palyra.gateway.records.agents import AgentPage, AgentRequest, AgentResponse, BindRequest, ResolvedAgentResponse
from palyra.gateway.records.sessions import SessionResponse
from palyra.runs.services.agents import AgentService


class AgentRoutes:
    """The operations that concern agents."""

    def __init__(self, agents: AgentService) -> None:
        self._agents = agents

    def operations(self) -> list[Operation]:
        every, one = "/console/v1/agents", "/console/v1/agents/{agent_id}"
        bound = "/console/v1/sessions/{session_id}/agent"
        session = Parameter("session_id", "string", "The session of the message; a new one if none is named.")
        return [
            Operation("listAgents", "GET", every, self.index, "List agents.", answer=AgentPage),
            Operation(
                "createAgent",
                "POST",
                every,
                self.create,
                "Create an agent.",
                need="write",
                body=AgentRequest,
                answer=AgentResponse,
                status=201,
            ),
            Operation(
                "resolveAgent",
                "GET",
                f"{every}/resolve",
                self.resolve,
                "Show which agent would answer a message, and why.",
                query=(session,),
                answer=ResolvedAgentResponse,
            ),
            Operation("getAgent", "GET", one, self.show, "Show an agent.", answer=AgentResponse),
            Operation(
                "updateAgent",
                "PUT",
                one,
                self.update,
                "Replace an agent.",
                need="write",
                body=AgentRequest,
                answer=AgentResponse,
            ),
            Operation("deleteAgent", "DELETE", one, self.delete, "Delete an agent.", need="write", status=204),
            Operation(
                "setDefaultAgent",
                "POST",
                f"{one}/default",
                self.default,
                "Make an agent the default.",
                need="write",
                answer=AgentResponse,
            ),
            Operation(
                "bindAgent",
                "PUT",
                bound,
                self.bind,
                "Make an agent answer in a session.",
                need="write",
                body=BindRequest,
                answer=SessionResponse,
            ),
            Operation(
                "unbindAgent",
                "DELETE",
                bound,
                self.unbind,
                "Make the default agent answer in a session again.",
                need="write",
                status=204,
            ),
        ]

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        return json_response(AgentPage(agents=await self._agents.list(principal)))

    async def show(self, request: Request, principal: PrincipalId) -> Response:
        return json_response(AgentResponse(agent=await self._agents.get(principal, request.path_params["agent_id"])))

    async def create(self, request: Request, principal: PrincipalId) -> Response:
        requested_request = await read_body(request, AgentRequest)
        agent = self._agent("", principal, requested_request)
        return json_response(AgentResponse(agent=await self._agents.create(principal, agent)), status=201)

    async def update(self, request: Request, principal: PrincipalId) -> Response:
        requested_request = await read_body(request, AgentRequest)
        agent = self._agent(request.path_params["agent_id"], principal, requested_request)
        return json_response(AgentResponse(agent=await self._agents.update(principal, agent)))

    async def delete(self, request: Request, principal: PrincipalId) -> Response:
        await self._agents.delete(principal, request.path_params["agent_id"])
        return Response(status_code=204)

    async def default(self, request: Request, principal: PrincipalId) -> Response:
        return json_response(
            AgentResponse(agent=await self._agents.set_default(principal, request.path_params["agent_id"]))
        )

    async def bind(self, request: Request, principal: PrincipalId) -> Response:
        requested_request = await read_body(request, BindRequest)
        session = await self._agents.bind(principal, requested_request.agent_id, request.path_params["session_id"])
        return json_response(SessionResponse(session=session))

    async def unbind(self, request: Request, principal: PrincipalId) -> Response:
        await self._agents.unbind(principal, request.path_params["session_id"])
        return Response(status_code=204)

    async def resolve(self, request: Request, principal: PrincipalId) -> Response:
        agent, reason = await self._agents.resolve(principal, request.query_params.get("session_id"))
        return json_response(ResolvedAgentResponse(agent=agent, reason=reason))

    def _agent(self, agent_id: str, principal: PrincipalId, request: AgentRequest) -> Agent:
        limits = None
        if request.limits is not None:
            set_here = {name: value for name, value in asdict(request.limits).items() if value is not None}
            limits = replace(self._agents.limits(), **set_here)
        return Agent(
            agent_id=AgentId(agent_id),
            principal=principal,
            name=request.name,
            instructions=request.instructions,
            tools=request.tools,
            workspace_roots=request.workspace_roots,
            limits=limits,
        )
