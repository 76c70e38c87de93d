"""What Claude's answers mean, event by event, and what its refusals do."""

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from palyra.core.model.prompt import GenerationOptions, ReasoningDelta, StopReason
from palyra.core.tool import JsonObject
from palyra.providers.base import FailureKind, ProviderFailed
from palyra.providers.dialects.anthropic import DIALECT
from tests.unit.providers.conversation import a_call, a_prompt, assistant, result
from tests.unit.providers.reading import calls_of, end_of, kept, read, sent, target_of, text_of, thought_of

MODEL = "claude-sonnet-4-6"
TARGET = target_of(DIALECT, MODEL)
PROMPT = a_prompt("What is in my files?")
PING: JsonObject = {"type": "ping"}
STOP: JsonObject = {"type": "message_stop"}


def start(**usage: int) -> JsonObject:
    counts = {"input_tokens": 25, "output_tokens": 1, **usage}
    return {"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "content": [], "usage": counts}}


def block(index: int, **content: Any) -> JsonObject:
    return {"type": "content_block_start", "index": index, "content_block": content}


def delta(index: int, kind: str, **content: str) -> JsonObject:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **content}}


def closed(index: int) -> JsonObject:
    return {"type": "content_block_stop", "index": index}


def ends(reason: str | None, **usage: int) -> JsonObject:
    counts = {"output_tokens": 15, **usage}
    return {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": counts}


def said(*words: str, index: int = 0) -> list[JsonObject]:
    pieces = [delta(index, "text_delta", text=word) for word in words]
    return [block(index, type="text", text=""), *pieces, closed(index)]


def called(index: int, name: str, *pieces: str, id: str = "toolu_1") -> list[JsonObject]:
    parts = [delta(index, "input_json_delta", partial_json=piece) for piece in pieces]
    return [block(index, type="tool_use", id=id, name=name, input={}), *parts, closed(index)]


def answer(*events: JsonObject | list[JsonObject]) -> list[JsonObject]:
    return [event for part in events for event in (part if isinstance(part, list) else [part])]


def test_a_text_comes_as_it_is_written() -> None:
    events = read(DIALECT, PROMPT, TARGET, answer(start(), PING, said("Hel", "lo", "!"), ends("end_turn"), STOP))
    assert text_of(events) == "Hello!"
    assert len(events) == 4
    assert end_of(events).stop is StopReason.END


def test_calls_are_put_together_and_come_whole_under_our_names() -> None:
    events = read(
        DIALECT,
        PROMPT,
        TARGET,
        answer(
            start(),
            said("Let me look."),
            called(1, "files_read", "", '{"pa', 'th": "a.t', 'xt"}', id="toolu_1"),
            called(2, "files_list", id="toolu_2"),
            ends("tool_use"),
            STOP,
        ),
    )
    first, second = calls_of(events)
    assert (first.tool, first.arguments, first.malformed) == ("files.read", {"path": "a.txt"}, "")
    assert (second.tool, second.arguments) == ("files.list", {})
    assert (first.call_id, second.call_id) == ("toolu_1", "toolu_2")
    assert end_of(events).stop is StopReason.CALLS


def test_calls_whose_pieces_come_mixed_are_told_apart() -> None:
    events = read(
        DIALECT,
        PROMPT,
        TARGET,
        answer(
            start(),
            block(0, type="tool_use", id="a", name="files_read", input={}),
            block(1, type="tool_use", id="b", name="files_read", input={}),
            delta(1, "input_json_delta", partial_json='{"path": "two'),
            delta(0, "input_json_delta", partial_json='{"path": "one"}'),
            delta(1, "input_json_delta", partial_json='"}'),
            closed(1),
            closed(0),
            ends("tool_use"),
            STOP,
        ),
    )
    assert [call.arguments for call in calls_of(events)] == [{"path": "one"}, {"path": "two"}]


def test_a_call_that_was_cut_off_is_proposed_as_malformed() -> None:
    cut = answer(start(), called(0, "files_read", '{"path": "a'), ends("max_tokens"), STOP)
    events = read(DIALECT, PROMPT, TARGET, cut)
    (call,) = calls_of(events)
    assert call.arguments == {}
    assert "not a JSON object" in call.malformed
    assert end_of(events).stop is StopReason.LENGTH


def test_arguments_that_come_with_the_beginning_of_a_call_count() -> None:
    whole = block(0, type="tool_use", id="a", name="files_read", input={"path": "x"})
    events = read(DIALECT, PROMPT, TARGET, answer(start(), whole, closed(0), ends("tool_use"), STOP))
    assert calls_of(events)[0].arguments == {"path": "x"}


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("end_turn", StopReason.END),
        ("stop_sequence", StopReason.END),
        ("max_tokens", StopReason.LENGTH),
        ("model_context_window_exceeded", StopReason.LENGTH),
        ("pause_turn", StopReason.LENGTH),
        ("refusal", StopReason.REFUSED),
        ("something_new", StopReason.END),
    ],
)
def test_every_reason_to_stop_has_its_meaning(reason: str, stop: StopReason) -> None:
    assert end_of(read(DIALECT, PROMPT, TARGET, answer(start(), said("x"), ends(reason), STOP))).stop is stop


