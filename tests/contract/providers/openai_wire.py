"""OpenAI Chat Completions, and those who speak it too."""

import json

from palyra.core.model.catalog import DialectName
from palyra.core.model.prompt import StopReason
from palyra.core.spending.usage import Usage
from palyra.providers.base import FailureKind
from tests.contract.providers.wire import Heard, Refusal, Wire

CALLS = (("files.read", {"path": "a.txt"}), ("time.now", {"zone": "Europe/Wien"}))
BY = "acme/gpt-4o"


def _event(delta: object, **more: object) -> bytes:
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}], **more}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _error(message: str, type_: str, code: str | None) -> object:
    return {"error": {"message": message, "type": type_, "param": None, "code": code}}


WIRE = Wire(
    dialect=DialectName.OPENAI,
    model="gpt-4o",
    path="/v1/chat/completions",
    key_header="authorization",
    turns={
        "text": Heard(text="Grüße aus Wien 🎻.", usage=Usage(input_tokens=19, output_tokens=10)),
        "calls": Heard(calls=CALLS, stop=StopReason.CALLS, usage=Usage(input_tokens=82, output_tokens=34)),
        "reasoning": Heard(
            text="Four.",
            reasoning="Two and two.",
            shown_again=({"field": "reasoning_content", "by": BY},),
            usage=Usage(input_tokens=12, output_tokens=40, reasoning_tokens=36),
        ),
        "cached": Heard(text="Yes.", usage=Usage(input_tokens=2006, output_tokens=300, cached_tokens=1920)),
        "refusal": Heard(
            text="I can't help with that.",
            stop=StopReason.REFUSED,
            usage=Usage(input_tokens=20, output_tokens=9),
        ),
        "length": Heard(text="Once upon", stop=StopReason.LENGTH, usage=Usage(input_tokens=9, output_tokens=2)),
        "ollama": Heard(
            calls=(("files.read", {"path": "a.txt"}), ("time.now", {})),
            stop=StopReason.CALLS,
            usage=Usage(input_tokens=30, output_tokens=12),
        ),
        "no_index": Heard(
            calls=(("files.read", {"path": "a.txt"}), ("time.now", {})),
            stop=StopReason.CALLS,
            usage=Usage(input_tokens=5, output_tokens=5),
        ),
        "deepseek": Heard(text="Hi", usage=Usage(input_tokens=100, output_tokens=7, cached_tokens=64)),
        "openrouter": Heard(
            text="Seen.",
            reasoning="Let me see.",
            shown_again=(
                {
                    "field": "reasoning_details",
                    "details": [
                        {
                            "type": "reasoning.text",
                            "format": "anthropic-claude-v1",
                            "index": 0,
                            "signature": "c2lnbmF0dXJl",
                            "text": "Let me see.",
                        }
                    ],
                    "by": BY,
                },
            ),
            usage=Usage(input_tokens=40, output_tokens=25, reasoning_tokens=12),
        ),
    },
    refusals=(
        Refusal(
            FailureKind.AUTH, 401, _error("Incorrect API key provided.", "invalid_request_error", "invalid_api_key")
        ),
        Refusal(FailureKind.PERMISSION, 403, _error("Country not supported.", "request_forbidden", None)),
        Refusal(
            FailureKind.PERMISSION,
            404,
            _error("The model `gpt-x` does not exist.", "invalid_request_error", "model_not_found"),
        ),
        Refusal(FailureKind.RATE_LIMIT, 429, _error("Rate limit reached.", "requests", "rate_limit_exceeded")),
        Refusal(
            FailureKind.QUOTA,
            429,
            _error("You exceeded your current quota.", "insufficient_quota", "insufficient_quota"),
        ),
        Refusal(FailureKind.QUOTA, 402, _error("Insufficient Balance", "unknown_error", "invalid_request_error")),
        Refusal(
            FailureKind.CONTEXT_TOO_LONG,
            400,
            _error(
                "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000.",
                "invalid_request_error",
                "context_length_exceeded",
            ),
        ),
        Refusal(
            FailureKind.CONTEXT_TOO_LONG,
            400,
            {
                "error": {
                    "code": 400,
                    "message": "the request exceeds the available context size. try increasing it",
                    "type": "exceed_context_size_error",
                }
            },
        ),
        Refusal(
            FailureKind.CONTENT_POLICY,
            400,
            _error("The response was filtered.", "invalid_request_error", "content_filter"),
        ),
        Refusal(FailureKind.MALFORMED, 400, _error("Unknown parameter: 'x'.", "invalid_request_error", None)),
        Refusal(FailureKind.MALFORMED, 422, {"detail": [{"loc": ["body"], "msg": "field required"}]}),
        Refusal(FailureKind.PERMISSION, 404, {"error": "model 'nope' not found, try pulling it first"}),
        Refusal(FailureKind.TIMEOUT, 504, _error("Gateway timeout", "server_error", None)),
        Refusal(FailureKind.UNAVAILABLE, 500, _error("The server had an error.", "server_error", None)),
        Refusal(FailureKind.UNAVAILABLE, 503, _error("Overloaded.", "server_error", None)),
    ),
    piece=_event({"content": "la "}),
    thought=_event({"reasoning_content": "hm " * 1000}),
    sealed=_event({"reasoning_details": [{"type": "reasoning.encrypted", "data": "x" * 40_000}]}),
    argument=_event({"tool_calls": [{"index": 0, "function": {"arguments": "x" * 4000}}]}),
    begin=_event({"role": "assistant", "content": ""}),
    error_inside=lambda words: b"data: " + json.dumps(_error(words, "server_error", None)).encode() + b"\n\n",
    models={"object": "list", "data": [{"id": "two", "object": "model"}, {"id": "one", "object": "model"}]},
)
