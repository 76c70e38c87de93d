"""What Gemini's answers mean, piece by piece, and what its refusals do."""

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from palyra.core.model.prompt import ReasoningDelta, StopReason
from palyra.core.tool import JsonObject
from palyra.providers.base import FailureKind, ProviderFailed
from palyra.providers.dialects.gemini import DIALECT
from tests.unit.providers.conversation import a_call, a_prompt, assistant, result
from tests.unit.providers.reading import calls_of, end_of, kept, read, sent, target_of, text_of, thought_of

MODEL = "gemini-3.6-flash"
TARGET = target_of(DIALECT, MODEL)
PROMPT = a_prompt("What is in my files?")


def piece(*parts: JsonObject, finish: str | None = None, **counts: int) -> JsonObject:
    candidate: JsonObject = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    usage = {"promptTokenCount": 20, "totalTokenCount": 25, **counts}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": MODEL, "responseId": "r"}


def text(words: str, **more: Any) -> JsonObject:
    return {"text": words, **more}


def call(name: str, args: Any = None, **more: Any) -> JsonObject:
    function: JsonObject = {"name": name}
    if args is not None:
        function["args"] = args
    return {"functionCall": function, **more}


def test_a_text_comes_as_it_is_written() -> None:
    events = read(DIALECT, PROMPT, TARGET, [piece(text("Hel")), piece(text("lo")), piece(text("!"), finish="STOP")])
    assert text_of(events) == "Hello!"
    assert end_of(events).stop is StopReason.END


def test_the_counts_are_the_last_ones_and_thoughts_are_output() -> None:
    counts = {"candidatesTokenCount": 5, "thoughtsTokenCount": 40, "cachedContentTokenCount": 12}
    pieces = [piece(text("x"), candidatesTokenCount=1), piece(text("y"), finish="STOP", **counts)]
    usage = end_of(read(DIALECT, PROMPT, TARGET, pieces)).usage
    assert (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens) == (20, 45, 12, 40)


def test_calls_come_under_our_names_with_or_without_ids() -> None:
    with_id = {"functionCall": {"name": "files_list", "args": {"folder": "a"}, "id": "fc-1"}}
    events = read(DIALECT, PROMPT, TARGET, [piece(call("files_read", {"path": "x"}), with_id), piece(finish="STOP")])
    first, second = calls_of(events)
    assert (first.tool, first.arguments, first.call_id) == ("files.read", {"path": "x"}, "")
    assert (second.tool, second.arguments, second.call_id) == ("files.list", {"folder": "a"}, "fc-1")
    assert end_of(events).stop is StopReason.CALLS


def test_arguments_that_are_none_or_no_object() -> None:
    events = read(DIALECT, PROMPT, TARGET, [piece(call("files_list"), call("files_read", [1]), finish="STOP")])
    first, second = calls_of(events)
    assert (first.arguments, first.malformed) == ({}, "")
    assert second.arguments == {}
    assert "not a JSON object" in second.malformed


def test_thoughts_are_kept_apart_and_signatures_with_what_they_sign() -> None:
    events = read(
        DIALECT,
        PROMPT,
        TARGET,
        [
            piece(text("Let me ", thought=True)),
            piece(text("think.", thought=True)),
            piece(text("I look.")),
            piece(call("files_list", {}, thoughtSignature="c0"), call("files_read", {})),
            piece(text("", thoughtSignature="t"), finish="STOP"),
        ],
    )
    assert text_of(events) == "I look."
    assert thought_of(events) == "Let me think."
    first, second = kept(events)
    assert (first.text, first.data) == ("Let me think.", {"model": MODEL, "signature": "c0", "call": 0})
    assert (second.text, second.data) == ("", {"model": MODEL, "signature": "t", "text": 7})
    # What was signed is known before the call is.
    kinds = [type(event).__name__ for event in events]
    assert kinds.index("CallProposed") > next(
        number for number, event in enumerate(events) if isinstance(event, ReasoningDelta) and event.dialect
    )


def test_what_was_signed_goes_back_as_it_came() -> None:
    parts = [
        text("I look."),
        call("files_list", {"folder": "a"}, thoughtSignature="c0"),
        call("files_read", {"path": "b"}),
    ]
    events = read(DIALECT, PROMPT, TARGET, [piece(*parts, finish="STOP")])
    calls = tuple(
        a_call(call.tool, call.arguments, call_id=str(number)) for number, call in enumerate(calls_of(events))
    )
    message = msgspec.structs.replace(assistant(text_of(events), calls=calls), reasoning=kept(events))
    prompt = a_prompt("go", message, result("r", call_id="0"), result("s", call_id="1"))
    assert sent(DIALECT, prompt, TARGET)["contents"][1]["parts"] == parts


