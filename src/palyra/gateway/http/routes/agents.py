"""Agents over HTTP."""

from msgspec.structs import asdict, replace
from starlette.requests import Request

from palyra.core.agent import Agent
from palyra.core.ids import AgentId, PrincipalId
from palyra.gateway.http.declaration import Routes, operation
from palyra.gateway.http.operation import Parameter
from palyra.gateway.records.agents import AgentPage, AgentRequest, AgentResponse, BindRequest, ResolvedAgentResponse
from palyra.gateway.records.sessions import SessionResponse
from palyra.runs.services.agents import AgentService

SESSION = Parameter("session_id", "string", "The session of the message; a new one if none is named.")


class AgentRoutes(Routes):
    """The operations that concern agents."""

    def __init__(self, agents: AgentService) -> None:
        self._agents = agents

    @operation("listAgents", "GET /console/v1/agents")
    async def index(self, principal: PrincipalId) -> AgentPage:
        """List agents."""
        return AgentPage(agents=await self._agents.list(principal))

    @operation("createAgent", "POST /console/v1/agents", status=201)
    async def create(self, principal: PrincipalId, body: AgentRequest) -> AgentResponse:
        """Create an agent."""
        agent = self._agent("", principal, body)
        return AgentResponse(agent=await self._agents.create(principal, agent))

    @operation("resolveAgent", "GET /console/v1/agents/resolve", query=(SESSION,))
    async def resolve(self, request: Request, principal: PrincipalId) -> ResolvedAgentResponse:
        """Show which agent would answer a message, and why."""
        agent, reason = await self._agents.resolve(principal, request.query_params.get("session_id"))
        return ResolvedAgentResponse(agent=agent, reason=reason)

    @operation("getAgent", "GET /console/v1/agents/{agent_id}")
    async def show(self, principal: PrincipalId, agent_id: str) -> AgentResponse:
        """Show an agent."""
        return AgentResponse(agent=await self._agents.get(principal, agent_id))

    @operation("updateAgent", "PUT /console/v1/agents/{agent_id}")
    async def update(self, principal: PrincipalId, agent_id: str, body: AgentRequest) -> AgentResponse:
        """Replace an agent."""
        agent = self._agent(agent_id, principal, body)
        return AgentResponse(agent=await self._agents.update(principal, agent))

    @operation("deleteAgent", "DELETE /console/v1/agents/{agent_id}")
    async def delete(self, principal: PrincipalId, agent_id: str) -> None:
        """Delete an agent."""
        await self._agents.delete(principal, agent_id)

    @operation("setDefaultAgent", "POST /console/v1/agents/{agent_id}/default")
    async def default(self, principal: PrincipalId, agent_id: str) -> AgentResponse:
        """Make an agent the default."""
        return AgentResponse(agent=await self._agents.set_default(principal, agent_id))

    @operation("bindAgent", "PUT /console/v1/sessions/{session_id}/agent")
    async def bind(self, principal: PrincipalId, session_id: str, body: BindRequest) -> SessionResponse:
        """Make an agent answer in a session."""
        return SessionResponse(session=await self._agents.bind(principal, body.agent_id, session_id))

    @operation("unbindAgent", "DELETE /console/v1/sessions/{session_id}/agent")
    async def unbind(self, principal: PrincipalId, session_id: str) -> None:
        """Make the default agent answer in a session again."""
        await self._agents.unbind(principal, session_id)

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
