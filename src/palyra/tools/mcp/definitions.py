"""Reads a server's tool definitions as untrusted text: bounded, cleaned, or refused with the reason."""

import hashlib
import re
import unicodedata
from dataclasses import dataclass, field
from typing import Any

import msgspec

from palyra.core.errors import PalyraError
from palyra.core.mcp import McpToolDefinition
from palyra.core.tool import JsonObject
from palyra.tools.json_schema import ArgumentSchema

MAX_DESCRIPTION_CHARS = 2000
MAX_TEXT_CHARS = 500
"""For a text within a schema, which a model sees too."""
MAX_BYTES = 64 * 1024
"""For the full definition of one tool."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_MARKS = frozenset({"Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp"})
"""Categories of characters that are invisible, or change how others are displayed."""
_READ = frozenset({"description", "title", "$comment", "markdownDescription"})
"""Keys of a schema whose value is for reading only."""


@dataclass(frozen=True, slots=True)
class McpToolListing:
    """The tools of a server: those that can be used, and why the others cannot."""

    definitions: dict[str, McpToolDefinition] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)


def read(listed: list[JsonObject]) -> McpToolListing:
    """Read the listing of a server."""
    listing = McpToolListing()
    for given in listed:
        name = given.get("name")
        shown = clean(str(name), most=64).replace("\n", " ") or "(no name)"
        if shown in listing.unusable:
            continue
        if listing.definitions.pop(shown, None) is not None:
            # One of the two may be meant for review, and the other for the call.
            listing.unusable[shown] = "it is listed twice"
            continue
        try:
            listing.definitions[shown] = _definition(given)
        except (PalyraError, ValueError, RecursionError) as error:
            listing.unusable[shown] = error.detail if isinstance(error, PalyraError) else str(error)
    return listing


def clean(text: str, *, most: int) -> str:
    """Return a text of at most that many characters, without invisible ones; lines stay lines."""
    kept = (char if char == "\n" or unicodedata.category(char) not in _MARKS else " " for char in text[: most * 2])
    whole = re.sub(r" {3,}", "  ", "".join(kept)).strip()
    return whole if len(whole) <= most else whole[: most - 1] + "…"


def _definition(given: JsonObject) -> McpToolDefinition:
    name = given.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError("its name is not up to 64 letters, digits, '_', '-' and '.'")
    said = msgspec.json.encode(given, order="deterministic")
    if len(said) > MAX_BYTES:
        raise ValueError(f"its definition has {len(said)} bytes; the maximum is {MAX_BYTES}")
    schema = given.get("inputSchema")
    if not isinstance(schema, dict):
        raise ValueError("it has no schema for its arguments")
    parameters = _cleaned(schema)
    ArgumentSchema(parameters)
    hints = given.get("annotations")
    return McpToolDefinition(
        name=name,
        description=clean(str(given.get("description") or given.get("title") or ""), most=MAX_DESCRIPTION_CHARS),
        parameters=parameters,
        reads_only=isinstance(hints, dict) and hints.get("readOnlyHint") is True,
        digest=hashlib.sha256(said).hexdigest(),
    )


def _cleaned(value: Any, key: str = "") -> Any:
    """Return a part of a schema with its readable texts cleaned; all others must be clean."""
    match value:
        case str() if key in _READ:
            return clean(value, most=MAX_TEXT_CHARS)
        case str():
            if len(value) > MAX_TEXT_CHARS or any(unicodedata.category(char) in _MARKS for char in value):
                raise ValueError("its schema has a value that is too long or has invisible characters")
            return value
        case dict():
            for name in value:
                if not name.isprintable() or len(name) > 100:
                    raise ValueError("its schema has a name that is too long or has invisible characters")
            return {name: _cleaned(part, name) for name, part in value.items()}
        case list():
            return [_cleaned(part, key) for part in value]
        case _:
            return value
