"""A call as the tape remembers it: what was proposed, and what was decided about it."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from palyra.core import channel
from palyra.core.events import InputSteered, PolicyDecided, RunAccepted, TapeEvent, ToolProposed
from palyra.core.ids import AgentId, CallId, PrincipalId, RunId, SessionId


class DecidedCall(Struct, frozen=True, kw_only=True):
    """A call that was put before the policy."""

    principal: PrincipalId
    agent_id: AgentId
    session_id: SessionId
    run_id: RunId
    proposed: ToolProposed
    decided: PolicyDecided
    channels: tuple[str, ...] = ()
    """By which channels the words had come in that its run followed; none if that was not recorded."""


def decisions(events: Iterable[TapeEvent]) -> Iterator[tuple[ToolProposed, PolicyDecided, tuple[str, ...]]]:
    """Yield the calls of a run, each with what was decided about it at first, and the channels of the run by then.

    Later decisions about a call follow from what a person has answered. A call that did not fit its tool was never put
    before the policy, and is left out.
    """
    proposed: dict[CallId, ToolProposed] = {}
    channels: tuple[str, ...] = ()
    for event in events:
        if isinstance(event, RunAccepted):
            channels = event.channels or (event.origin,)
        elif isinstance(event, InputSteered):
            channels = channel.join(channels, (event.origin,))
        elif isinstance(event, ToolProposed):
            proposed[event.call_id] = event
        elif isinstance(event, PolicyDecided):
            call = proposed.pop(event.call_id, None)
            if call is not None and event.risk is not None:
                yield call, event, channels
