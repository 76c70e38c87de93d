"""Decide which calls may run.

Until policies and approvals exist there is one rule: what does no harm is allowed, and everything else is denied
with a reason that the model can tell the person.
"""

from palyra.core.clock import Clock
from palyra.core.events import PolicyDecided, RunEvent
from palyra.core.run import CheckPolicy, RunState
from palyra.core.tool import Risk, ToolCall, Verdict
from palyra.journal import agents
from palyra.journal.engine import Engine
from palyra.runs.steps.port import Emit
from palyra.tools.arguments import BadCall, check
from palyra.tools.catalog import Catalog

LOW_RISK_RULE = "low-risk-only"


class PolicyStep:
    """Carries out `CheckPolicy`."""

    def __init__(self, engine: Engine, *, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    async def perform(self, state: RunState, step: CheckPolicy, emit: Emit) -> None:
        """Judge every call of the turn, in one commit."""
        agent = await self._engine.read(lambda conn: agents.get(conn, state.agent_id, state.principal))
        catalog = Catalog.of(agent.tools if agent is not None else ())
        await emit([self._judge(catalog, call) for call in step.calls])

    def _judge(self, catalog: Catalog, call: ToolCall) -> RunEvent:
        bad = check(catalog, call)
        tool = catalog.get(call.tool)
        if isinstance(bad, BadCall) or tool is None:
            reason = bad.reason if isinstance(bad, BadCall) else f"There is no tool {call.tool}."
            return self._decided(call, Verdict.DENY, None, reason=reason, policies=("arguments",))
        risk = tool.spec.risk
        if risk is Risk.LOW:
            return self._decided(call, Verdict.ALLOW, risk, reason="low risk", policies=(LOW_RISK_RULE,))
        reason = (
            f"{call.tool} has {risk.value} risk and would need a person's approval, which this version can not ask for."
        )
        return self._decided(call, Verdict.DENY, risk, reason=reason, policies=(LOW_RISK_RULE,))

    def _decided(
        self, call: ToolCall, verdict: Verdict, risk: Risk | None, *, reason: str, policies: tuple[str, ...]
    ) -> PolicyDecided:
        return PolicyDecided(
            at=self._clock.now(),
            call_id=call.call_id,
            verdict=verdict,
            risk=risk,
            reason=reason,
            policies=policies,
        )
