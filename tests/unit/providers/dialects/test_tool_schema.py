"""Schemas of tools go out in a form that nobody refuses, and arguments come back under their own names."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.core.model.prompt import Message, Reasoning, Role
from palyra.core.tool import JsonObject, ToolSpec
from palyra.providers.dialect import Dialect
from palyra.providers.dialects.anthropic import DIALECT as ANTHROPIC
from palyra.providers.dialects.openai import DIALECT as OPENAI
from palyra.providers.dialects.responses import DIALECT as RESPONSES
from palyra.providers.dialects.tool_schema import fitted, restored
from tests.unit.providers.conversation import a_call, a_prompt, result, user
from tests.unit.providers.reading import calls_of, read, sent, target_of

ODD: JsonObject = {
    "type": "object",
    "properties": {
        "issue_class~neq": {"type": "string"},
        "этаж": {"type": "array", "items": {"type": "object", "properties": {"ab ü": {"type": "integer"}}}},
        "plain": {"type": "string"},
    },
    "required": ["этаж", "plain"],
}


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({}, {"type": "object", "properties": {}}),
        ({"type": "object", "properties": {"a": {"type": "array"}}}, {"a": {"type": "array", "items": {}}}),
        ({"properties": {"a": {"type": ["array", "null"]}}}, {"a": {"type": ["array", "null"], "items": {}}}),
        (
            {"properties": {"a": {"type": "array", "items": [{"type": "string"}]}}},
            {"a": {"type": "array", "items": {}}},
        ),
        (
            {"properties": {"a": {"type": "array", "items": {"type": "array"}}}},
            {"a": {"type": "array", "items": {"type": "array", "items": {}}}},
        ),
        (
            {"properties": {"a": {}}, "anyOf": [{"properties": {"b": {"type": "string"}}}, {"required": ["a"]}]},
            {"a": {}, "b": {"type": "string"}},
        ),
        (
            {"$defs": {"x": {"properties": {"c": {}}, "required": ["c"]}}, "oneOf": [{"$ref": "#/$defs/x"}]},
            {"c": {}},
        ),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "object", "properties": {"c": {}}}}}, {"c": {}}),
        ({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "array"}]}}}, None),
    ],
)
def test_a_schema_is_that_of_an_object_and_says_something_of_every_list(
    given_: JsonObject, expected: JsonObject | None
) -> None:
    made = fitted(given_)

    assert made["type"] == "object"
    assert not {"anyOf", "oneOf", "allOf", "enum", "not", "$ref"} & made.keys()
    if expected is not None:
        assert made["properties"] == expected.get("properties", expected)
    else:
        assert made["properties"]["a"]["anyOf"][1] == {"type": "array", "items": {}}


def test_what_is_in_order_goes_out_as_it_is() -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {"properties": {"type": "string", "enum": ["a"]}, "items": {"$ref": "#/$defs/x"}},
        "required": ["items"],
        "additionalProperties": False,
        "$defs": {"x": {"type": "string", "default": {"properties": {"ä": 1}}}},
    }

    assert fitted(schema, keys=True) == schema


def test_names_of_arguments_fit_and_come_back() -> None:
    made = fitted(ODD, keys=True)
    (odd, floor, plain), inner = made["properties"], None
    (inner,) = made["properties"][floor]["items"]["properties"]

    assert plain == "plain"
    assert all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name) for name in (odd, floor, inner))
    assert made["required"] == [floor, "plain"]
    assert restored(ODD, {odd: "x", floor: [{inner: 1}], "plain": "y", "other": 2}) == {
        "issue_class~neq": "x",
        "этаж": [{"ab ü": 1}],
        "plain": "y",
        "other": 2,
    }


@pytest.mark.parametrize(
    ("speaks", "model"), [(ANTHROPIC, "claude-sonnet-4-5"), (OPENAI, "anthropic/claude-sonnet-4.5")]
)
def test_claude_is_told_of_no_name_that_it_refuses_and_the_tool_hears_its_own(speaks: Dialect, model: str) -> None:
    prompt = a_prompt("hello", tools=(ToolSpec(name="odd", description="", parameters=ODD),))
    target = target_of(speaks, model)
    (tool,) = sent(speaks, prompt, target)["tools"]
    schema = tool["input_schema"] if speaks is ANTHROPIC else tool["function"]["parameters"]
    arguments = json.dumps({next(iter(schema["properties"])): "x"})

    (call,) = calls_of(read(speaks, prompt, target, _called(speaks, arguments)))

    assert call.arguments == {"issue_class~neq": "x"}


@pytest.mark.parametrize("speaks", [OPENAI, RESPONSES])
def test_others_are_told_the_names_as_they_are(speaks: Dialect) -> None:
    prompt = a_prompt("hello", tools=(ToolSpec(name="odd", description="", parameters=ODD),))
    (tool,) = sent(speaks, prompt, target_of(speaks, "gpt-5"))["tools"]

    assert list(tool.get("function", tool)["parameters"]["properties"]) == list(ODD["properties"])


def test_groq_is_not_sent_the_thoughts_that_it_sent() -> None:
    target = replace(target_of(OPENAI, "openai/gpt-oss-120b"), base_url="https://api.groq.com/openai/v1")
    by = {"field": "reasoning", "by": f"{target.provider}/{target.model}"}
    thought = Reasoning(text="Hm.", dialect="openai", data=by)
    called = Message(role=Role.ASSISTANT, text="", calls=(a_call("odd"),), reasoning=(thought,))
    prompt = a_prompt(user("hello"), called, result("done"))

    assert "reasoning" not in sent(OPENAI, prompt, target)["messages"][1]
    assert "reasoning" in sent(OPENAI, prompt, replace(target, base_url="https://openrouter.ai/v1"))["messages"][1]


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "items", "anyOf", "required", "$ref", "$defs", "a", "ä"]),
            inner | st.sampled_from(["array", "object", "#/$defs/a", "#/"]),
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["type", "properties", "items", "allOf", "$ref", "$defs", "required"]), _json))
def test_whatever_a_schema_is_it_goes_out_and_arguments_come_back(schema: JsonObject) -> None:
    made = fitted(schema, keys=True)

    assert made["type"] == "object"
    assert restored(schema, {"plain": [1]}) == {"plain": [1]}
    json.dumps(made)


def _called(speaks: Dialect, arguments: str) -> Iterator[JsonObject]:
    if speaks is OPENAI:
        call = {"index": 0, "id": "c", "function": {"name": "odd", "arguments": arguments}}
        yield {"choices": [{"delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
        return
    delta: Any = {"type": "input_json_delta", "partial_json": arguments}
    yield {"type": "message_start", "message": {}}
    yield {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "c", "name": "odd"}}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}
    yield {"type": "message_stop"}


def test_a_schema_that_is_too_deep_becomes_an_open_object() -> None:
    deep: JsonObject = {"type": "string"}
    for _ in range(5000):
        deep = {"type": "object", "properties": {"этаж": deep}}
    assert fitted(deep, keys=True) == {"type": "object", "properties": {}}
    assert restored(deep, {"этаж": 1}) == {"этаж": 1}
