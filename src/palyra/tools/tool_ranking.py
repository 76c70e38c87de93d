"""Ranks tools for a query, by the words of their names, descriptions and arguments.

No model is involved: the same query over the same tools has the same answer. A word counts more the fewer
tools have it, more in a name than in a description, and more in full than as a prefix.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from palyra.core.tool import ToolSpec

NAME, NAME_START, NAME_PART = 8.0, 5.0, 3.0
TEXT, TEXT_START = 2.0, 1.0
MIN_PREFIX_CHARS = 3
"""A shorter word is not matched as a prefix: too many words begin with it."""
MAX_WORDS = 24

_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_EMPTY = frozenset("a an and any are as at by can do for from how i in is it me my of on or that the to with".split())


@dataclass(frozen=True, slots=True)
class _Words:
    """The words of a tool's definition."""

    full_name: str
    name: frozenset[str]
    text: frozenset[str]


def rank(query: str, tools: Sequence[ToolSpec]) -> list[ToolSpec]:
    """Return the tools that have a word of the query, best first, then by name."""
    names = _query_words(query)
    text = [(spec, _tool_words(spec)) for spec in tools]
    weights = {word: _weight(word, [words for _, words in text]) for word in names}
    scored = [(_score(query, names, weights, words), spec) for spec, words in text]
    return [spec for score, spec in sorted(scored, key=lambda pair: (-pair[0], pair[1].name)) if score > 0]


def _score(query: str, names: Sequence[str], weights: dict[str, float], words: _Words) -> float:
    if words.full_name == query.strip().lower():
        return math.inf
    points = [_points(word, words) * weights[word] for word in names]
    met = sum(point > 0 for point in points)
    # A tool that has every word fits better than one that has the same word many times.
    return sum(points) * met / len(names) if names else 0.0


def _points(word: str, words: _Words) -> float:
    if word in words.name:
        return NAME
    starts = len(word) >= MIN_PREFIX_CHARS
    if starts and any(other.startswith(word) for other in words.name):
        return NAME_START
    if word in words.text:
        return TEXT
    if starts and word in words.full_name:
        return NAME_PART
    return TEXT_START if starts and any(other.startswith(word) for other in words.text) else 0.0


def _weight(word: str, wordses: Sequence[_Words]) -> float:
    having = sum(_points(word, words) > 0 for words in wordses)
    return math.log(1 + len(wordses) / having) if having else 0.0


def _query_words(query: str) -> list[str]:
    words = list(dict.fromkeys(_words(query)))[:MAX_WORDS]
    return [word for word in words if word not in _EMPTY] or words


def _tool_words(spec: ToolSpec) -> _Words:
    properties = spec.parameters.get("properties")
    arguments = " ".join(map(str, properties)) if isinstance(properties, dict) else ""
    return _Words(
        full_name=spec.name.lower(),
        name=frozenset(_words(spec.name)),
        text=frozenset(_words(f"{spec.description} {arguments}")),
    )


def _words(text: str) -> Iterable[str]:
    """Yield the normalised words: lower case, `camelCase` and `snake_case` split, singular."""
    for word in _WORD.findall(_HUMP.sub(" ", text)):
        small = word.lower()
        yield small[:-1] if len(small) > 3 and small.endswith("s") and not small.endswith("ss") else small