def test_the_input_is_all_of_the_prompt_also_what_the_cache_has() -> None:
    events = answer(
        start(cache_creation_input_tokens=100, cache_read_input_tokens=2000), said("x"), ends("end_turn"), STOP
    )
    usage = end_of(read(DIALECT, PROMPT, TARGET, events)).usage
    assert (usage.input_tokens, usage.cached_tokens, usage.cache_write_tokens) == (2125, 2000, 100)
    assert usage.output_tokens == 15


def test_a_later_count_replaces_an_earlier_one() -> None:
    late = ends("end_turn", input_tokens=40, cache_read_input_tokens=2)
    usage = end_of(read(DIALECT, PROMPT, TARGET, answer(start(input_tokens=0), late, STOP))).usage
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (42, 2, 15)


def test_thoughts_are_kept_apart_with_their_signatures_and_their_places() -> None:
    events = read(
        DIALECT,
        PROMPT,
        TARGET,
        answer(
            start(),
            block(0, type="thinking", thinking="", signature=""),
            delta(0, "thinking_delta", thinking="Hm, "),
            delta(0, "thinking_delta", thinking="files."),
            delta(0, "signature_delta", signature="EqQB"),
            closed(0),
            said("Well.", index=1),
            block(2, type="redacted_thinking", data="EmwK"),
            closed(2),
            called(3, "files_list"),
            ends("tool_use"),
            STOP,
        ),
    )
    assert text_of(events) == "Well."
    assert thought_of(events) == "Hm, files."
    ended = [event for event in events if isinstance(event, ReasoningDelta) and event.dialect]
    assert [event.data for event in ended] == [
        {"model": MODEL, "signature": "EqQB"},
        {"model": MODEL, "redacted": "EmwK", "after": [5, 0]},
    ]


def test_what_was_thought_goes_back_as_it_came() -> None:
    events = read(
        DIALECT,
        PROMPT,
        TARGET,
        answer(
            start(),
            block(0, type="thinking", thinking="", signature=""),
            delta(0, "thinking_delta", thinking="Files."),
            delta(0, "signature_delta", signature="one"),
            closed(0),
            said("Let me see.", index=1),
            block(2, type="thinking", thinking="", signature=""),
            delta(2, "signature_delta", signature="two"),
            closed(2),
            called(3, "files_list", "{}"),
            block(4, type="redacted_thinking", data="three"),
            closed(4),
            called(5, "files_read", '{"path": "b"}'),
            ends("tool_use"),
            STOP,
        ),
    )
    calls = tuple(
        a_call(call.tool, call.arguments, call_id=str(number)) for number, call in enumerate(calls_of(events))
    )
    message = msgspec.structs.replace(assistant(text_of(events), calls=calls), reasoning=kept(events))
    prompt = a_prompt("go", message, result("r", call_id="0"), result("s", call_id="1"))
    assert sent(DIALECT, prompt, TARGET)["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Files.", "signature": "one"},
        {"type": "text", "text": "Let me see."},
        {"type": "thinking", "thinking": "", "signature": "two"},
        {"type": "tool_use", "id": "0", "name": "files_list", "input": {}},
        {"type": "redacted_thinking", "data": "three"},
        {"type": "tool_use", "id": "1", "name": "files_read", "input": {"path": "b"}},
    ]


