"""Request approval for calls. The run then waits on the tape, and nothing waits in memory."""

from collections.abc import Callable
from datetime import timedelta

from palyra.core.clock import Clock
from palyra.core.events import ApprovalRequested, Entry, PolicyDecided, RunEvent
from palyra.core.ids import CallId, IdSource
from palyra.core.run.state import RunState
from palyra.core.run.steps import AskApproval
from palyra.journal import tape
from palyra.journal.engines.base import Engine
from palyra.runs.recording.emit import Emit


class ApprovalStep:
    """Executes `AskApproval`."""

    def __init__(self, engine: Engine, *, expires: Callable[[], timedelta], clock: Clock, ids: IdSource) -> None:
        """`expires` says how long an approval request stays open."""
        self._engine = engine
        self._expires = expires
        self._clock = clock
        self._ids = ids

    async def perform(self, state: RunState, step: AskApproval, emit: Emit) -> None:
        """Request approval for all of them, in one commit."""
        decided = judgements(await self._engine.read(lambda conn: tape.of_run(conn, state.run_id)))
        at = self._clock.now()
        run_events: list[RunEvent] = []
        for call in step.calls:
            why = decided[call.call_id]
            run_events.append(
                ApprovalRequested(
                    at=at,
                    labels=why.labels,
                    call_id=call.call_id,
                    approval_id=self._ids.new(),
                    expires_at=at + self._expires(),
                    tool=call.tool,
                    arguments=call.arguments,
                    effect=why.effect,
                    reason=why.reason,
                    policies=why.policies,
                    policy_hash=why.policy_hash,
                )
            )
        await emit(run_events)


def judgements(entries: list[Entry]) -> dict[CallId, PolicyDecided]:
    """Return the last policy decision on each call."""
    events = (entry.event for entry in entries if entry.kind == "policy_decided")
    return {event.call_id: event for event in events if isinstance(event, PolicyDecided)}
