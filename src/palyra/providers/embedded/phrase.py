"""Normalises plain language into a form that short rules can match.

`Could you please show me the contents of "My notes.txt"?` becomes `show contents of @q`: lower case, without
punctuation, articles and politeness; a quoted name is `@q`, what looks like a path `@p`, a URL `@u`. Each word keeps
its original, so that names and search texts are used as they were written.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_CHARS = 500
"""Longer messages are not plain requests, whatever they begin with."""

_TOKEN = re.compile(r"(?P<quoted>\"[^\"]+\"|'[^']+'(?!\w)|`[^`]+`)[.,;:!?…]*|[^\s\"`]+")
_QUOTES = str.maketrans("“”„«»\u2018\u2019", '"""""\'\'')
_EDGE = "?!…,;:()[]\"'`"
_URL = re.compile(r"[a-z]+://|www\.", re.IGNORECASE)
_SUFFIX = re.compile(r"[^/]*\.[a-z][a-z0-9_]{0,9}", re.IGNORECASE)
_FRACTION = re.compile(r"[\d.]+(?:/[\d.]+)+")
_BARE_FILES = frozenset(
    {"README", "LICENSE", "Makefile", "Dockerfile", "CHANGELOG", "TODO", "NOTES", "readme", "Readme"}
)
_NO_PATHS = frozenset({"e.g", "i.e", "a.m", "p.m", "u.s", "vs", "a.i", "and/or"})

_LONG_FORMS = {
    "what's": "what is",
    "whats": "what is",
    "where's": "where is",
    "who's": "who is",
    "how's": "how is",
    "it's": "it is",
    "i'd": "i would",
    "i'm": "i am",
    "don't": "do not",
    "name's": "name is",
    "today's": "today",
    "ya": "you",
    "u": "you",
}
_DROPPED = frozenset({"the", "a", "an", "all", "any", "every", "some", "please", "pls", "kindly", "just", "me", "now"})
_DROPPED |= {"exactly", "actually", "really", "currently", "quickly"}
_FIRST = tuple(
    phrase.split()
    for phrase in (
        "hey|hi|hello|ok|okay|so|well|then|and|also|yes|sure|great|thanks|thank you|palyra|can you|could you|would you"
        "|will you|would you mind|do you know|do you remember|i would like you to|i would like to know|i would like to"
        "|i want you to|i want to know|i want to|i need you to|i need to know|i need to|tell|let know|go ahead and"
        "|try to|i wonder|let us|can i|could i|may i"
    ).split("|")
)
_LAST = tuple(
    phrase.split() for phrase in "for|thanks|thank you|palyra|again|if you can|right|at moment|to|then".split("|")
)


@dataclass(frozen=True, slots=True)
class PhraseToken:
    """A word as rules see it, and its original."""

    word: str
    value: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class WordSequence:
    """A sequence of words from a message."""

    message: str
    tokens: tuple[PhraseToken, ...]

    @property
    def text(self) -> str:
        """The words as rules match them."""
        return " ".join(token.word for token in self.tokens)

    def value(self, found: re.Match[str], group: str) -> str:
        """Return the original text of a matched group: a name without its quotes, other words unchanged."""
        covered = self._covered(found, group)
        if not covered:
            return ""
        if len(covered) == 1:
            return covered[0].value
        return self.message[covered[0].start : covered[-1].end].rstrip(_EDGE)

    def _covered(self, found: re.Match[str], group: str) -> list[PhraseToken]:
        begin, end = found.span(group)
        covered, place = [], 0
        for token in self.tokens:
            if begin <= place < end:
                covered.append(token)
            place += len(token.word) + 1
        return covered


def readings(message: str) -> Iterator[WordSequence]:
    """Yield the request in the message, with fewer and fewer polite words around it; nothing if it is not plain."""
    message = message.translate(_QUOTES).strip()
    if len(message) > MAX_CHARS or "\n" in message:
        return
    tokens = tuple(_tokens(message))
    while tokens:
        yield WordSequence(message, tokens)
        shorter = tokens
        while (cut := _without_last(shorter)) != shorter:
            shorter = cut
            yield WordSequence(message, shorter)
        if (cut := _without_first(tokens)) == tokens:
            return
        tokens = cut


def _tokens(message: str) -> Iterator[PhraseToken]:
    for found in _TOKEN.finditer(message):
        if quoted := found["quoted"]:
            yield PhraseToken("@q", quoted[1:-1].strip(), found.start(), found.end())
            continue
        value = _trimmed(found[0])
        for word in _words(value):
            yield PhraseToken(word, value, found.start(), found.end())


def _trimmed(raw: str) -> str:
    """Return a word without the punctuation around it. The dots of `.` and `..` are not punctuation."""
    value = raw.strip(_EDGE)
    return value if not value.strip(".") else value.rstrip(".").rstrip(_EDGE)


def _words(value: str) -> list[str]:
    lower = value.lower()
    if not lower or lower in _DROPPED:
        return []
    if _URL.match(value):
        return ["@u"]
    if _is_path(value):
        return ["@p"]
    return _LONG_FORMS.get(lower, lower).replace("@", "at").split()


def _is_path(value: str) -> bool:
    if value in _BARE_FILES or value in (".", "..", "~"):
        return True
    if value.lower() in _NO_PATHS or _FRACTION.fullmatch(value):
        return False
    return ("/" in value and len(value) > 1) or _SUFFIX.fullmatch(value) is not None


def _without_first(tokens: tuple[PhraseToken, ...]) -> tuple[PhraseToken, ...]:
    words = [token.word for token in tokens]
    lengths = [len(phrase) for phrase in _FIRST if words[: len(phrase)] == phrase and len(phrase) < len(words)]
    return tokens[max(lengths) :] if lengths else tokens


def _without_last(tokens: tuple[PhraseToken, ...]) -> tuple[PhraseToken, ...]:
    words = [token.word for token in tokens]
    lengths = [len(phrase) for phrase in _LAST if words[-len(phrase) :] == phrase and len(phrase) < len(words)]
    return tokens[: -max(lengths)] if lengths else tokens