def test_what_older_models_answer_by_a_tool_is_the_answer() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    prompt = msgspec.structs.replace(PROMPT, options=GenerationOptions(schema=schema))
    old = target_of(DIALECT, "claude-3-5-haiku-20241022")
    tools = json.loads(DIALECT.request(prompt, old).body)["tools"]
    pieces = called(0, tools[-1]["name"], '{"n":', " 1}")
    events = read(DIALECT, prompt, old, answer(start(), pieces, ends("tool_use"), STOP))
    assert text_of(events) == '{"n": 1}'
    assert calls_of(events) == []
    assert end_of(events).stop is StopReason.END


def test_what_may_come_one_day_is_passed_over() -> None:
    events = read(
        DIALECT,
        PROMPT,
        TARGET,
        answer(
            start(),
            {"type": "news", "delta": {"type": "news_delta"}},
            block(0, type="server_tool_use", id="srv", name="web_search", input={}),
            delta(0, "input_json_delta", partial_json='{"q": 1}'),
            closed(0),
            said("x", index=1),
            ends("end_turn"),
            STOP,
        ),
    )
    assert text_of(events) == "x"
    assert calls_of(events) == []


def test_an_answer_that_only_lacks_its_last_event_is_whole() -> None:
    assert end_of(read(DIALECT, PROMPT, TARGET, answer(start(), said("x"), ends("end_turn")))).stop is StopReason.END


@pytest.mark.parametrize("events", [[], [start()], answer(start(), said("Half an"))])
def test_an_answer_that_breaks_off_is_none(events: list[JsonObject]) -> None:
    with pytest.raises(ProviderFailed, match="closed the stream") as failed:
        read(DIALECT, PROMPT, TARGET, events)
    assert failed.value.kind is FailureKind.NETWORK


def test_nothing_counts_after_the_end() -> None:
    events = read(DIALECT, PROMPT, TARGET, answer(start(), said("x"), ends("end_turn"), STOP, said("more"), STOP))
    assert text_of(events) == "x"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("overloaded_error", FailureKind.UNAVAILABLE),
        ("api_error", FailureKind.UNAVAILABLE),
        ("rate_limit_error", FailureKind.RATE_LIMIT),
        ("authentication_error", FailureKind.AUTH),
        ("timeout_error", FailureKind.TIMEOUT),
        ("unheard_of_error", FailureKind.UNAVAILABLE),
    ],
)
def test_an_error_within_the_stream_is_told_by_its_type(error: str, kind: FailureKind) -> None:
    wrong = {"type": "error", "error": {"type": error, "message": "Overloaded"}}
    with pytest.raises(ProviderFailed) as failed:
        read(DIALECT, PROMPT, TARGET, answer(start(), said("Half"), wrong))
    assert failed.value.kind is kind
    assert not failed.value.refused


