"""Anthropic Messages."""

import json

from palyra.core.model.catalog import DialectName
from palyra.core.model.prompt import StopReason
from palyra.core.spending.usage import Usage
from palyra.providers.base import FailureKind
from tests.contract.providers.wire import Heard, Refusal, Wire

MODEL = "claude-sonnet-4-6"


def _event(type_: str, **more: object) -> bytes:
    return f"event: {type_}\ndata: {json.dumps({'type': type_, **more})}\n\n".encode()


def _piece(index: int, type_: str, **more: str) -> bytes:
    return _event("content_block_delta", index=index, delta={"type": type_, **more})


def _error(type_: str, message: str) -> object:
    return {"type": "error", "error": {"type": type_, "message": message}, "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy"}


WIRE = Wire(
    dialect=DialectName.ANTHROPIC,
    model=MODEL,
    path="/v1/messages",
    key_header="x-api-key",
    turns={
        "text": Heard(text="Grüße aus Wien 🎻.", usage=Usage(input_tokens=19, output_tokens=10)),
        "calls": Heard(
            text="I will\N{NO-BREAK SPACE}look.",
            calls=(("files.read", {"path": "a.txt"}), ("time.now", {"zone": "Europe/Wien"})),
            stop=StopReason.CALLS,
            usage=Usage(input_tokens=82, output_tokens=34),
        ),
        "reasoning": Heard(
            text="Four.",
            reasoning="Two and two.",
            shown_again=({"model": MODEL, "signature": "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pk"},),
            usage=Usage(input_tokens=12, output_tokens=40),
        ),
        "hidden_reasoning": Heard(
            text="Let me see.",
            calls=(("time.now", {}),),
            reasoning="Now.",
            shown_again=(
                {"model": MODEL, "signature": "EosnCkYICxIM"},
                {"model": MODEL, "redacted": "EmwKAhgBEgy3va3pzix"},
                {"model": MODEL, "signature": "ErUBCkYI", "after": [11, 0]},
            ),
            stop=StopReason.CALLS,
            usage=Usage(input_tokens=12, output_tokens=55),
        ),
        "cached": Heard(
            text="Yes.",
            usage=Usage(input_tokens=2006, output_tokens=300, cached_tokens=1920, cache_write_tokens=80),
        ),
        "refusal": Heard(
            text="I can't help with that.", stop=StopReason.REFUSED, usage=Usage(input_tokens=20, output_tokens=9)
        ),
        "length": Heard(text="Once upon", stop=StopReason.LENGTH, usage=Usage(input_tokens=9, output_tokens=2)),
        "counts_late": Heard(text="Here.", usage=Usage(input_tokens=9, output_tokens=4)),
    },
    refusals=(
        Refusal(FailureKind.AUTH, 401, _error("authentication_error", "invalid x-api-key")),
        Refusal(FailureKind.PERMISSION, 403, _error("permission_error", "Your key may not use this resource.")),
        Refusal(FailureKind.PERMISSION, 404, _error("not_found_error", "model: claude-x")),
        Refusal(FailureKind.RATE_LIMIT, 429, _error("rate_limit_error", "This would exceed your rate limit.")),
        Refusal(FailureKind.QUOTA, 400, _error("invalid_request_error", "Your credit balance is too low to go on.")),
        Refusal(FailureKind.QUOTA, 402, _error("billing_error", "There is an issue with your billing.")),
        Refusal(
            FailureKind.CONTEXT_TOO_LONG,
            400,
            _error("invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum"),
        ),
        Refusal(
            FailureKind.CONTEXT_TOO_LONG, 413, _error("request_too_large", "Request exceeds the maximum allowed size.")
        ),
        Refusal(
            FailureKind.CONTENT_POLICY,
            400,
            _error("invalid_request_error", "Output blocked by content filtering policy"),
        ),
        Refusal(FailureKind.MALFORMED, 400, _error("invalid_request_error", "max_tokens: must be at least 1")),
        Refusal(FailureKind.TIMEOUT, 504, _error("timeout_error", "Request timed out.")),
        Refusal(FailureKind.UNAVAILABLE, 500, _error("api_error", "Internal server error")),
        Refusal(FailureKind.UNAVAILABLE, 529, _error("overloaded_error", "Overloaded")),
    ),
    begin=(
        _event("message_start", message={"role": "assistant", "content": [], "usage": {"input_tokens": 5}})
        + _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        + _event("content_block_start", index=1, content_block={"type": "thinking", "thinking": ""})
        + _event("content_block_start", index=2, content_block={"type": "tool_use", "id": "t", "name": "files_read"})
    ),
    piece=_piece(0, "text_delta", text="la "),
    thought=_piece(1, "thinking_delta", thinking="hm " * 1000),
    sealed=_event("content_block_start", index=5, content_block={"type": "redacted_thinking", "data": "x" * 40_000})
    + _event("content_block_stop", index=5),
    argument=_piece(2, "input_json_delta", partial_json="x" * 4000),
    error_inside=lambda words: _event("error", error={"type": "api_error", "message": words}),
    models={"data": [{"type": "model", "id": "two"}, {"type": "model", "id": "one"}], "has_more": False},
)
