"""gRPC calls that concern agents: values in, values out."""

from palyra.core.agent import Agent
from palyra.core.ids import PrincipalId
from palyra.core.session import Session
from palyra.gateway.client.grpc_calls import GrpcCalls
from palyra.gateway.grpc import convert
from palyra.gateway.grpc.pb import gateway_pb2 as pb


class AgentCalls:
    """Calls the agent methods of one daemon."""

    def __init__(self, calls: GrpcCalls) -> None:
        self._ask = calls.ask

    def all(self) -> tuple[Agent, ...]:
        """Return the agents by name."""
        return tuple(map(_agent, self._ask("ListAgents", pb.ListAgentsRequest(), pb.ListAgentsResponse).agents))

    def create(self, agent: Agent) -> Agent:
        """Create an agent; the daemon chooses its id."""
        request = pb.CreateAgentRequest(agent=convert.from_agent(agent))
        return _agent(self._ask("CreateAgent", request, pb.CreateAgentResponse).agent)

    def update(self, agent: Agent) -> Agent:
        """Replace the agent with this id."""
        request = pb.UpdateAgentRequest(agent=convert.from_agent(agent))
        return _agent(self._ask("UpdateAgent", request, pb.UpdateAgentResponse).agent)

    def delete(self, agent_id: str) -> None:
        """Delete an agent."""
        self._ask("DeleteAgent", pb.DeleteAgentRequest(agent_id=agent_id), pb.DeleteAgentResponse)

    def set_default(self, agent_id: str) -> Agent:
        """Make an agent the default, used where no other is set."""
        request = pb.SetDefaultAgentRequest(agent_id=agent_id)
        return _agent(self._ask("SetDefaultAgent", request, pb.SetDefaultAgentResponse).agent)

    def bind(self, agent_id: str, session_id: str) -> Session:
        """Make an agent answer in a session."""
        request = pb.BindAgentRequest(agent_id=agent_id, session_id=session_id)
        return convert.to_record(Session, self._ask("BindAgent", request, pb.BindAgentResponse).session)

    def unbind(self, session_id: str) -> Session:
        """Make the default agent answer in the session again."""
        request = pb.UnbindAgentRequest(session_id=session_id)
        return convert.to_record(Session, self._ask("UnbindAgent", request, pb.UnbindAgentResponse).session)

    def resolve(self, session_id: str | None) -> tuple[Agent, str]:
        """Return which agent would answer in a session, or in a new one, and why."""
        request = pb.ResolveAgentRequest(session_id=session_id)
        answer = self._ask("ResolveAgent", request, pb.ResolveAgentResponse)
        return _agent(answer.agent), answer.reason


def _agent(agent: pb.Agent) -> Agent:
    return convert.to_agent(agent, PrincipalId(agent.principal), is_default=agent.is_default)
