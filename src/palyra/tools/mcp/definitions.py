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
    for document in listed:
        name = document.get("name")
        displayed = clean(str(name), maximum=64).replace("\n", " ") or "(no name)"
        if displayed in listing.unusable:
            continue
        if listing.definitions.pop(displayed, None) is not None:
            # One of the two may be meant for review, and the other for the call.
            listing.unusable[displayed] = "it is listed twice"
            continue
        try:
            listing.definitions[displayed] = _definition(document)
        except (PalyraError, ValueError, RecursionError) as error:
            listing.unusable[displayed] = error.detail if isinstance(error, PalyraError) else str(error)
    return listing


def clean(text: str, *, maximum: int) -> str:
    """Return a text of at most that many characters, without invisible ones; lines stay lines."""
    stored = (char if char == "\n" or unicodedata.category(char) not in _MARKS else " " for char in text[: maximum * 2])
    full_text = re.sub(r" {3,}", "  ", "".join(stored)).strip()
    return full_text if len(full_text) <= maximum else full_text[: maximum - 1] + "…"


def _definition(document: JsonObject) -> McpToolDefinition:
    name = document.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError("its name is not up to 64 letters, digits, '_', '-' and '.'")
    data = msgspec.json.encode(document, order="deterministic")
    if len(data) > MAX_BYTES:
        raise ValueError(f"its definition has {len(data)} bytes; the maximum is {MAX_BYTES}")
    schema = document.get("inputSchema")
    if not isinstance(schema, dict):
        raise ValueError("it has no schema for its arguments")
    parameters = _cleaned(schema)
    ArgumentSchema(parameters)
    hints = document.get("annotations")
    return McpToolDefinition(
        name=name,
        description=clean(
            str(document.get("description") or document.get("title") or ""), maximum=MAX_DESCRIPTION_CHARS
        ),
        parameters=parameters,
        reads_only=isinstance(hints, dict) and hints.get("readOnlyHint") is True,
        digest=hashlib.sha256(data).hexdigest(),
    )


def _cleaned(value: Any, key: str = "") -> Any:
    """Return a part of a schema with its readable texts cleaned; all others must be clean."""
    match value:
        case str() if key in _READ:
            return clean(value, maximum=MAX_TEXT_CHARS)
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
