"""The provider "embedded": answers by fixed rules, and needs neither key nor network.

It exists so that the first command of a new installation gets an answer, and it is honest about what it is. It is
called and recorded like any model and uses the same tools. Everything it does is a function of the prompt.
"""

import re
from collections.abc import AsyncIterator, Iterator

from palyra.core.ids import CallId
from palyra.core.model.catalog import Capabilities
from palyra.core.model.prompt import CallProposed, Message, ModelEvent, Prompt, Role, StopReason, TextDelta, TurnDone
from palyra.core.text.escaping import printable_row
from palyra.core.tool import ToolCall
from palyra.providers.embedded.rules import ANSWERS, Topic, Use, recognise
from palyra.providers.embedded.tool_results import report
from palyra.providers.tool_calls import call_id
from palyra.providers.usage_estimate import estimate

MAX_PIECES = 8
MAX_QUOTED_CHARS = 300

_PIECE = re.compile(r"[^\n]*?(?:[.!?](?= )\s+|\n+)|[^\n]+")


class EmbeddedProvider:
    """The built-in helper."""

    name = "embedded"
    model = "embedded"
    capabilities = Capabilities(window_tokens=8192, max_output_tokens=2048)

    async def stream(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        """Answer the last message, call a tool for it, or report the tool's result."""
        reply = respond(prompt)
        if isinstance(reply, CallProposed):
            yield reply
            yield TurnDone(stop=StopReason.CALLS, usage=estimate(prompt, ""))
            return
        for piece in pieces(reply):
            yield TextDelta(piece)
        yield TurnDone(stop=StopReason.END, usage=estimate(prompt, reply))


def respond(prompt: Prompt) -> str | CallProposed:
    """Return the answer to a conversation, or the call that is needed first."""
    question, since = _open_question(prompt.messages)
    calls = {call.call_id: call for message in since for call in message.calls}
    if calls:
        return _reported(calls, since)
    match recognise(question):
        case Topic.FIRST:
            first = next(message.text for message in prompt.messages if message.role is Role.USER)
            return f'Your first message that I can see was: "{printable_row(first[:MAX_QUOTED_CHARS])}"'
        case Topic() as topic:
            return ANSWERS[topic]
        case Use(tool=tool, arguments=arguments):
            if all(spec.name != tool for spec in prompt.tools):
                return f"That needs the tool {tool}, which is not available in this run."
            return CallProposed(call_id=call_id(prompt, 0), tool=tool, arguments=arguments)


def pieces(text: str) -> Iterator[str]:
    """Yield the text in a few pieces, each a sentence, a line, or several of them."""
    parts = _PIECE.findall(text)
    size = -(-len(parts) // MAX_PIECES) or 1
    for start in range(0, len(parts), size):
        yield "".join(parts[start : start + size])


def _open_question(messages: tuple[Message, ...]) -> tuple[str, tuple[Message, ...]]:
    """Return the last message of the user, and the messages after it."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role is Role.USER:
            return messages[index].text, messages[index + 1 :]
    return "", messages


def _reported(calls: dict[CallId, ToolCall], since: tuple[Message, ...]) -> str:
    results = {message.call_id: message.text for message in since if message.role is Role.TOOL}
    return "\n\n".join(
        report(call, results[call.call_id]) if call.call_id in results else "The tool gave no result."
        for call in calls.values()
    )
