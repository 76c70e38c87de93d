"""Thoughts that a model writes into its answer: `<think>` at the very beginning, up to `</think>`.

Servers of one's own often leave them there. They are told apart here, wherever the network cuts the tags.
"""

from collections.abc import Iterator
from enum import Enum

from palyra.core.prompt import ModelEvent, ReasoningDelta, TextDelta

BEGIN, END = "<think>", "</think>"
MOST_HELD_CHARS = 1000
"""Blanks before a thought. Who sends more of them sends blanks."""


class _Where(Enum):
    BEGINNING = "beginning"
    WITHIN = "within"
    BEHIND = "behind"
    """Behind a thought, where nothing but line breaks has come."""
    OVER = "over"


class ThoughtTags:
    """Reads the text of one answer until it is known to hold no thoughts any more."""

    def __init__(self) -> None:
        self.over = False
        """What comes from now on is said, and need not go through here."""
        self._where = _Where.BEGINNING
        self._held = ""
        """Text of which it is not known yet what it is."""

    def take(self, text: str) -> Iterator[ModelEvent]:
        """Yield what a piece of text adds."""
        text, self._held = self._held + text, ""
        if self._where is _Where.BEGINNING:
            begun = text.lstrip()
            if BEGIN.startswith(begun) and len(text) <= MOST_HELD_CHARS:
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
        """Yield what was held back, once nothing more comes."""
        held, self._held = self._held, ""
        if held:
            yield ReasoningDelta(held) if self._where is _Where.WITHIN else TextDelta(held)
