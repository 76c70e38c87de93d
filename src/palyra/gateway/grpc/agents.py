"""Agents over gRPC."""

from palyra.core.ids import PrincipalId
from palyra.gateway.grpc import convert
from palyra.gateway.grpc.methods import Handler, Methods
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.runs.services.agents import AgentService


class AgentMethods:
    """The methods that concern agents."""

    def __init__(self, agents: AgentService) -> None:
        self._agents = agents

    def handlers(self, methods: Methods) -> dict[str, Handler]:
        return {
            "ListAgents": methods.unary(self.list_agents, pb.ListAgentsRequest),
            "GetAgent": methods.unary(self.get_agent, pb.GetAgentRequest),
            "CreateAgent": methods.unary(self.create_agent, pb.CreateAgentRequest, need="write"),
            "UpdateAgent": methods.unary(self.update_agent, pb.UpdateAgentRequest, need="write"),
            "DeleteAgent": methods.unary(self.delete_agent, pb.DeleteAgentRequest, need="write"),
            "SetDefaultAgent": methods.unary(self.set_default_agent, pb.SetDefaultAgentRequest, need="write"),
            "BindAgent": methods.unary(self.bind_agent, pb.BindAgentRequest, need="write"),
            "UnbindAgent": methods.unary(self.unbind_agent, pb.UnbindAgentRequest, need="write"),
            "ResolveAgent": methods.unary(self.resolve_agent, pb.ResolveAgentRequest),
        }

    async def list_agents(self, request: pb.ListAgentsRequest, principal: PrincipalId) -> pb.ListAgentsResponse:
        return pb.ListAgentsResponse(agents=map(convert.from_agent, await self._agents.list(principal)))

    async def get_agent(self, request: pb.GetAgentRequest, principal: PrincipalId) -> pb.GetAgentResponse:
        return pb.GetAgentResponse(agent=convert.from_agent(await self._agents.get(principal, request.agent_id)))

    async def create_agent(self, request: pb.CreateAgentRequest, principal: PrincipalId) -> pb.CreateAgentResponse:
        agent = await self._agents.create(principal, convert.to_agent(request.agent, principal))
        return pb.CreateAgentResponse(agent=convert.from_agent(agent))

    async def update_agent(self, request: pb.UpdateAgentRequest, principal: PrincipalId) -> pb.UpdateAgentResponse:
        agent = await self._agents.update(principal, convert.to_agent(request.agent, principal))
        return pb.UpdateAgentResponse(agent=convert.from_agent(agent))

    async def delete_agent(self, request: pb.DeleteAgentRequest, principal: PrincipalId) -> pb.DeleteAgentResponse:
        await self._agents.delete(principal, request.agent_id)
        return pb.DeleteAgentResponse()

    async def set_default_agent(
        self, request: pb.SetDefaultAgentRequest, principal: PrincipalId
    ) -> pb.SetDefaultAgentResponse:
        agent = await self._agents.set_default(principal, request.agent_id)
        return pb.SetDefaultAgentResponse(agent=convert.from_agent(agent))

    async def bind_agent(self, request: pb.BindAgentRequest, principal: PrincipalId) -> pb.BindAgentResponse:
        session = await self._agents.bind(principal, request.agent_id, request.session_id)
        return pb.BindAgentResponse(session=convert.to_message(pb.Session, session))

    async def unbind_agent(self, request: pb.UnbindAgentRequest, principal: PrincipalId) -> pb.UnbindAgentResponse:
        session = await self._agents.unbind(principal, request.session_id)
        return pb.UnbindAgentResponse(session=convert.to_message(pb.Session, session))

    async def resolve_agent(self, request: pb.ResolveAgentRequest, principal: PrincipalId) -> pb.ResolveAgentResponse:
        agent, reason = await self._agents.resolve(principal, request.session_id or None)
        return pb.ResolveAgentResponse(agent=convert.from_agent(agent), reason=reason)
