"""Schemas of answers are closed and lose their bounds, or there is no form of them that Claude takes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.core.tool import JsonObject
from palyra.providers.dialects.anthropic_schema import closed

A = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
CLOSED_A = A | {"additionalProperties": False}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (A, CLOSED_A),
        (CLOSED_A, CLOSED_A),
        ({"type": "integer", "minimum": 1, "maximum": 9, "multipleOf": 2}, {"type": "integer"}),
        ({"type": "string", "minLength": 1, "pattern": "^a", "format": "uuid"}, {"type": "string", "format": "uuid"}),
        ({"type": "string", "format": "byte"}, {"type": "string"}),
        (
            {"type": "array", "items": A, "minItems": 1, "maxItems": 3},
            {"type": "array", "items": CLOSED_A, "minItems": 1},
        ),
        ({"type": "array", "items": {"type": "string"}, "minItems": 2}, {"type": "array", "items": {"type": "string"}}),
        ({"oneOf": [A, {"type": "null"}]}, {"anyOf": [CLOSED_A, {"type": "null"}]}),
        ({"type": ["string", "null"], "maxLength": 3}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"$ref": "#/$defs/x", "$defs": {"x": A}}, {"$ref": "#/$defs/x", "$defs": {"x": CLOSED_A}}),
        ({"enum": ["a", None], "$schema": "x"}, {"enum": ["a", None]}),
        ({"type": "object", "additionalProperties": False}, {"type": "object", "additionalProperties": False}),
    ],
)
def test_what_can_be_said_is_said_as_it_takes_it(given: JsonObject, expected: JsonObject) -> None:
    assert closed(given) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {},
        A | {"additionalProperties": True},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "object", "properties": {"a": {"type": "object"}}},
        {"type": "array", "items": True},
    ],
)
def test_what_must_stay_open_can_not_be_said(schema: JsonObject) -> None:
    assert closed(schema) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
WORDS = ["type", "properties", "items", "anyOf", "oneOf", "allOf", "$defs", "format", "enum", "minItems", "required"]


@given(st.dictionaries(st.sampled_from(WORDS), JSON | st.dictionaries(st.sampled_from(WORDS), JSON), max_size=4))
def test_whatever_comes_in_it_is_said_or_not(schema: Any) -> None:
    found = closed(schema)
    assert found is None or not {"oneOf", "minimum", "pattern"} & found.keys()


def test_a_schema_that_is_too_deep_can_not_be_said() -> None:
    deep: JsonObject = {"type": "string"}
    for _ in range(5000):
        deep = {"type": "array", "items": deep}
    assert closed(deep) is None
