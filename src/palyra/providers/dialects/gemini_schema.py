"""Converts JSON Schemas for Gemini.

Gemini supports a subset, and rejects a request with an unknown keyword. So only documented keywords are sent, and
references are replaced by their targets. What is lost makes a schema wider, never narrower; arguments are checked
against the full schema when they come back.
"""

from collections.abc import Sequence
from typing import Any

from palyra.core.tool import JsonObject

MAX_DEPTH = 24
"""The maximum depth of a schema; a deeper part, or a recursive one, may be anything."""
MAX_PARTS = 5_000
"""The maximum number of parts of a schema: references can multiply them."""

_PLAIN = frozenset({"type", "title", "description", "minimum", "maximum", "minItems", "maxItems"})
_FORMATS = frozenset({"date-time", "date", "time"})


def reduced(schema: JsonObject) -> JsonObject:
    """Return the schema as it may be sent."""
    return _Reduction(schema).part(schema, ())


class _Reduction:
    """The conversion of one schema."""

    def __init__(self, root: JsonObject) -> None:
        self._root = root
        self._parts = 0

    def part(self, schema: Any, way: tuple[str, ...]) -> JsonObject:
        """Return a converted part; `way` has the references that led to it."""
        self._parts += 1
        # `true` is a schema too: it allows everything, as an empty one does.
        if not isinstance(schema, dict) or len(way) > MAX_DEPTH or self._parts > MAX_PARTS:
            return {}
        way = (*way, "")
        if isinstance(reference := schema.get("$ref"), str):
            if reference in way:
                return {}
            rest = {word: value for word, value in schema.items() if word != "$ref"}
            return self.part(self._find(reference), (*way, reference)) | self.part(rest, way)
        found = {word: value for word, value in schema.items() if word in _PLAIN and value is not None}
        found |= self._values(schema)
        found |= self._object(schema, way)
        found |= self._list(schema, way)
        for part in _listed(schema.get("allOf")):
            found = _both(found, self.part(part, way))
        if choices := [*_listed(schema.get("anyOf")), *_listed(schema.get("oneOf"))]:
            found["anyOf"] = [self.part(choice, way) for choice in choices]
        return found

    def _values(self, schema: JsonObject) -> JsonObject:
        values = [schema["const"]] if "const" in schema else _listed(schema.get("enum"))
        found: JsonObject = {}
        # Texts and numbers only; a boolean is not a number here.
        if values and all(isinstance(value, str | int | float) and not isinstance(value, bool) for value in values):
            found["enum"] = list(values)
        if isinstance(form := schema.get("format"), str) and form in _FORMATS:
            found["format"] = form
        return found

    def _object(self, schema: JsonObject, way: tuple[str, ...]) -> JsonObject:
        found: JsonObject = {}
        properties = schema.get("properties")
        if isinstance(properties, dict) and properties:
            found["properties"] = {name: self.part(value, way) for name, value in properties.items()}
            # Required properties must be described.
            wanted = _listed(schema.get("required"))
            if required := [name for name in wanted if isinstance(name, str) and name in properties]:
                found["required"] = required
        if isinstance(others := schema.get("additionalProperties"), dict):
            found["additionalProperties"] = self.part(others, way)
        return found

    def _list(self, schema: JsonObject, way: tuple[str, ...]) -> JsonObject:
        found: JsonObject = {}
        if isinstance(items := schema.get("items"), dict):
            found["items"] = self.part(items, way)
        if places := _listed(schema.get("prefixItems")):
            found["prefixItems"] = [self.part(place, way) for place in places]
        return found

    def _find(self, reference: str) -> Any:
        """Return the target of a reference; only those within the schema are followed."""
        if reference != "#" and not reference.startswith("#/"):
            return {}
        found: Any = self._root
        for step in reference.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or step not in found:
                return {}
            found = found[step]
        return found


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
