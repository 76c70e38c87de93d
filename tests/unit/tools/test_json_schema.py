"""Arguments are held against a schema written by others, and the schema can not do harm."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.core.tool import JsonObject, ToolSpec
from palyra.tools.arguments import CallProblem, check
from palyra.tools.base import Tool, ToolContext
from palyra.tools.catalog import ToolCatalog
from palyra.tools.json_schema import ArgumentSchema, ToolSchemaInvalid, ValidArguments
from tests.unit.tools.surroundings import a_call

TREE: JsonObject = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}},
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "below": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["name"],
            "additionalProperties": False,
        }
    },
}


def a_tool(document: JsonObject) -> Tool:
    async def run(context: ToolContext, arguments: object) -> str:
        raise AssertionError("nothing is run here")

    spec = ToolSpec(name="a.tool", description="", parameters=document)
    return Tool(spec=spec, arguments=ArgumentSchema(document), run=run)


def read(document: JsonObject, arguments: JsonObject) -> JsonObject | str:
    found = check(ToolCatalog([a_tool(document)]), a_call("a.tool", arguments))
    if isinstance(found, CallProblem):
        return found.reason
    assert isinstance(found, ValidArguments)
    return found.values


def one(schema: JsonObject | bool, value: Any) -> Any:
    """Return the value as the schema of a field has it, or what is wrong."""
    found = read({"type": "object", "properties": {"x": schema}}, {"x": value})
    return found if isinstance(found, str) else found["x"]


def test_arguments_that_fit_are_handed_on() -> None:
    document = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    assert read(document, {"path": "a", "more": [1]}) == {"path": "a", "more": [1]}


def test_what_is_wrong_is_said_with_its_place_and_what_the_tool_takes() -> None:
    document = {
        "type": "object",
        "properties": {"count": {"type": "integer"}, "unit": {"type": "string"}},
        "required": ["count"],
    }
    assert read(document, {"unit": "m"}) == (
        "a.tool was not called: Object missing required field `count`. "
        "Send one JSON object with: count, unit (optional)."
    )
    assert "Expected `integer`, got `object` - at `$.count`" in str(read(document, {"count": {}}))


@pytest.mark.parametrize(
    ("schema", "value", "words"),
    [
        ({"type": "integer"}, 1.5, "Expected `integer`, got `number`"),
        ({"type": "integer"}, True, "got `boolean`"),
        ({"type": ["string", "null"]}, 3, "Expected `string | null`, got `integer`"),
        ({"enum": ["a", "b"]}, "c", 'Expected one of "a", "b"'),
        ({"enum": [1]}, True, "Expected one of 1"),
        ({"const": "a"}, "b", 'Expected "a"'),
        ({"type": "integer", "minimum": 2}, 1, "Expected >= 2"),
        ({"type": "integer", "maximum": 2}, 3, "Expected <= 2"),
        ({"exclusiveMinimum": 2}, 2, "Expected > 2"),
        ({"exclusiveMaximum": 2}, 2, "Expected < 2"),
        ({"minimum": 2, "exclusiveMinimum": True}, 2, "Expected > 2"),
        ({"multipleOf": 5}, 7, "Expected a multiple of 5"),
        ({"multipleOf": 0.1}, 0.25, "Expected a multiple of 0.1"),
        ({"minLength": 2}, "a", "Expected at least 2 characters, got 1"),
        ({"maxLength": 2}, "abc", "Expected at most 2 characters, got 3"),
        ({"minItems": 1}, [], "Expected at least 1 items"),
        ({"maxItems": 1}, [1, 2], "Expected at most 1 items"),
        ({"uniqueItems": True}, [1, 2, 1], "Expected unique items"),
        ({"minProperties": 1}, {}, "Expected at least 1 fields"),
        ({"maxProperties": 0}, {"a": 1}, "Expected at most 0 fields"),
        ({"items": {"type": "string"}}, ["a", 1], "at `$.x[1]`"),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["a", 1], "Nothing is allowed here - at `$.x[1]`"),
        ({"items": [{"type": "string"}], "additionalItems": False}, ["a", 1], "Nothing is allowed here"),
        ({"additionalProperties": {"type": "string"}}, {"a": 1}, "at `$.x.a`"),
        (
            {"properties": {"colour": {}}, "additionalProperties": False},
            {"color": 1},
            "unknown field `color`; did you mean `colour`?",
        ),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 3, "It matches none of 2 alternatives"),
        ({"oneOf": [{"minimum": 1}, {"minimum": 2}]}, 3, "It matches 2 alternatives"),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, 3, "Expected <= 2"),
        ({"not": {"type": "string"}}, "a", "what the schema excludes"),
        (False, 1, "Nothing is allowed here"),
    ],
)
def test_each_rule_refuses_what_breaks_it(schema: JsonObject | bool, value: Any, words: str) -> None:
    assert words in str(one(schema, value))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "number"}, 1),
        ({"type": ["string", "null"]}, None),
        ({"multipleOf": 0.1}, 0.3),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, 3),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, 3),
        ({"not": {"type": "string"}}, 1),
        ({"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}, ["a", 1, 2]),
        ({"patternProperties": {"^a": {}}, "additionalProperties": False}, {"abc": 1}),
        ({"pattern": "^a$", "format": "email", "title": "X"}, "whatever"),
        (True, {"a": [1]}),
    ],
)
def test_each_rule_lets_through_what_keeps_it(schema: JsonObject | bool, value: Any) -> None:
    assert one(schema, value) == value


@pytest.mark.parametrize(
    ("kind", "text", "meant"),
    [("integer", "3", 3), ("number", "3.5", 3.5), ("number", "3", 3), ("boolean", "true", True), ("integer", 3.0, 3)],
)
def test_a_number_written_as_text_is_taken_for_a_number(kind: str, text: Any, meant: Any) -> None:
    found = one({"type": kind}, text)
    assert (found, type(found)) == (meant, type(meant))


def test_text_stays_text_where_text_is_wanted() -> None:
    assert one({"type": ["integer", "string"]}, "3") == "3"
    assert "got `string`" in str(one({"type": "number"}, "nan"))
    assert "got `string`" in str(one({"type": "integer"}, "9" * 5000))


def test_a_schema_may_refer_to_itself() -> None:
    good = {"root": {"name": "a", "below": [{"name": "b", "below": []}]}}
    assert read(TREE, good) == good
    bad = read(TREE, {"root": {"name": "a", "below": [{"nam": "b"}]}})
    assert "missing required field `name` - at `$.root.below[0]`" in str(bad)


def test_half_a_surrogate_is_no_text() -> None:
    assert "an argument is not valid text" in str(one({}, "\ud800"))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"type": "string"}, 'with "type": "object"'),
        ({"properties": []}, "properties must be an object of schemas"),
        ({"properties": {"a": 3}}, "$.properties.a must be a schema"),
        ({"properties": {"a": {"type": "text"}}}, 'has the type "text"'),
        ({"required": "a"}, "required must be a list of names"),
        ({"properties": {"a": {"enum": []}}}, "enum must be a list"),
        ({"properties": {"a": {"minLength": -1}}}, "minLength must be a number that is not negative"),
        ({"properties": {"a": {"minimum": "1"}}}, "minimum must be a number"),
        ({"properties": {"a": {"multipleOf": 0}}}, "multipleOf must be greater than 0"),
        ({"properties": {"a": {"anyOf": {}}}}, "anyOf must be a list of schemas"),
        ({"properties": {"a": {"$ref": "https://example.org/s"}}}, "only references within it"),
        ({"properties": {"a": {"$ref": "#/$defs/a"}}}, "which is not in it"),
        ({"properties": {"a": {"$ref": "#/x"}}, "x": 3}, "which is not a schema"),
        ({"properties": {"a": {"$ref": "#/x"}}, "x": {"type": "text"}}, 'has the type "text"'),
        ({"description": "x" * 70_000}, "bytes"),
        ({"properties": {str(place): {} for place in range(3000)}}, "too many parts"),
    ],
)
def test_a_document_that_is_no_schema_is_refused(document: JsonObject, words: str) -> None:
    with pytest.raises(ToolSchemaInvalid) as refused:
        ArgumentSchema(document)
    assert words in refused.value.detail


def test_a_schema_without_end_is_refused_or_stopped() -> None:
    deep: JsonObject = {}
    for _ in range(500):
        deep = {"properties": {"a": deep}}
    with pytest.raises(ToolSchemaInvalid):
        ArgumentSchema(deep)
    assert "nested too deeply" in str(read({"properties": {"x": {"$ref": "#/properties/x"}}}, {"x": 1}))


def test_alternatives_that_multiply_are_given_up_soon() -> None:
    level: JsonObject = {"type": "null"}
    names = {}
    for place in range(30):
        names[f"l{place}"] = level
        level = {"anyOf": [{"$ref": f"#/$defs/l{place}"}, {"$ref": f"#/$defs/l{place}"}]}
    document = {"type": "object", "properties": {"x": level}, "$defs": names}
    started = time.thread_time()
    assert "It matches none of 2 alternatives" in str(read(document, {"x": 1}))
    assert time.thread_time() - started < 5


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
_words = st.sampled_from(
    "type properties required additionalProperties enum const items prefixItems minimum maximum minLength anyOf oneOf"
    " allOf not $ref uniqueItems multipleOf exclusiveMinimum".split()
)
_schemas = st.recursive(
    st.booleans() | st.fixed_dictionaries({"type": st.sampled_from(["string", "integer", "object", "array"])}) | _json,
    lambda inner: st.dictionaries(_words, inner | st.lists(inner, max_size=3), max_size=4),
    max_leaves=10,
)


@given(document=st.fixed_dictionaries({"properties": st.fixed_dictionaries({"x": _schemas})}), value=_json)
def test_a_schema_that_is_taken_never_fails_in_itself(document: JsonObject, value: Any) -> None:
    try:
        tool = a_tool(document)
    except ToolSchemaInvalid:
        return
    assert isinstance(check(ToolCatalog([tool]), a_call("a.tool", {"x": value})), ValidArguments | CallProblem)