@pytest.mark.parametrize(
    ("status", "error", "message", "kind"),
    [
        (400, "invalid_request_error", "prompt is too long: 200054 tokens > 200000 maximum", "context_too_long"),
        (400, "invalid_request_error", "input length and `max_tokens` exceed context limit: 1 + 2", "context_too_long"),
        (413, "request_too_large", "Request exceeds the maximum size", "context_too_long"),
        (400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API.", "quota"),
        (400, "invalid_request_error", "You have reached your specified API usage limits.", "quota"),
        (402, "billing_error", "Check your payment details.", "quota"),
        (400, "invalid_request_error", "Output blocked by content filtering policy", "content_policy"),
        (400, "invalid_request_error", "messages.0: all messages must have non-empty content", "malformed"),
        (401, "authentication_error", "invalid x-api-key", "auth"),
        (403, "permission_error", "Your key may not use this.", "permission"),
        (404, "not_found_error", "model: claude-nothing", "permission"),
        (429, "rate_limit_error", "This request would exceed your rate limit", "rate_limit"),
        (500, "api_error", "Internal server error", "unavailable"),
        (504, "timeout_error", "Timed out", "timeout"),
        (529, "overloaded_error", "Overloaded", "unavailable"),
        (418, "teapot_error", "I am one", "malformed"),
    ],
)
def test_a_refusal_is_classified(status: int, error: str, message: str, kind: str) -> None:
    body = json.dumps({"type": "error", "error": {"type": error, "message": message}}).encode()
    failed = DIALECT.refused(status, {"retry-after": "7"}, body, TARGET)
    assert failed.kind == kind
    assert failed.retry_after == timedelta(seconds=7)
    assert (message.rstrip(".") in failed.detail) == (kind != "auth")


@pytest.mark.parametrize(
    "body", [b"<html>oops</html>", b"", b'{"error": 1}', b"[" * 9000, b'{"error": {"type": "\xff"}}']
)
def test_what_no_such_server_would_send_is_told_as_that(body: bytes) -> None:
    assert DIALECT.refused(200, {}, body, TARGET).kind is FailureKind.MALFORMED
    assert DIALECT.refused(503, {}, body, TARGET).kind is FailureKind.UNAVAILABLE


def test_an_error_behind_a_good_status_is_an_error() -> None:
    body = b'{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}'
    assert DIALECT.refused(200, {}, body, TARGET).kind is FailureKind.UNAVAILABLE


@pytest.mark.parametrize(
    ("model", "window", "longest", "reasoning"),
    [
        ("claude-opus-5-5", 1_000_000, 128_000, True),
        ("claude-haiku-5-5", 1_000_000, 64_000, True),
        ("claude-sonnet-4-6", 200_000, 64_000, True),
        ("claude-opus-4-5-20251101", 200_000, 64_000, False),
        ("claude-opus-4-1-20250805", 200_000, 32_000, False),
        ("claude-sonnet-4-20250514", 200_000, 64_000, False),
        ("claude-3-7-sonnet-latest", 200_000, 64_000, False),
        ("claude-3-5-haiku-20241022", 200_000, 8_192, False),
        ("claude-3-haiku-20240307", 200_000, 4_096, False),
        ("kimi-k2", 32_000, 4_096, False),
    ],
)
def test_models_are_known_by_their_names(model: str, window: int, longest: int, reasoning: bool) -> None:
    card = DIALECT.model_card(model)
    assert (card.window_tokens, card.max_output_tokens, card.reasoning) == (window, longest, reasoning)
    assert None not in msgspec.structs.astuple(card)


def test_models_are_listed_by_their_ids() -> None:
    body = b'{"data": [{"type": "model", "id": "claude-b"}, {"id": "claude-a"}], "has_more": false}'
    assert DIALECT.listed(body) == ["claude-a", "claude-b"]
    for wrong in (b"{}", b"<html>", b"[" * 9000, b'{"data": [{"id": 1}]}'):
        with pytest.raises(msgspec.DecodeError):
            DIALECT.listed(wrong)


def test_the_key_goes_into_its_own_header() -> None:
    assert DIALECT.authorised("k")["x-api-key"] == "k"
    assert DIALECT.request(PROMPT, TARGET).path == "/messages"
