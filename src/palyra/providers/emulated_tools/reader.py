"""Parses constrained output: the text of an answer while it comes, a call when it is complete."""

import re
from dataclasses import dataclass

import msgspec

from palyra.core.tool import JsonObject

MAX_ESCAPE_CHARS = 12
"""The length of a character that is written as two surrogates."""

_OPENING = re.compile(r'\s*\{\s*"answer"\s*:\s*"')
# Complete escapes: a character beyond the first 65,536 is written as two surrogates, and neither is valid alone.
_HIGH, _LOW, _HEX = r"[dD][89abAB][0-9a-fA-F]{2}", r"[dD][c-fC-F][0-9a-fA-F]{2}", r"[0-9a-fA-F]{4}"
_WHOLE = re.compile(
    rf'(?:[^"\\\x00-\x1f]+|\\(?:["\\/bfnrt]|u{_HIGH}\\u{_LOW}|u(?!{_HIGH})(?!{_LOW}){_HEX}))*',
)
_decode = msgspec.json.decode


class OutputMalformed(Exception):
    """What was written is not in the form; says why."""


class OutputTruncated(OutputMalformed):
    """It ends before it is whole."""


@dataclass(frozen=True, slots=True)
class TextAnswer:
    """The model answers."""

    rest: str
    """The part of the answer that was not returned yet."""


@dataclass(frozen=True, slots=True)
class ToolChosen:
    """The model calls a tool."""

    tool: str
    arguments: JsonObject
    malformed: str = ""


class ConstrainedReader:
    """The output of one turn, while it comes."""

    def __init__(self) -> None:
        self._text = ""
        self._read_to = -1
        """How far the text of an answer was read; -1 as long as there is none."""
        self._is_over = False
        self._told: list[str] = []

    @property
    def is_text(self) -> bool:
        """The text of an answer has begun."""
        return self._read_to >= 0 and not self._is_over

    def feed(self, piece: str) -> str:
        """Add the next output, and return what it adds to an answer."""
        self._text += piece
        if self._read_to < 0:
            opening = _OPENING.match(self._text)
            if opening is None:
                return ""
            self._read_to = opening.end()
        if self._is_over:
            return ""
        match = _WHOLE.match(self._text, self._read_to)
        assert match is not None, "it also matches nothing"
        self._read_to = match.end()
        text: str = _decode(f'"{match[0]}"') if match[0] else ""
        self._told.append(text)
        follows = self._text[self._read_to : self._read_to + MAX_ESCAPE_CHARS]
        self._is_over = follows.startswith('"')
        if follows and not self._is_over and (follows[0] != "\\" or len(follows) == MAX_ESCAPE_CHARS):
            # An escape that is incomplete at the maximum length is invalid.
            self._is_over = True
        return text

    def end(self) -> TextAnswer | ToolChosen:
        """Return the result, or raise `OutputMalformed`."""
        try:
            written = _decode(self._text, type=dict[str, object])
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            if self.is_text or "truncated" in str(error):
                raise OutputTruncated("it is truncated") from error
            raise OutputMalformed(f"it is not a JSON object of the requested form: {str(error)[:100]}") from error
        text = "".join(self._told)
        match written:
            case {"answer": str(answer), **more} if not more and answer.startswith(text):
                return TextAnswer(answer[len(text) :])
            case {"answer": answer, **more} if not more and not text:
                return TextAnswer(msgspec.json.encode(answer).decode())
            case {"tool": str(tool), "arguments": dict(arguments), **more} if not more and not text:
                return ToolChosen(tool, arguments)
            case {"tool": str(tool), **more} if more.keys() <= {"arguments"} and not text:
                return ToolChosen(tool, {}, "the arguments are not a JSON object")
            case _:
                raise OutputMalformed("it is neither an answer nor a tool call")
