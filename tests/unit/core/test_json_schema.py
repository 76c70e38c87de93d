"""A schema of any form is walked and rebuilt within bounds, and its references stay within it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.core.json_schema import KEYWORDS, SchemaTooLarge, Visit, map_parts, resolve, transform, walk
from palyra.core.tool import JsonObject

DOCUMENT: JsonObject = {
    "properties": {"a": {"type": "string"}, "b": {"items": [{"const": 1}, True]}},
    "anyOf": [{"$ref": "#/$defs/x~1y"}, {"not": {"default": {"properties": {"no": "schema"}}}}],
    "$defs": {"x/y": {"title": "z"}},
}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*sorted(KEYWORDS), "$ref", "enum", "a"]), inner, max_size=3)
    ),
    max_leaves=12,
)


def nested(depth: int) -> JsonObject:
    schema: JsonObject = {"type": "string"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def rebuilt(schema: Any, visit: Visit) -> Any:
    return {**schema, **map_parts(schema, visit)} if isinstance(schema, dict) else schema


def test_parts_are_found_where_keywords_hold_them_and_nowhere_else() -> None:
    assert {path: part for path, part in walk(DOCUMENT) if path} == {
        ("properties", "a"): {"type": "string"},
        ("properties", "b"): DOCUMENT["properties"]["b"],
        ("properties", "b", "items", 0): {"const": 1},
        ("anyOf", 0): {"$ref": "#/$defs/x~1y"},
        ("anyOf", 1): DOCUMENT["anyOf"][1],
        ("anyOf", 1, "not"): DOCUMENT["anyOf"][1]["not"],
        ("$defs", "x/y"): {"title": "z"},
    }


def test_references_are_followed_once() -> None:
    tree: JsonObject = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#/properties/left"}}}
    assert [path for path, _ in walk(tree, follow=True)] == [(), ("properties", "right"), ("properties", "left")]


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("#", DOCUMENT),
        ("#/$defs/x~1y", {"title": "z"}),
        ("#/anyOf/1/not/default", {"properties": {"no": "schema"}}),
        ("#/properties/b/items/1", True),
        ("#/anyOf/2", None),
        ("#/properties/c", None),
        ("#/title/x", None),
        ("https://example.org/schema", None),
        ("other.json#/a", None),
    ],
)
def test_a_reference_leads_to_a_part_of_the_schema_or_nowhere(reference: str, target: Any) -> None:
    assert resolve(DOCUMENT, reference) == target


@given(JSON)
def test_rebuilding_without_a_change_gives_the_same_schema(schema: Any) -> None:
    assert transform(schema, rebuilt) == schema


@given(JSON)
def test_a_walk_visits_what_rebuilding_visits(schema: Any) -> None:
    visited: list[Any] = []

    def count(part: Any, visit: Visit) -> Any:
        visited.append(part)
        return rebuilt(part, visit)

    transform(schema, count)
    walked = {id(part) for _, part in walk(schema)}
    assert walked == {id(part) for part in visited if not isinstance(part, bool)}


def test_depth_and_size_are_bounded() -> None:
    with pytest.raises(SchemaTooLarge):
        transform(nested(5000), rebuilt)
    with pytest.raises(SchemaTooLarge):
        transform({"anyOf": [{}] * 30_000}, rebuilt)
    with pytest.raises(SchemaTooLarge):
        list(walk(nested(5000)))
    with pytest.raises(SchemaTooLarge):
        list(walk({"anyOf": [{"title": str(number)} for number in range(9)]}, max_parts=9))


def test_what_is_too_deep_can_be_replaced() -> None:
    assert transform(nested(5000), rebuilt, max_depth=2, beyond={"title": "deep"}) == {
        "items": {"items": {"items": {"title": "deep"}}}
    }


def test_a_part_that_contains_itself_is_replaced() -> None:
    tree: JsonObject = {"items": {"$ref": "#"}}

    def inlined(part: Any, visit: Visit) -> Any:
        reference = part.get("$ref")
        return visit(resolve(tree, reference), via=reference) if reference else rebuilt(part, visit)

    assert transform(tree, inlined, beyond={}) == {"items": {"items": {}}}
