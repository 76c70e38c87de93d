"""Reads token usage in whatever form a provider reports it: an answer is never lost because of its usage."""

from typing import Any

NO_COUNT = -1
"""The reported value is not a number of tokens. It is ignored, and the turn is estimated."""


def count(counts: Any, name: str) -> int:
    """Return one of the counts; 0 if it is not reported."""
    value = counts.get(name) if isinstance(counts, dict) else None
    if value is None:
        return 0
    # Some report floats, or numbers as text.
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 18:
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else NO_COUNT


def part_of(counts: Any, of: str, name: str) -> int:
    """Return a part of one of the counts; 0 if it is not reported, or not a number: the total is right without it."""
    return max(0, count(counts.get(of) if isinstance(counts, dict) else None, name))


def made(counts: Any, *, requested: int, full_text: str, details: str) -> tuple[int, int]:
    """Return the tokens of an answer, and how many of them were reasoning.

    If reasoning is not included in the answer, the total is large enough for both, or there is more reasoning than
    answer.
    """
    answer, thoughts = count(counts, full_text), part_of(counts, details, "reasoning_tokens")
    if thoughts and (thoughts > answer or count(counts, "total_tokens") == requested + answer + thoughts):
        answer = max(0, answer) + thoughts
    return answer, thoughts
