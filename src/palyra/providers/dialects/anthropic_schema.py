"""Converts JSON Schemas of answers for Claude.

Claude is constrained to them exactly, and rejects what cannot be enforced: bounds of numbers and lengths, and objects
with additional properties. Bounds are left out, and an object is closed; one that must stay open cannot be converted.
"""

from typing import Any

from palyra.core.json_schema import SchemaTooLarge, Visit, map_parts, transform
from palyra.core.tool import JsonObject

_KNOWN = frozenset({"title", "description", "default", "enum", "const", "required", "$ref"})
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
_PARTS = frozenset({"properties", "$defs", "definitions", "items", "anyOf", "oneOf", "allOf"})


class _Open(Exception):
    """An object may have more than what is named."""


def closed(schema: JsonObject) -> JsonObject | None:
    """Return the schema as it may be sent; None if it cannot be converted."""
    try:
        document: JsonObject = transform(schema, _part)
    except (_Open, SchemaTooLarge):
        return None
    return document


def _part(schema: Any, visit: Visit) -> JsonObject:
    if not isinstance(schema, dict) or not schema:
        raise _Open
    kinds = schema.get("type")
    if isinstance(kinds, list):
        # A value of several types becomes a list of alternatives.
        return {"anyOf": [visit({**schema, "type": kind}) for kind in kinds]}
    result = {word: value for word, value in schema.items() if word in _KNOWN}
    if kinds is not None:
        result["type"] = kinds
    if kinds == "object" or "properties" in schema:
        # Without named properties, and not closed by itself, it was meant to allow anything.
        others = schema.get("additionalProperties", not schema.get("properties"))
        if others is not False:
            raise _Open
        result["additionalProperties"] = False
    if isinstance(schema.get("items"), list):
        raise _Open
    parts = map_parts(schema, visit, _PARTS)
    parts["anyOf"] = parts.pop("oneOf", None) or parts.get("anyOf")
    result |= {word: part for word, part in parts.items() if part or word not in ("anyOf", "allOf")}
    if isinstance(form := schema.get("format"), str) and form in _FORMATS:
        result["format"] = form
    if schema.get("minItems") == 1:
        result["minItems"] = 1
    return result
