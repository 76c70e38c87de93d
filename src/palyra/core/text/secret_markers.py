"""Markers: the replacement in a text for a secret that the vault holds.

A marker names its value and reveals nothing about it. It is valid only for the principal who owns the value: for
everyone else, and with an id that the vault does not know, it is plain text.
"""

import re
from collections.abc import Callable

from palyra.core.text.secret_patterns import secret_spans
from palyra.core.tool import JsonObject

ID_CHARS = 16
REMOVED = "[secret removed]"
"""Replaces a secret that the vault could not store. It cannot be recovered."""

_MARKER = re.compile(rf"\[sealed:([a-z2-7]{{{ID_CHARS}}})\]")


def is_id(text: str) -> bool:
    """Return whether a text could be the id of a sealed value."""
    return _MARKER.fullmatch(marker(text)) is not None


def marker(sealed_id: str) -> str:
    """Return the marker of a sealed value."""
    return f"[sealed:{sealed_id}]"


def without_secrets(text: str) -> str:
    """Return a short text of a person, such as a title or a reason, without its secrets. They are not stored."""
    for span in reversed([span for span in secret_spans(text) if span.is_sure]):
        text = text[: span.start] + REMOVED + text[span.end :]
    return text


def markers_in(value: object) -> set[str]:
    """Return the ids of all markers in a text, or in any text of a JSON value."""
    if isinstance(value, str):
        return set(_MARKER.findall(value)) if "[sealed:" in value else set()
    if isinstance(value, dict):
        return {match for name, part in value.items() for match in (*markers_in(name), *markers_in(part))}
    if isinstance(value, list | tuple):
        return {match for part in value for match in markers_in(part)}
    return set()


def resolve_markers(text: str, value_of: Callable[[str], str | None]) -> str:
    """Return the text with values instead of markers; a marker without a value stays as it is."""
    if "[sealed:" not in text:
        return text
    return _MARKER.sub(lambda match: match[0] if (value := value_of(match[1])) is None else value, text)


def map_texts(value: object, change: Callable[[str], str]) -> object:
    """Return a JSON value with every text in it changed, including the keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(name): map_texts(part, change) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [map_texts(part, change) for part in value]
    return value


def map_arguments(arguments: JsonObject, change: Callable[[str], str]) -> JsonObject:
    """Return arguments with every text in them changed; their own names belong to the tool."""
    return {name: map_texts(value, change) for name, value in arguments.items()}
