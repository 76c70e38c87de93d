"""Which events are messages of the conversation, and what each of them says to the model."""

from palyra.core.events import (
    ApprovalDecision,
    ApprovalResolved,
    ChildEnded,
    HistoryAttached,
    InputSteered,
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
from palyra.core.model.prompt import Message, Role
from palyra.core.run.state import RunState
from palyra.core.tool import CallOutcome, Verdict

CANCELLED = "[This run was cancelled here, before it was finished.]"
FAILED = "[This run failed here, before it was finished.]"


def message_of_event(state: RunState, event: RunEvent) -> Message | None:
    """Return the message that an event adds to the conversation; `state` already includes the event.

    An input counts from the moment its run starts: the caller passes `RunAccepted` then.
    """
    match event:
        case RunAccepted(text="", images=()):
            # It only brings results of the caller's tools.
            return None
        case RunAccepted(text=text, images=images):
            return Message(role=Role.USER, text=text, images=images)
        case HistoryAttached(role=role, text=text, images=images):
            return Message(role=role, text=text, calls=event.calls, call_id=event.call_id, images=images, attached=True)
        case InputSteered(text=text):
            return Message(role=Role.USER, text=text)
        case ModelTurnEnded() | ToolProposed(turn=0):
            # A call that a person proposes again belongs to no turn: it is a message by itself.
            calls = tuple(c.call for c in state.calls)
            text, reasoning = "".join(state.text), state.reasoning
            return Message(role=Role.ASSISTANT, text=text, calls=calls, reasoning=reasoning)
        case PolicyDecided(call_id=call_id, verdict=Verdict.DENY, reason=reason):
            return _result(call_id, CallOutcome.DENIED, reason)
        case ApprovalResolved(call_id=call_id, decision=decision) if (
            call_id and decision is not ApprovalDecision.ALLOWED
        ):
            return _result(call_id, CallOutcome.DENIED, event.reason or decision.value)
        case ToolFinished(call_id=call_id) | ChildEnded(call_id=call_id):
            return _result(call_id, event.outcome, event.text)
        case RunCancelled(in_conversation=True):
            return _cut_off(state, CANCELLED)
        case RunFailed(in_conversation=True):
            return _cut_off(state, FAILED)
        case _:
            return None


def _cut_off(state: RunState, why: str) -> Message:
    """Return what the model sees of a run without an answer: without it, the input would look unanswered."""
    return Message(role=Role.ASSISTANT, text="\n\n".join(filter(None, ("".join(state.text).rstrip(), why))))


def _result(call_id: CallId, outcome: CallOutcome, text: str) -> Message:
    displayed = text if outcome is CallOutcome.OK else f"[{outcome.value}] {text}"
    return Message(role=Role.TOOL, text=displayed, call_id=call_id)
