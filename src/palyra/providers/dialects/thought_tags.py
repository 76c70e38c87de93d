"""Extracts reasoning that a model writes into its answer: `<think>` at the very beginning, up to `</think>`.

Self-hosted servers often leave it there. It is separated here, wherever the network splits the tags.
"""

from collections.abc import Iterator
from enum import Enum

from palyra.core.model.prompt import ModelEvent, ReasoningDelta, TextDelta

BEGIN, END = "<think>", "</think>"
MAX_HELD_CHARS = 1000
"""The maximum whitespace before reasoning."""


class _Where(Enum):
    BEGINNING = "beginning"
    WITHIN = "within"
    BEHIND = "behind"
    """After reasoning, with only line breaks so far."""
    OVER = "over"


class ThoughtTags:
    """Reads the text of one answer until no more reasoning can follow."""

    def __init__(self) -> None:
        self.over = False
        """From now on all text is part of the answer, and need not go through here."""
        self._where = _Where.BEGINNING
        self._held = ""
        """Text that could not be classified yet."""

    def take(self, text: str) -> Iterator[ModelEvent]:
        """Yield what a piece of text adds."""
        text, self._held = self._held + text, ""
        if self._where is _Where.BEGINNING:
            begun = text.lstrip()
            if BEGIN.startswith(begun) and len(text) <= MAX_HELD_CHARS:
                self._held = text
                return
            if begun.startswith(BEGIN):
                self._where, text = _Where.WITHIN, begun.removeprefix(BEGIN)
            else:
                self._where = _Where.OVER
        if self._where is _Where.WITHIN:
            thought, tag, text = text.partition(END)
            if tag:
                self._where = _Where.BEHIND
            else:
                size = next((size for size in range(len(END) - 1, 0, -1) if thought.endswith(END[:size])), 0)
                thought, self._held = thought[: len(thought) - size], thought[len(thought) - size :]
            if thought:
                yield ReasoningDelta(thought)
        if self._where is _Where.BEHIND:
            text = text.lstrip("\r\n")
        if text:
            self._where, self.over = _Where.OVER, True
            yield TextDelta(text)

    def rest(self) -> Iterator[ModelEvent]:
        """Yield the text that was held back, at the end of the answer."""
        held, self._held = self._held, ""
        if held:
            yield ReasoningDelta(held) if self._where is _Where.WITHIN else TextDelta(held)
