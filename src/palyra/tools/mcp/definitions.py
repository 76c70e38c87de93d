"""What a server says of its tools, read as text from a stranger: bounded, cleaned, or refused with the reason."""

import hashlib
import re
import unicodedata
from dataclasses import dataclass, field
from typing import Any

import msgspec

from palyra.core.errors import PalyraError
from palyra.core.mcp import Definition
from palyra.core.tool import JsonObject
from palyra.tools.schema import Schema

MOST_DESCRIPTION_CHARS = 2000
MOST_TEXT_CHARS = 500
"""Of a text within a schema, which a model is told too."""
MOST_BYTES = 64 * 1024
"""Of everything that is said of one tool."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_MARKS = frozenset({"Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp"})
"""Kinds of characters that nobody sees, or that change how others are seen."""
_READ = frozenset({"description", "title", "$comment", "markdownDescription"})
"""Keys of a schema whose value is for reading only."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools of a server: those that can be used, and why the others can not."""

    definitions: dict[str, Definition] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)


def read(listed: list[JsonObject]) -> Listing:
    """Read what a server lists."""
    listing = Listing()
    for given in listed:
        name = given.get("name")
        shown = clean(str(name), most=64).replace("\n", " ") or "(no name)"
        if shown in listing.unusable:
            continue
        if listing.definitions.pop(shown, None) is not None:
            # One of the two may be meant to be looked at, and the other to be called.
            listing.unusable[shown] = "it is listed twice"
            continue
        try:
            listing.definitions[shown] = _definition(given)
        except (PalyraError, ValueError, RecursionError) as error:
            listing.unusable[shown] = error.detail if isinstance(error, PalyraError) else str(error)
    return listing


def clean(text: str, *, most: int) -> str:
    """Return a text of at most that many characters, without those that nobody sees; lines stay lines."""
    kept = (char if char == "\n" or unicodedata.category(char) not in _MARKS else " " for char in text[: most * 2])
    whole = re.sub(r" {3,}", "  ", "".join(kept)).strip()
    return whole if len(whole) <= most else whole[: most - 1] + "…"


def _definition(given: JsonObject) -> Definition:
    name = given.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError("its name is not made of up to 64 letters, digits, '_', '-' and '.'")
    said = msgspec.json.encode(given, order="deterministic")
    if len(said) > MOST_BYTES:
        raise ValueError(f"its definition has {len(said)} bytes; {MOST_BYTES} are the most")
    schema = given.get("inputSchema")
    if not isinstance(schema, dict):
        raise ValueError("it has no schema of its arguments")
    parameters = _cleaned(schema)
    Schema(parameters)
    hints = given.get("annotations")
    return Definition(
        name=name,
        description=clean(str(given.get("description") or given.get("title") or ""), most=MOST_DESCRIPTION_CHARS),
        parameters=parameters,
        reads_only=isinstance(hints, dict) and hints.get("readOnlyHint") is True,
        digest=hashlib.sha256(said).hexdigest(),
    )


def _cleaned(value: Any, key: str = "") -> Any:
    """Return a part of a schema with the texts that are meant to be read cleaned; all others must be clean."""
    match value:
        case str() if key in _READ:
            return clean(value, most=MOST_TEXT_CHARS)
        case str():
            if len(value) > MOST_TEXT_CHARS or any(unicodedata.category(char) in _MARKS for char in value):
                raise ValueError("its schema has a value that is too long, or has characters that nobody sees")
            return value
        case dict():
            for name in value:
                if not name.isprintable() or len(name) > 100:
                    raise ValueError("its schema has a name that is too long, or has characters that nobody sees")
            return {name: _cleaned(part, name) for name, part in value.items()}
        case list():
            return [_cleaned(part, key) for part in value]
        case _:
            return value
