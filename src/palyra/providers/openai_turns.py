"""Who speaks when, in Chat Completions: the templates of many models insist that people and models take turns.

A message that nobody has answered, since its run failed or somebody said more at once, stands before the next one. Two
of them would make such a model refuse the whole conversation, now and for ever; so they are one.
"""

from collections.abc import Iterable
from typing import Any

from palyra.core.tool import JsonObject

SEEN = "I have seen the results."
"""What stands between the results of tools and a person, for models that want to have spoken in between."""


def in_turns(messages: Iterable[JsonObject], *, gap: bool) -> list[JsonObject]:
    """Return the messages with those of one person in a row as one; with a `gap`, no person speaks behind a tool."""
    made: list[JsonObject] = []
    for message in messages:
        last = made[-1]["role"] if made else ""
        if message["role"] == "user" and last == "user":
            made[-1] = {**message, "content": _joined(made[-1]["content"], message["content"])}
            continue
        if gap and message["role"] == "user" and last == "tool":
            made.append({"role": "assistant", "content": SEEN})
        made.append(message)
    return made


def _joined(one: Any, other: Any) -> Any:
    if isinstance(one, str) and isinstance(other, str):
        return f"{one}\n\n{other}"
    return [*_parts(one), *_parts(other)]


def _parts(content: Any) -> list[JsonObject]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
