"""Converts JSON Schemas for Gemini.

Gemini supports a subset, and rejects a request with an unknown keyword. So only documented keywords are sent, and
references are replaced by their targets. What is lost makes a schema wider, never narrower; arguments are checked
against the full schema when they come back.
"""

from collections.abc import Sequence
from typing import Any

from palyra.core.json_schema import Visit, map_parts, resolve, transform
from palyra.core.tool import JsonObject

MAX_DEPTH = 24
"""The maximum depth of a schema; a deeper part, or a recursive one, may be anything."""
MAX_PARTS = 5_000
"""The maximum number of parts of a schema: references can multiply them."""

_PLAIN = frozenset({"type", "title", "description", "minimum", "maximum", "minItems", "maxItems"})
_SINGLE = frozenset({"items", "additionalProperties"})
_PARTS = _SINGLE | {"properties", "prefixItems"}
_FORMATS = frozenset({"date-time", "date", "time"})


def reduced(schema: JsonObject) -> JsonObject:
    """Return the schema as it may be sent."""

    def part(schema: Any, visit: Visit) -> JsonObject:
        # `true` is a schema too: it allows everything, as an empty one does.
        if not isinstance(schema, dict):
            return {}
        if isinstance(reference := schema.get("$ref"), str):
            target: JsonObject = visit(resolve(root, reference), via=reference)
            rest: JsonObject = visit({word: value for word, value in schema.items() if word != "$ref"})
            return target | rest
        document = {word: value for word, value in schema.items() if word in _PLAIN and value is not None}
        document |= _values(schema) | _parts(schema, visit)
        for one in _listed(schema.get("allOf")):
            document = _both(document, visit(one))
        if choices := [*_listed(schema.get("anyOf")), *_listed(schema.get("oneOf"))]:
            document["anyOf"] = [visit(choice) for choice in choices]
        return document

    root = schema
    document: JsonObject = transform(schema, part, max_depth=MAX_DEPTH, max_parts=MAX_PARTS, beyond={})
    return document


def _values(schema: JsonObject) -> JsonObject:
    values = [schema["const"]] if "const" in schema else _listed(schema.get("enum"))
    document: JsonObject = {}
    # Texts and numbers only; a boolean is not a number here.
    if values and all(isinstance(value, str | int | float) and not isinstance(value, bool) for value in values):
        document["enum"] = list(values)
    if isinstance(form := schema.get("format"), str) and form in _FORMATS:
        document["format"] = form
    return document


def _parts(schema: JsonObject, visit: Visit) -> JsonObject:
    described = {word: value for word, value in schema.items() if isinstance(value, dict) or word == "prefixItems"}
    document = {word: value for word, value in map_parts(described, visit, _PARTS).items() if value or word in _SINGLE}
    if "properties" in document:
        # Required properties must be described.
        listed = _listed(schema.get("required"))
        required = [name for name in listed if isinstance(name, str) and name in document["properties"]]
        document |= {"required": required} if required else {}
    return document


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _both(one: JsonObject, other: JsonObject) -> JsonObject:
    """Return a schema with the properties of both."""
    joined = one | other
    for word in ("properties", "required"):
        if word in one and word in other:
            joined[word] = (
                one[word] | other[word] if word == "properties" else list(dict.fromkeys([*one[word], *other[word]]))
            )
    return joined
