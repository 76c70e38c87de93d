"""Converts JSON Schemas of answers for Claude.

Claude is constrained to them exactly, and rejects what cannot be enforced: bounds of numbers and lengths, and objects
with additional properties. Bounds are left out, and an object is closed; one that must stay open cannot be converted.
"""

from typing import Any

from palyra.core.tool import JsonObject

_KNOWN = frozenset({"title", "description", "default", "enum", "const", "required", "$ref"})
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
_NAMED = ("properties", "$defs", "definitions")


class _Open(Exception):
    """An object may have more than what is named."""


def closed(schema: JsonObject) -> JsonObject | None:
    """Return the schema as it may be sent; None if it cannot be converted."""
    try:
        return _part(schema)
    except _Open:
        return None


def _part(schema: Any) -> JsonObject:
    if not isinstance(schema, dict) or not schema:
        raise _Open
    kinds = schema.get("type")
    if isinstance(kinds, list):
        # A value of several types becomes a list of alternatives.
        return {"anyOf": [_part({**schema, "type": kind}) for kind in kinds]}
    found = {word: value for word, value in schema.items() if word in _KNOWN}
    if kinds is not None:
        found["type"] = kinds
    for word in _NAMED:
        if isinstance(named := schema.get(word), dict):
            found[word] = {name: _part(value) for name, value in named.items()}
    if kinds == "object" or "properties" in schema:
        # Without named properties, and not closed by itself, it was meant to allow anything.
        others = schema.get("additionalProperties", not schema.get("properties"))
        if others is not False:
            raise _Open
        found["additionalProperties"] = False
    if "items" in schema:
        found["items"] = _part(schema["items"])
    for word, sent in (("anyOf", "anyOf"), ("oneOf", "anyOf"), ("allOf", "allOf")):
        if isinstance(parts := schema.get(word), list) and parts:
            found[sent] = [_part(part) for part in parts]
    if isinstance(form := schema.get("format"), str) and form in _FORMATS:
        found["format"] = form
    if schema.get("minItems") == 1:
        found["minItems"] = 1
    return found