@pytest.mark.parametrize(
    ("finish", "stop"),
    [
        ("STOP", StopReason.END),
        ("MAX_TOKENS", StopReason.LENGTH),
        ("SAFETY", StopReason.REFUSED),
        ("RECITATION", StopReason.REFUSED),
        ("LANGUAGE", StopReason.REFUSED),
        ("BLOCKLIST", StopReason.REFUSED),
        ("PROHIBITED_CONTENT", StopReason.REFUSED),
        ("SPII", StopReason.REFUSED),
        ("OTHER", StopReason.END),
        ("SOMETHING_NEW", StopReason.END),
    ],
)
def test_every_reason_to_stop_has_its_meaning(finish: str, stop: StopReason) -> None:
    assert end_of(read(DIALECT, PROMPT, TARGET, [piece(text("x")), piece(finish=finish)])).stop is stop


@pytest.mark.parametrize("finish", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MISSING_THOUGHT_SIGNATURE"])
def test_a_call_that_it_could_not_make_is_a_failure(finish: str) -> None:
    with pytest.raises(ProviderFailed, match="made a tool call") as failed:
        read(DIALECT, PROMPT, TARGET, [piece(finish=finish)])
    assert failed.value.kind is FailureKind.MALFORMED
    assert failed.value.is_well


def test_who_stops_without_a_word_and_without_a_reason_has_failed() -> None:
    with pytest.raises(ProviderFailed) as failed:
        read(DIALECT, PROMPT, TARGET, [piece(finish="OTHER")])
    assert failed.value.kind is FailureKind.UNAVAILABLE


def test_a_prompt_that_is_blocked_is_against_its_rules() -> None:
    blocked = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 9}}
    with pytest.raises(ProviderFailed, match="PROHIBITED_CONTENT") as failed:
        read(DIALECT, PROMPT, TARGET, [blocked])
    assert failed.value.kind is FailureKind.CONTENT_POLICY


def test_pieces_without_anything_are_passed_over() -> None:
    empty: list[JsonObject] = [{"usageMetadata": {"promptTokenCount": 1}}, {"candidates": [{}]}, {}]
    pieces = [*empty, piece(text("x"), finish="STOP")]
    assert text_of(read(DIALECT, PROMPT, TARGET, pieces)) == "x"


@pytest.mark.parametrize("pieces", [[], [piece(text("Half an"))]])
def test_an_answer_that_breaks_off_is_none(pieces: list[JsonObject]) -> None:
    with pytest.raises(ProviderFailed, match="closed the stream") as failed:
        read(DIALECT, PROMPT, TARGET, pieces)
    assert failed.value.kind is FailureKind.NETWORK


def test_an_error_within_the_stream_is_told_by_its_status() -> None:
    wrong = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
    with pytest.raises(ProviderFailed, match="overloaded") as failed:
        read(DIALECT, PROMPT, TARGET, [piece(text("Half")), wrong])
    assert failed.value.kind is FailureKind.UNAVAILABLE


def info(kind: str, **more: Any) -> JsonObject:
    return {"@type": f"type.googleapis.com/google.rpc.{kind}", **more}


def quota(name: str) -> JsonObject:
    return info("QuotaFailure", violations=[{"quotaId": name, "quotaValue": "20"}])


