"""Converts tool schemas for providers, and arguments back.

One tool with a rejected schema makes every request fail that offers it, and tools come from anywhere. So a schema is
sent as an object without alternatives at its top, with a description of the items of every list; and for Claude with
argument names in the characters that it accepts. What is lost makes a schema wider: arguments are checked against the
full schema when they come back, under their own names.
"""

import hashlib
import re
from collections.abc import Iterator
from typing import Any

from palyra.core.json_schema import SchemaTooLarge, Visit, map_parts, resolve, transform, walk
from palyra.core.tool import JsonObject

_FITS = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_UNFIT = re.compile(r"[^a-zA-Z0-9_.-]")
_TOP = frozenset({"anyOf", "oneOf", "allOf", "enum", "not", "$ref"})


def fitted(schema: JsonObject, *, keys: bool = False) -> JsonObject:
    """Return a tool's schema as it may be sent; with `keys`, all argument names are valid for Claude."""
    try:
        sent = transform(_opened(schema), _named if keys else _itemised)
    except SchemaTooLarge:
        sent = {}
    return {"properties": {}, **sent, "type": "object"}


def restored(schema: JsonObject, arguments: JsonObject) -> JsonObject:
    """Return arguments under the names that the tool knows."""
    own = {_short(name): name for name in _argument_names(schema) if not _FITS.fullmatch(name)}
    return _renamed(arguments, own) if own else arguments


def _opened(schema: JsonObject) -> JsonObject:
    """Return a schema with the properties of its alternatives instead of them."""
    root = {**_followed(schema, schema), **schema}
    document = {word: value for word, value in root.items() if word not in _TOP}
    named: JsonObject = {}
    for part in (root, *(_followed(one, schema) for one in _alternatives(root))):
        if isinstance(properties := part.get("properties"), dict):
            named = {**properties, **named}
    return {**document, "properties": named} if named else document


def _alternatives(schema: JsonObject) -> Iterator[JsonObject]:
    for word in ("allOf", "anyOf", "oneOf"):
        parts = schema.get(word)
        yield from (part for part in (parts if isinstance(parts, list) else ()) if isinstance(part, dict))


def _followed(part: JsonObject, root: JsonObject) -> JsonObject:
    """Return the target of a part's reference, if it is in the same schema."""
    reference = part.get("$ref")
    result = resolve(root, reference) if isinstance(reference, str) else None
    return result if isinstance(result, dict) else part


def _itemised(schema: Any, visit: Visit) -> Any:
    """Describe the items of a list."""
    if not isinstance(schema, dict):
        return schema
    result = {**schema, **map_parts(schema, visit)}
    kinds = schema.get("type")
    if kinds == "array" or (isinstance(kinds, list) and "array" in kinds):
        items = result.get("items")
        result["items"] = items if isinstance(items, dict) else {}
    return result


def _named(schema: Any, visit: Visit) -> Any:
    """Do the same, with argument names that Claude accepts."""
    result = _itemised(schema, visit)
    if not isinstance(result, dict):
        return result
    if isinstance(properties := result.get("properties"), dict):
        result["properties"] = {_fit(name): part for name, part in properties.items()}
    if isinstance(required := result.get("required"), list):
        result["required"] = [_fit(name) if isinstance(name, str) else name for name in required]
    return result


def _argument_names(schema: JsonObject) -> set[str]:
    """Return the names of all arguments, at any depth."""
    try:
        properties = [part.get("properties") for _, part in walk(schema) if isinstance(part, dict)]
    except SchemaTooLarge:
        return set()  # none was sent
    return {name for named in properties if isinstance(named, dict) for name in named}


def _renamed(value: Any, own: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_renamed(one, own) for one in value]
    if isinstance(value, dict):
        return {own.get(name, name): _renamed(one, own) for name, one in value.items()}
    return value


def _fit(name: str) -> str:
    return name if _FITS.fullmatch(name) else _short(name)


def _short(name: str) -> str:
    """Return a name made unique by a digest."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{_UNFIT.sub('_', name)[:50]}_{digest[:8]}"
