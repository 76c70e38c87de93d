"""Past calls as the tape records them: the proposal and the decision."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from palyra.core import channel
from palyra.core.events import InputSteered, PolicyDecided, RunAccepted, TapeEvent, ToolProposed
from palyra.core.ids import AgentId, CallId, PrincipalId, RunId, SessionId


class DecidedCall(Struct, frozen=True, kw_only=True):
    """A call that the policy has judged."""

    principal: PrincipalId
    agent_id: AgentId
    session_id: SessionId
    run_id: RunId
    proposed: ToolProposed
    decided: PolicyDecided
    channels: tuple[str, ...] = ()
    """The channels of the messages that its run followed; empty if they were not recorded."""


def decided_calls(events: Iterable[TapeEvent]) -> Iterator[tuple[ToolProposed, PolicyDecided, tuple[str, ...]]]:
    """Yield the calls of a run, each with the first decision about it, and the channels of the run at that time.

    Later decisions about a call follow from a person's answer. A call that did not match its tool was never judged by
    the policy, and is left out.
    """
    proposed: dict[CallId, ToolProposed] = {}
    channels: tuple[str, ...] = ()
    for event in events:
        if isinstance(event, RunAccepted):
            channels = event.source_channels or (event.channel,)
        elif isinstance(event, InputSteered):
            channels = channel.join(channels, (event.channel,))
        elif isinstance(event, ToolProposed):
            proposed[event.call_id] = event
        elif isinstance(event, PolicyDecided):
            call = proposed.pop(event.call_id, None)
            if call is not None and event.risk is not None:
                yield call, event, channels