@pytest.mark.parametrize(
    ("code", "status", "message", "details", "kind"),
    [
        (400, "INVALID_ARGUMENT", "API key not valid.", [info("ErrorInfo", reason="API_KEY_INVALID")], "auth"),
        (401, "UNAUTHENTICATED", "Request is missing a credential.", [], "auth"),
        (403, "PERMISSION_DENIED", "Not yours.", [], "permission"),
        (404, "NOT_FOUND", "models/gemini-0 is not found", [], "permission"),
        (400, "FAILED_PRECONDITION", "User location is not supported for the API use.", [], "permission"),
        (
            400,
            "INVALID_ARGUMENT",
            "The input token count (3475108) exceeds the maximum number of tokens allowed (1048576).",
            [],
            "context_too_long",
        ),
        (400, "INVALID_ARGUMENT", "Unknown name temprature", [], "malformed"),
        (429, "RESOURCE_EXHAUSTED", "Quota exceeded", [quota("RequestsPerMinutePerModel-FreeTier")], "rate_limit"),
        (429, "RESOURCE_EXHAUSTED", "Quota exceeded", [quota("RequestsPerDayPerModel-FreeTier")], "quota"),
        (429, "RESOURCE_EXHAUSTED", "Quota exceeded, limit: 0", [quota("RequestsPerMinute")], "quota"),
        (429, "RESOURCE_EXHAUSTED", "Please check your plan and billing details.", [info("Help")], "quota"),
        (429, "RESOURCE_EXHAUSTED", "Resource exhausted. Please try again later.", [], "rate_limit"),
        (500, "INTERNAL", "An internal error has occurred.", [], "unavailable"),
        (503, "UNAVAILABLE", "The model is overloaded.", [], "unavailable"),
        (504, "DEADLINE_EXCEEDED", "The request timed out.", [], "timeout"),
    ],
)
@pytest.mark.parametrize("in_a_list", [False, True])
def test_a_refusal_is_classified(
    code: int, status: str, message: str, details: list[JsonObject], kind: str, in_a_list: bool
) -> None:
    refusal: Any = {"error": {"code": code, "status": status, "message": message, "details": details}}
    body = json.dumps([refusal] if in_a_list else refusal).encode()
    assert DIALECT.refused(code, {}, body, TARGET).kind == kind


def test_the_wait_that_is_asked_for_is_in_the_details() -> None:
    details = [quota("PerMinute"), info("RetryInfo", retryDelay="36.5s")]
    body = json.dumps({"error": {"status": "RESOURCE_EXHAUSTED", "details": details}}).encode()
    assert DIALECT.refused(429, {}, body, TARGET).retry_after == timedelta(seconds=36.5)


@pytest.mark.parametrize("body", [b"<html>oops</html>", b"", b"[]", b'{"error": 1}', b"[" * 9000, b'{"error": "\xff"}'])
def test_what_no_such_server_would_send_is_told_as_that(body: bytes) -> None:
    assert DIALECT.refused(503, {}, body, TARGET).kind is FailureKind.UNAVAILABLE
    assert DIALECT.refused(429, {"retry-after": "3"}, body, TARGET).kind is FailureKind.RATE_LIMIT


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gemini-2.5-pro", "/models/gemini-2.5-pro"),
        ("models/gemini-2.5-pro", "/models/gemini-2.5-pro"),
        ("tunedModels/mine", "/tunedModels/mine"),
        ("../../v1/files?x=", "/models/..%2F..%2Fv1%2Ffiles%3Fx%3D"),
    ],
)
def test_a_model_is_asked_where_it_is_and_nowhere_else(model: str, path: str) -> None:
    request = DIALECT.request(PROMPT, target_of(DIALECT, model))
    assert request.path == f"{path}:streamGenerateContent?alt=sse"


@pytest.mark.parametrize(
    ("model", "window", "longest", "tools", "reasoning"),
    [
        ("gemini-3.6-flash", 1_048_576, 65_536, "native", True),
        ("gemini-flash-latest", 1_048_576, 65_536, "native", True),
        ("gemini-2.5-flash-lite", 1_048_576, 65_536, "native", True),
        ("gemini-2.0-flash-001", 1_048_576, 8_192, "native", False),
        ("gemini-2.5-flash-image", 32_768, 8_192, "none", False),
        ("gemma-3-27b-it", 32_768, 8_192, "none", False),
    ],
)
def test_models_are_known_by_their_names(model: str, window: int, longest: int, tools: str, reasoning: bool) -> None:
    card = DIALECT.model_card(model)
    assert (card.window_tokens, card.max_output_tokens, card.tools, card.reasoning) == (
        window,
        longest,
        tools,
        reasoning,
    )
    assert None not in msgspec.structs.astuple(card)


def test_models_that_can_be_talked_to_are_listed() -> None:
    body = json.dumps(
        {
            "models": [
                {"name": "models/gemini-2.5-pro", "supportedGenerationMethods": ["generateContent", "countTokens"]},
                {"name": "models/embedding-001", "supportedGenerationMethods": ["embedContent"]},
                {"name": "models/odd"},
            ]
        }
    ).encode()
    assert DIALECT.listed(body) == ["gemini-2.5-pro"]
    for wrong in (b"[]", b"<html>", b"[" * 9000, b'{"models": [{"name": 1}]}'):
        with pytest.raises(msgspec.DecodeError):
            DIALECT.listed(wrong)


def test_the_key_goes_into_its_own_header() -> None:
    assert DIALECT.authorised("k") == {"x-goog-api-key": "k"}
