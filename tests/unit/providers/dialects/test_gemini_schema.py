"""Schemas are reduced to what Gemini knows, and never say less than allows what was allowed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.core.tool import JsonObject
from palyra.providers.dialects.gemini_schema import reduced

KNOWN = frozenset(
    "type title description format enum minimum maximum items prefixItems minItems maxItems properties required"
    " additionalProperties anyOf".split()
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
WORDS = st.sampled_from(
    [*KNOWN, "$ref", "$defs", "$schema", "const", "oneOf", "allOf", "not", "pattern", "exclusiveMinimum", "default"]
)
SCHEMAS = st.recursive(
    st.dictionaries(WORDS, JSON, max_size=4),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            "items": inner,
            "anyOf": st.lists(inner, max_size=2),
            "allOf": st.lists(inner, max_size=2),
            "$ref": st.sampled_from(["#", "#/properties/a", "#/$defs/x", "http://x", "#/items"]),
        },
    ),
    max_leaves=10,
)


def words_of(schema: JsonObject) -> set[str]:
    """Return all words that a schema uses as such."""
    found = set(schema)
    for part in (*schema.get("properties", {}).values(), *schema.get("anyOf", ()), *schema.get("prefixItems", ())):
        found |= words_of(part)
    for word in {"items", "additionalProperties"} & schema.keys():
        found |= words_of(schema[word])
    return found


def test_references_are_replaced_by_what_they_lead_to() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"to": {"$ref": "#/$defs/who", "description": "whom"}, "odd": {"$ref": "#/$defs/a~1b"}},
        "$defs": {"who": {"type": "string", "pattern": "^a", "description": "x"}, "a/b": {"type": "integer"}},
    }
    assert reduced(schema) == {
        "type": "object",
        "properties": {"to": {"type": "string", "description": "whom"}, "odd": {"type": "integer"}},
    }


def test_what_refers_to_itself_comes_to_an_end() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "value": {"type": "string"}}}
    left = reduced(tree)["properties"]["left"]
    assert left["properties"]["value"] == {"type": "string"}
    assert left["properties"]["left"] == {}


def test_few_words_do_not_become_many() -> None:
    wide: JsonObject = {f"d{n}": {"prefixItems": [{"$ref": f"#/$defs/d{n + 1}"}] * 10} for n in range(20)}
    assert len(str(reduced({"$ref": "#/$defs/d0", "$defs": wide}))) < 1_000_000


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"const": "a"}, {"enum": ["a"]}),
        ({"enum": ["a", 1]}, {"enum": ["a", 1]}),
        ({"enum": [None, True]}, {}),
        ({"type": "string", "format": "date-time"}, {"type": "string", "format": "date-time"}),
        ({"type": "string", "format": "uri", "minLength": 1}, {"type": "string"}),
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({"oneOf": [{"type": "string"}, True]}, {"anyOf": [{"type": "string"}, {}]}),
        ({"properties": {"a": {}}, "required": ["a", "b"]}, {"properties": {"a": {}}, "required": ["a"]}),
        ({"properties": {"a": {}}, "required": [[], {}, 1, "a"]}, {"properties": {"a": {}}, "required": ["a"]}),
        ({"additionalProperties": False}, {}),
        ({"additionalProperties": {"type": "string"}}, {"additionalProperties": {"type": "string"}}),
        (
            {"properties": {"a": {}}, "allOf": [{"properties": {"b": {}}, "required": ["b"]}, {"required": ["a"]}]},
            {"properties": {"a": {}, "b": {}}, "required": ["b"]},
        ),
    ],
)
def test_words_that_it_does_not_know_are_left_out_or_said_otherwise(given: JsonObject, expected: JsonObject) -> None:
    assert reduced(given) == expected


@given(SCHEMAS)
def test_whatever_comes_in_only_known_words_go_out(schema: Any) -> None:
    assert words_of(reduced(schema)) <= KNOWN
