"""Servers that speak almost as the maker of a dialect does: what they send all the same is an answer."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from palyra.core.model.prompt import GenerationOptions, StopReason
from palyra.core.spending.usage import Usage
from palyra.core.tool import JsonObject
from palyra.providers.base import FailureKind, ProviderFailed
from palyra.providers.dialects.anthropic import DIALECT as ANTHROPIC
from palyra.providers.dialects.gemini import DIALECT as GEMINI
from palyra.providers.dialects.openai import DIALECT as OPENAI
from palyra.providers.dialects.responses import DIALECT as RESPONSES
from tests.unit.providers.conversation import a_prompt
from tests.unit.providers.reading import calls_of, end_of, read, sent, target_of, text_of, thought_of

PROMPT = a_prompt("hello")
GPT = target_of(OPENAI, "gpt-4o")
CLAUDE = target_of(ANTHROPIC, "claude-sonnet-4-5")
FLASH = target_of(GEMINI, "gemini-2.5-flash")


def chunk(delta: Any, finish: Any = None, **more: Any) -> JsonObject:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def call(index: int, id: str | None, **function: Any) -> JsonObject:
    return chunk({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})


def test_an_id_that_changes_within_a_call_begins_no_other() -> None:
    events = read(
        OPENAI,
        PROMPT,
        GPT,
        [
            call(0, "a", name="x", arguments=""),
            call(0, "b", arguments='{"n":'),
            call(0, "c", name="", arguments="1}"),
            call(1, "d", name="y", arguments="{}"),
            chunk({}, "tool_calls"),
        ],
    )

    assert [(one.call_id, one.tool, one.arguments) for one in calls_of(events)] == [
        ("a", "x", {"n": 1}),
        ("d", "y", {}),
    ]


@pytest.mark.parametrize("arguments", ["null", " null\n", "", " "])
def test_a_call_with_nothing_for_arguments_has_none(arguments: str) -> None:
    events = read(OPENAI, PROMPT, GPT, [call(0, "a", name="x", arguments=arguments), chunk({}, "tool_calls")])

    assert [(one.arguments, one.malformed) for one in calls_of(events)] == [({}, "")]


@pytest.mark.parametrize(
    ("finish", "stop"),
    [
        ("model_length", StopReason.LENGTH),
        ("max_tokens", StopReason.LENGTH),
        ("model_context_window_exceeded", StopReason.LENGTH),
        ("sensitive", StopReason.REFUSED),
        ("eos_token", StopReason.END),
        ("stop_sequence", StopReason.END),
    ],
)
def test_other_words_for_why_it_stopped_are_known(finish: str, stop: StopReason) -> None:
    assert end_of(read(OPENAI, PROMPT, GPT, [chunk({"content": "x"}), chunk({}, finish)])).stop is stop


@pytest.mark.parametrize("finish", ["error", "insufficient_system_resource", "network_error", "abort"])
def test_an_answer_that_the_server_gave_up_is_none(finish: str) -> None:
    with pytest.raises(ProviderFailed) as caught:
        read(OPENAI, PROMPT, GPT, [chunk({"content": "half"}), chunk({}, finish)])

    assert caught.value.kind is FailureKind.UNAVAILABLE


def test_a_reason_that_is_the_word_null_is_none() -> None:
    with pytest.raises(ProviderFailed) as caught:
        read(OPENAI, PROMPT, GPT, [chunk({"content": "half"}, "null")])

    assert caught.value.kind is FailureKind.NETWORK


def test_calls_of_an_answer_that_was_withheld_are_not_all_of_it() -> None:
    events = read(OPENAI, PROMPT, GPT, [call(0, "a", name="x", arguments="{}"), chunk({}, "content_filter")])

    assert end_of(events).stop is StopReason.REFUSED


def test_a_message_in_the_place_of_its_pieces_is_the_answer() -> None:
    message = {
        "role": "assistant",
        "content": "Hi",
        "tool_calls": [{"id": "a", "function": {"name": "x", "arguments": "{}"}}],
    }
    whole = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}

    events = read(OPENAI, PROMPT, GPT, [whole])

    assert text_of(events) == "Hi"
    assert [one.tool for one in calls_of(events)] == ["x"]


def test_a_message_beside_its_pieces_is_not_said_twice() -> None:
    both = chunk({"content": "Hi"})
    both["choices"][0]["message"] = {"role": "assistant", "content": "Hi"}
    last = {"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}]}

    assert text_of(read(OPENAI, PROMPT, GPT, [both, last])) == "Hi"


@pytest.mark.parametrize(
    "counts",
    [
        {"prompt_tokens": 7.0, "completion_tokens": 3.0},
        {"prompt_tokens": "7", "completion_tokens": "3"},
        {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": []},
        {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": "none"}},
        {"prompt_tokens": 7, "completion_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 1.5}},
    ],
)
def test_counts_in_another_form_are_taken_as_far_as_they_are_counts(counts: JsonObject) -> None:
    events = read(OPENAI, PROMPT, GPT, [chunk({"content": "x"}), chunk({}, "stop", usage=counts)])

    assert end_of(events).usage == Usage(input_tokens=7, output_tokens=3)


@pytest.mark.parametrize(
    ("completion", "reasoning", "total", "output"),
    [
        # As xAI counts: thoughts are not among what was said, and are paid for all the same.
        (1499, 2809, 14428, 4308),
        (2, 317, None, 319),
        (500, 200, 10620, 500),
        (500, 200, None, 500),
        (0, 7, 10127, 7),
    ],
)
def test_thoughts_that_are_counted_beside_the_answer_are_paid_for(
    completion: int, reasoning: int, total: int | None, output: int
) -> None:
    counts: JsonObject = {"prompt_tokens": 10120, "completion_tokens": completion, "total_tokens": total}
    counts["completion_tokens_details"] = {"reasoning_tokens": reasoning}

    events = read(OPENAI, PROMPT, GPT, [chunk({"content": "x"}), chunk({}, "stop", usage=counts)])

    assert end_of(events).usage == Usage(input_tokens=10120, output_tokens=output, reasoning_tokens=reasoning)


def test_deepseek_is_asked_for_json_in_words() -> None:
    schema: JsonObject = {"type": "object", "properties": {"a": {"type": "string"}}}
    prompt = structs.replace(PROMPT, system="Be brief.", options=GenerationOptions(schema=schema))

    there = sent(OPENAI, prompt, replace(GPT, base_url="https://api.deepseek.com/v1"))
    elsewhere = sent(OPENAI, prompt, replace(GPT, base_url="https://notdeepseek.com/v1"))

    assert there["response_format"] == {"type": "json_object"}
    assert [message["role"] for message in there["messages"]] == ["system", "system", "user"]
    assert '"properties":{"a"' in there["messages"][1]["content"]
    assert elsewhere["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize("counts", [[], "many", {"prompt_tokens": 1e30}, {"prompt_tokens": {}}, 5])
def test_counts_that_are_none_cost_nobody_the_answer(counts: Any) -> None:
    events = read(OPENAI, PROMPT, GPT, [chunk({"content": "x"}), chunk({}, "stop", usage=counts)])

    assert text_of(events) == "x"
    assert end_of(events).usage.output_tokens == 0


@pytest.mark.parametrize(
    "delta", [None, {}, {"role": "assistant"}, {"content": None}, {"content": "", "tool_calls": None}]
)
def test_pieces_without_anything_say_nothing(delta: Any) -> None:
    events = read(
        OPENAI, PROMPT, GPT, [chunk(delta), {"choices": None}, {"choices": []}, {}, chunk({"content": "x"}, "stop")]
    )

    assert text_of(events) == "x"


def event(type_: str, **fields: Any) -> JsonObject:
    return {"type": type_, **fields}


def test_items_whose_ids_change_with_every_event_are_known_by_their_place() -> None:
    def item(id: str, call_id: str, arguments: str = "") -> JsonObject:
        return {
            "type": "function_call",
            "id": id,
            "call_id": call_id,
            "name": f"tool_{call_id}",
            "arguments": arguments,
        }

    events = read(
        RESPONSES,
        PROMPT,
        target_of(RESPONSES, "gpt-5"),
        [
            event("response.output_item.added", output_index=1, item=item("i1", "b")),
            event("response.output_item.added", output_index=0, item=item("i2", "a")),
            event("response.function_call_arguments.delta", output_index=1, item_id="i3", delta='{"n":'),
            event("response.function_call_arguments.delta", output_index=0, item_id="i4", delta="{}"),
            event("response.function_call_arguments.delta", output_index=1, item_id="i5", delta="1}"),
            event("response.function_call_arguments.done", output_index=1, item_id="i6", arguments='{"n":1}'),
            event("response.output_item.done", output_index=1, item=item("i7", "b", '{"n":1}')),
            event("response.output_item.done", output_index=0, item=item("i8", "a", "{}")),
            event("response.completed", response={"output": [item("i9", "a", "{}"), item("i10", "b", '{"n":1}')]}),
        ],
    )

    assert sorted((one.call_id, one.tool, str(one.arguments)) for one in calls_of(events)) == [
        ("a", "tool_a", "{}"),
        ("b", "tool_b", "{'n': 1}"),
    ]


def test_items_that_are_all_at_one_place_are_known_by_their_ids() -> None:
    def item(id: str) -> JsonObject:
        return {"type": "function_call", "id": id, "call_id": f"call_{id}", "name": id}

    events = read(
        RESPONSES,
        PROMPT,
        target_of(RESPONSES, "gpt-5"),
        [
            event("response.output_item.added", output_index=0, item=item("one")),
            event("response.function_call_arguments.delta", output_index=0, item_id="one", delta='{"n":1}'),
            event("response.output_item.added", output_index=0, item=item("two")),
            event("response.function_call_arguments.delta", output_index=0, item_id="two", delta='{"n":2}'),
            event("response.completed", response={}),
        ],
    )

    assert [(one.tool, one.arguments) for one in calls_of(events)] == [("one", {"n": 1}), ("two", {"n": 2})]


def test_a_refusal_that_comes_whole_is_one() -> None:
    declined = {"type": "message", "id": "m", "content": [{"type": "refusal", "refusal": "No."}]}

    events = read(
        RESPONSES, PROMPT, target_of(RESPONSES, "gpt-5"), [event("response.completed", response={"output": [declined]})]
    )

    assert (text_of(events), end_of(events).stop) == ("No.", StopReason.REFUSED)


def test_a_message_that_comes_whole_as_an_item_is_said() -> None:
    message = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "Hi"}]}

    events = read(
        RESPONSES,
        PROMPT,
        target_of(RESPONSES, "gpt-5"),
        [
            event("response.output_item.done", output_index=0, item=message),
            event("response.completed", response={"output": []}),
        ],
    )

    assert text_of(events) == "Hi"


def test_fields_of_claude_that_are_null_are_empty() -> None:
    block = {"type": "thinking", "thinking": None, "signature": None, "text": None, "id": None, "name": None}
    events = read(
        ANTHROPIC,
        PROMPT,
        CLAUDE,
        [
            event("message_start", message={"usage": {"input_tokens": 4, "output_tokens": -1}}),
            event("content_block_start", index=0, content_block=block),
            event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "Hm.", "text": None}),
            event("content_block_stop", index=0),
            event("content_block_start", index=1, content_block={"type": "text", "text": None}),
            event("content_block_delta", index=1, delta={"type": "text_delta", "text": "Hi", "partial_json": None}),
            event(
                "message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 3.0, "cache_creation": {}}
            ),
            event("message_stop"),
        ],
    )

    assert (thought_of(events), text_of(events)) == ("Hm.", "Hi")
    assert end_of(events).usage == Usage(input_tokens=4, output_tokens=3)


def test_arguments_that_come_at_once_and_then_in_pieces_are_not_doubled() -> None:
    block = {"type": "tool_use", "id": "a", "name": "x", "input": {"n": 1}}
    events = read(
        ANTHROPIC,
        PROMPT,
        CLAUDE,
        [
            event("message_start", message={}),
            event("content_block_start", index=0, content_block=block),
            event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": '{"n":'}),
            event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": " 1}"}),
            event("content_block_stop", index=0),
            event("message_delta", delta={"stop_reason": "tool_use"}),
            event("message_stop"),
        ],
    )

    assert [(one.arguments, one.malformed) for one in calls_of(events)] == [({"n": 1}, "")]


@pytest.mark.parametrize("count", [-1, 1.5, "five", 1e30, []])
def test_counts_of_gemini_that_are_none_cost_nobody_the_answer(count: Any) -> None:
    said = {"candidates": [{"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"}]}

    events = read(
        GEMINI, PROMPT, FLASH, [{**said, "usageMetadata": {"promptTokenCount": count, "candidatesTokenCount": 2}}]
    )

    assert text_of(events) == "Hi"
    assert end_of(events).usage.output_tokens == 2


@pytest.mark.parametrize(
    ("body", "models"),
    [
        (b'[{"id": "b"}, {"id": "a", "type": "chat"}]', ["a", "b"]),
        (b'{"object": "list", "data": null}', []),
        (b'{"data": [{"id": "a"}, {"id": "a"}]}', ["a"]),
    ],
)
def test_a_list_of_models_may_be_bare_or_empty(body: bytes, models: list[str]) -> None:
    assert OPENAI.listed(body) == models


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b'{"message": "Model unloaded."}', FailureKind.UNAVAILABLE),
        (b'{"error": {"message": "Slow down", "code": 429}}', FailureKind.RATE_LIMIT),
        (b"oops", FailureKind.UNAVAILABLE),
    ],
)
def test_an_event_that_is_called_an_error_is_one(data: bytes, kind: FailureKind) -> None:
    with pytest.raises(ProviderFailed) as caught:
        list(OPENAI.reader(PROMPT, GPT).feed("error", data))

    assert caught.value.kind is kind


def test_what_never_ends_is_not_kept() -> None:
    name = call(0, None, name="n" * 100)
    with pytest.raises(ProviderFailed) as caught:
        read(OPENAI, PROMPT, GPT, (name if turn % 2 else call(0, None, name="m") for turn in range(10_000)))
    assert "too long" in caught.value.detail

    begun = ({"type": "content_block_start", "index": index, "content_block": {}} for index in range(10_000))
    with pytest.raises(ProviderFailed) as caught:
        read(ANTHROPIC, PROMPT, CLAUDE, begun)
    assert "too many parts" in caught.value.detail


def test_blanks_without_end_are_passed_on() -> None:
    reader = OPENAI.reader(PROMPT, GPT)
    blank = b'{"choices":[{"delta":{"content":"          "}}]}'

    said = [event for _ in range(1000) for event in reader.feed("", blank)]

    assert len(text_of(said)) == 10_000
