"""Which events are messages of the conversation, and what each says to the model."""

from palyra.core.events import (
    ApprovalResolved,
    ChildEnded,
    Decision,
    InputSteered,
    MessageGiven,
    ModelTurnEnded,
    PolicyDecided,
    RunAccepted,
    RunCancelled,
    RunEvent,
    RunFailed,
    ToolFinished,
    ToolProposed,
)
from palyra.core.ids import CallId
from palyra.core.prompt import Message, Role
from palyra.core.run import RunState
from palyra.core.tool import Outcome, Verdict

CANCELLED = "[This run was cancelled here, before it was finished.]"
FAILED = "[This run failed here, before it was finished.]"


def message_of(state: RunState, event: RunEvent) -> Message | None:
    """Return the message that an event adds to the conversation; `state` has taken the event in already.

    An input counts from the moment its run starts: the caller hands in `RunAccepted` then.
    """
    match event:
        case RunAccepted(text="", images=()):
            # It only brings results of the caller's tools along.
            return None
        case RunAccepted(text=text, images=images):
            return Message(role=Role.USER, text=text, images=images)
        case MessageGiven(role=role, text=text, images=images):
            return Message(role=role, text=text, calls=event.calls, call_id=event.call_id, images=images, given=True)
        case InputSteered(text=text):
            return Message(role=Role.USER, text=text)
        case ModelTurnEnded() | ToolProposed(turn=0):
            # A call that a person proposes once more stands in no turn: it is a message by itself.
            calls = tuple(c.call for c in state.calls)
            text, reasoning = "".join(state.text), state.reasoning
            return Message(role=Role.ASSISTANT, text=text, calls=calls, reasoning=reasoning)
        case PolicyDecided(call_id=call_id, verdict=Verdict.DENY, reason=reason):
            return _result(call_id, Outcome.DENIED, reason)
        case ApprovalResolved(call_id=call_id, decision=decision) if call_id and decision is not Decision.ALLOWED:
            return _result(call_id, Outcome.DENIED, event.reason or decision.value)
        case ToolFinished(call_id=call_id) | ChildEnded(call_id=call_id):
            return _result(call_id, event.outcome, event.text)
        case RunCancelled(in_conversation=True):
            return _cut_off(state, CANCELLED)
        case RunFailed(in_conversation=True):
            return _cut_off(state, FAILED)
        case _:
            return None


def _cut_off(state: RunState, why: str) -> Message:
    """Return what the model sees of a run that has no answer: without it, its input would look unanswered."""
    return Message(role=Role.ASSISTANT, text="\n\n".join(filter(None, ("".join(state.text).rstrip(), why))))


def _result(call_id: CallId, outcome: Outcome, text: str) -> Message:
    shown = text if outcome is Outcome.OK else f"[{outcome.value}] {text}"
    return Message(role=Role.TOOL, text=shown, call_id=call_id)
