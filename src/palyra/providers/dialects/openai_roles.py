"""Alternates roles in Chat Completions: the templates of many models require that user and assistant take turns.

A message without an answer, because its run failed or more messages followed at once, comes right before the next one.
Two of them would make such a model reject the whole conversation permanently; so they are merged.
"""

from collections.abc import Iterable
from typing import Any

from palyra.core.tool import JsonObject

SEEN = "I have seen the results."
"""The text between the results of tools and a user message, for models that require an assistant message there."""


def merge_turns(messages: Iterable[JsonObject], *, gap: bool) -> list[JsonObject]:
    """Merge consecutive user messages; with a `gap`, no user message directly follows a tool message."""
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
