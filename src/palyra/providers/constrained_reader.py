"""Reads what a model writes in a given form: the text of an answer while it comes, a call when it is whole."""

import re
from dataclasses import dataclass

import msgspec

from palyra.core.tool import JsonObject

LONGEST_ESCAPE = 12
"""Characters of one that is written as two halves."""

_OPENING = re.compile(r'\s*\{\s*"answer"\s*:\s*"')
# Escapes that are whole: a character beyond the first 65,536 is written as two halves, and neither is one alone.
_HIGH, _LOW, _HEX = r"[dD][89abAB][0-9a-fA-F]{2}", r"[dD][c-fC-F][0-9a-fA-F]{2}", r"[0-9a-fA-F]{4}"
_WHOLE = re.compile(
    rf'(?:[^"\\\x00-\x1f]+|\\(?:["\\/bfnrt]|u{_HIGH}\\u{_LOW}|u(?!{_HIGH})(?!{_LOW}){_HEX}))*',
)
_decode = msgspec.json.decode


class Malformed(Exception):
    """What was written is not in the form; says why."""


class BrokenOff(Malformed):
    """It ends before it is whole."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The model answers."""

    rest: str
    """What of the answer was not read out yet."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The model wants a tool to be used."""

    tool: str
    arguments: JsonObject
    malformed: str = ""


class Reading:
    """One turn under way."""

    def __init__(self) -> None:
        self._text = ""
        self._read_to = -1
        """How far the text of an answer was read; -1 as long as there is none."""
        self._is_over = False
        self._told: list[str] = []

    @property
    def tells(self) -> bool:
        """The text of an answer is under way."""
        return self._read_to >= 0 and not self._is_over

    def feed(self, piece: str) -> str:
        """Take in what was written next, and return what it adds to an answer."""
        self._text += piece
        if self._read_to < 0:
            opening = _OPENING.match(self._text)
            if opening is None:
                return ""
            self._read_to = opening.end()
        if self._is_over:
            return ""
        whole = _WHOLE.match(self._text, self._read_to)
        assert whole is not None, "it matches also nothing"
        self._read_to = whole.end()
        told: str = _decode(f'"{whole[0]}"') if whole[0] else ""
        self._told.append(told)
        follows = self._text[self._read_to : self._read_to + LONGEST_ESCAPE]
        self._is_over = follows.startswith('"')
        if follows and not self._is_over and (follows[0] != "\\" or len(follows) == LONGEST_ESCAPE):
            # An escape that is not whole with as many characters as the longest has will never be.
            self._is_over = True
        return told

    def end(self) -> Answered | Chosen:
        """Return what was written, or raise `Malformed`."""
        try:
            written = _decode(self._text, type=dict[str, object])
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            if self.tells or "truncated" in str(error):
                raise BrokenOff("it ends before it is whole") from error
            raise Malformed(f"it is no JSON object of that form: {str(error)[:100]}") from error
        told = "".join(self._told)
        match written:
            case {"answer": str(answer), **more} if not more and answer.startswith(told):
                return Answered(answer[len(told) :])
            case {"answer": answer, **more} if not more and not told:
                return Answered(msgspec.json.encode(answer).decode())
            case {"tool": str(tool), "arguments": dict(arguments), **more} if not more and not told:
                return Chosen(tool, arguments)
            case {"tool": str(tool), **more} if more.keys() <= {"arguments"} and not told:
                return Chosen(tool, {}, "the arguments are no JSON object")
            case _:
                raise Malformed("it is neither an answer nor the call of a tool")
