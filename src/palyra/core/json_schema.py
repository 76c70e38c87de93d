"""JSON Schema as a tree: the parts of a schema, its local references, and rebuilding it part by part.

Schemas come from plugins, MCP servers and callers, so none of it relies on their form: a keyword whose value has the
wrong shape has no parts, and depth and size are bounded.
"""

import itertools
from collections.abc import Callable, Container, Iterator
from typing import Any, Protocol

from palyra.core.tool import JsonObject

MAX_DEPTH = 64
MAX_PARTS = 20_000

_BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SINGLE = frozenset(
    "items additionalItems additionalProperties contains propertyNames not if then else unevaluatedItems"
    " unevaluatedProperties contentSchema".split()
)
KEYWORDS = _BY_NAME | _LISTS | _SINGLE
"""The keywords that contain schemas."""

Path = tuple[str | int, ...]


class SchemaTooLarge(Exception):
    """A schema is nested too deeply, or has too many parts."""


class Visit(Protocol):
    """Transforms a part within a part; `via` is the reference that led there."""

    def __call__(self, part: Any, *, via: str = "") -> Any:
        """Return the transformed part."""
        ...


def map_parts(schema: JsonObject, change: Callable[[Any], Any], keywords: Container[str] = KEYWORDS) -> JsonObject:
    """Return the keywords that contain schemas, in their order, with each of those schemas changed."""
    changed: JsonObject = {}
    for keyword, value in schema.items():
        if keyword not in keywords:
            continue
        if keyword in _BY_NAME:
            if isinstance(value, dict):
                changed[keyword] = {name: change(part) for name, part in value.items()}
        elif keyword in _LISTS or (keyword == "items" and isinstance(value, list)):
            if isinstance(value, list | tuple):
                changed[keyword] = [change(part) for part in value]
        elif keyword in _SINGLE:
            changed[keyword] = change(value)
    return changed


def walk(
    schema: Any,
    keywords: Container[str] = KEYWORDS,
    *,
    follow: bool = False,
    max_depth: int = MAX_DEPTH,
    max_parts: int = MAX_PARTS,
) -> Iterator[tuple[Path, Any]]:
    """Yield the schema and all parts that are not booleans, with paths; with `follow` the targets of references too.

    A part comes before the parts within it, and need not be an object. Raise `SchemaTooLarge` beyond the bounds; the
    depth is the length of the path.
    """
    left: list[tuple[Path, Any]] = [((), schema)]
    seen: set[int] = set()
    while left:
        path, part = left.pop()
        # The target of a reference is visited more than once.
        if isinstance(part, bool) or id(part) in seen:
            continue
        seen.add(id(part))
        if len(seen) > max_parts or len(path) > max_depth:
            raise SchemaTooLarge
        yield path, part
        if not isinstance(part, dict):
            continue
        for keyword, value in map_parts(part, lambda within: within, keywords).items():
            match value:
                case dict() if keyword in _BY_NAME:
                    left.extend(((*path, keyword, name), within) for name, within in value.items())
                case list() if keyword in _LISTS or keyword == "items":
                    left.extend(((*path, keyword, index), within) for index, within in enumerate(value))
                case _:
                    left.append(((*path, keyword), value))
        if follow and isinstance(reference := part.get("$ref"), str):
            left.append((tuple(reference.split("/")[1:]), resolve(schema, reference)))


def resolve(root: Any, reference: str) -> Any:
    """Return the target of a reference within a schema; None if it has none."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    result = root
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(result, list) and name.isdecimal() and len(name) < 6 and int(name) < len(result):
            result = result[int(name)]
        elif isinstance(result, dict) and name in result:
            result = result[name]
        else:
            return None
    return result


def transform(
    schema: Any,
    rule: Callable[[Any, Visit], Any],
    *,
    max_depth: int = MAX_DEPTH,
    max_parts: int = MAX_PARTS,
    beyond: JsonObject | None = None,
) -> Any:
    """Rebuild a schema: the rule gets a part, and the function to transform what it keeps of the parts within.

    `beyond` takes the place of a part that exceeds the bounds or contains itself. Without it, raise `SchemaTooLarge`.
    """
    count = itertools.count(1)

    def at(depth: int, references: frozenset[str]) -> Visit:
        def visit(part: Any, *, via: str = "") -> Any:
            if depth > max_depth or next(count) > max_parts or via in references:
                if beyond is None:
                    raise SchemaTooLarge
                return dict(beyond)
            return rule(part, at(depth + 1, references | {via} if via else references))

        return visit

    return at(0, frozenset())(schema)
