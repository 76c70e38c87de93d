"""Whatever a server sends, its answer is read or refused: a reader raises nothing but `ProviderFailed`."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.core.model.prompt import (
    CallProposed,
    Message,
    ModelEvent,
    Reasoning,
    ReasoningDelta,
    Role,
    TextDelta,
    TurnDone,
)
from palyra.core.tool import JsonObject
from palyra.providers.base import ProviderFailed
from palyra.providers.dialect import Dialect, ModelTarget
from palyra.providers.dialects import anthropic, gemini
from tests.unit.providers.conversation import a_prompt

PROMPT = a_prompt("What is in my files?")
SPEAKS: dict[str, tuple[Dialect, str]] = {
    "anthropic": (anthropic.DIALECT, "claude-sonnet-4-6"),
    "gemini": (gemini.DIALECT, "gemini-3.6-flash"),
}
ANSWERS: dict[str, list[JsonObject]] = {
    "anthropic": [
        {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "content_block_stop", "index": 1},
        {
            "type": "content_block_start",
            "index": 2,
            "content_block": {"type": "tool_use", "id": "t", "name": "files_list", "input": {}},
        },
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        {"type": "content_block_stop", "index": 2},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        {"type": "message_stop"},
    ],
    "gemini": [
        {"candidates": [{"content": {"parts": [{"text": "Hm", "thought": True}]}}]},
        {"candidates": [{"content": {"parts": [{"text": "Hi"}]}}], "usageMetadata": {"promptTokenCount": 4}},
        {
            "candidates": [
                {
                    "content": {
                        "parts": [
                            {"functionCall": {"name": "files_list", "args": {"a": 1}}, "thoughtSignature": "s"},
                            {"functionCall": {"name": "files_read", "id": "x"}},
                        ]
                    },
                    "finishReason": "STOP",
                    "finishMessage": "done",
                }
            ],
            "usageMetadata": {"promptTokenCount": 4, "candidatesTokenCount": 6, "thoughtsTokenCount": 2},
        },
        {"promptFeedback": {"blockReason": "OTHER"}},
        {
            "error": {
                "code": 429,
                "status": "RESOURCE_EXHAUSTED",
                "message": "no",
                "details": [{"retryDelay": "3s", "violations": [{"quotaId": "PerDay"}], "reason": "x"}],
            }
        },
    ],
}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def target_of(speaks: Dialect, model: str) -> ModelTarget:
    return ModelTarget(provider="p", model=model, card=speaks.model_card(model), max_output_tokens=100)


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """Return something like the value: with parts of it lost, or replaced by anything, or as it is."""
    match draw(st.integers(0, 9)):
        case 0:
            return draw(ANYTHING)
        case 1 if isinstance(value, dict) and value:
            lost = draw(st.sampled_from(sorted(value)))
            return {key: part for key, part in value.items() if key != lost}
        case _:
            pass
    if isinstance(value, dict):
        return {key: draw(changed(part)) for key, part in value.items()}
    if isinstance(value, list):
        return [draw(changed(part)) for part in value]
    return value


@st.composite
def answers(draw: st.DrawFn, name: str) -> list[bytes]:
    """Return events of an answer: some of the real ones in any order, changed or not, and mere bytes among them."""
    real = st.sampled_from(ANSWERS[name])
    event = real.flatmap(changed).map(json.dumps).map(str.encode) | real.map(json.dumps).map(str.encode)
    return draw(st.lists(event | st.binary(max_size=20) | ANYTHING.map(json.dumps).map(str.encode), max_size=16))


def heard(speaks: Dialect, target: ModelTarget, events: Sequence[bytes]) -> list[ModelEvent] | ProviderFailed:
    reader = speaks.reader(PROMPT, target)
    said: list[ModelEvent] = []
    try:
        for data in events:
            said += reader.feed("", data)
        said += reader.end()
    except ProviderFailed as failed:
        return failed
    return said


@pytest.mark.parametrize("name", SPEAKS)
@given(data=st.data())
def test_any_answer_is_read_or_refused(name: str, data: st.DataObject) -> None:
    speaks, model = SPEAKS[name]
    said = heard(speaks, target_of(speaks, model), data.draw(answers(name)))
    if isinstance(said, ProviderFailed):
        assert said.detail.endswith(".")
        assert "\n" not in said.detail
        return
    assert [isinstance(event, TurnDone) for event in said] == [False] * (len(said) - 1) + [True]
    for event in said:
        match event:
            case TextDelta(text):
                assert text
            case ReasoningDelta(text, dialect, kept):
                assert text or dialect == name
                json.dumps(kept)
            case CallProposed():
                assert isinstance(event.arguments, dict)
            case TurnDone():
                assert event.usage.input_tokens >= 0


@pytest.mark.parametrize("name", SPEAKS)
@given(data=st.data(), status=st.integers(100, 599))
def test_any_refusal_is_told_in_one_sentence(name: str, data: st.DataObject, status: int) -> None:
    speaks, model = SPEAKS[name]
    real = {"error": {"type": "x", "status": "y", "message": "a\nb", "code": 4, "details": [{"retryDelay": "1s"}]}}
    body = data.draw(st.binary(max_size=50) | changed(real).map(json.dumps).map(str.encode))
    failed = speaks.refused(
        status, data.draw(st.dictionaries(st.just("retry-after"), st.text())), body, target_of(speaks, model)
    )
    assert failed.detail.endswith(".")
    assert "\n" not in failed.detail


@pytest.mark.parametrize("name", SPEAKS)
@given(data=st.data())
def test_what_was_thought_can_be_shown_again_whatever_was_kept_of_it(name: str, data: st.DataObject) -> None:
    speaks, model = SPEAKS[name]
    kept = {"model": model, "signature": "s", "redacted": "r", "after": [1, 0], "call": 0, "text": 2, "thought": True}
    thoughts = st.builds(
        Reasoning,
        text=st.text(max_size=5),
        dialect=st.just(name),
        data=changed(kept).filter(lambda it: type(it) is dict),
    )
    message = Message(role=Role.ASSISTANT, text="Hello", reasoning=tuple(data.draw(st.lists(thoughts, max_size=3))))
    json.loads(speaks.request(a_prompt("hi", message, "on"), target_of(speaks, model)).body)
