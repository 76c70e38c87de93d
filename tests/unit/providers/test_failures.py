"""Of which kind an error is, by its status and by the words of each maker."""

from datetime import timedelta

import pytest

from palyra.providers.base import FailureKind
from palyra.providers.failures import kind_of, kind_of_error, retry_after


@pytest.mark.parametrize(
    "words",
    [
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        "prompt token count of 150000 exceeds the limit of 128000",
        "Invalid request: Your request exceeded model token limit: 8192 (requested: 9000)",
        "invalid params, context window exceeds limit",
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
        "the request exceeds the available context size, try increasing it",
        "The number of tokens to keep from the initial prompt is greater than the context length.",
        "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000 `inputs` tokens",
        "input length and `max_tokens` exceed context limit: 197203 + 21333 > 200000",
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]",
        "Prompt exceeds max length",
        "prompt is too long: 213462 tokens > 200000 maximum",
        "Input is too long for requested model.",
        "too many tokens: total number of tokens in the prompt cannot exceed 4081",
        "Please reduce the length of the messages or completion.",
    ],
)
def test_a_conversation_that_is_too_long_is_known_by_everybodys_words(words: str) -> None:
    assert kind_of(400, words) is FailureKind.CONTEXT_TOO_LONG
    assert kind_of_error(words, "") is FailureKind.CONTEXT_TOO_LONG


@pytest.mark.parametrize(
    ("status", "words", "kind"),
    [
        (
            400,
            "Incorrect API key provided: xa***. You can obtain an API key from https://console.x.ai.",
            FailureKind.AUTH,
        ),
        (400, "API key not valid. Please pass a valid API key.", FailureKind.AUTH),
        (400, "Unknown parameter: 'stream_options'.", FailureKind.MALFORMED),
        (401, "", FailureKind.AUTH),
        (403, "", FailureKind.PERMISSION),
        (404, "", FailureKind.PERMISSION),
        (409, "", FailureKind.UNAVAILABLE),
        (413, "", FailureKind.CONTEXT_TOO_LONG),
        (424, "Request failed during generation", FailureKind.UNAVAILABLE),
        (429, "Rate limit reached: tokens per minute", FailureKind.RATE_LIMIT),
        (498, "Flex tier capacity exceeded", FailureKind.UNAVAILABLE),
        (503, "", FailureKind.UNAVAILABLE),
        (529, "Overloaded", FailureKind.UNAVAILABLE),
    ],
)
def test_a_status_means_what_it_should(status: int, words: str, kind: FailureKind) -> None:
    assert kind_of(status, words) is kind


@pytest.mark.parametrize("value", ["-5", "NaN", "1e9", "inf", "", "5 seconds", "Sun, 99 Nov 1994 08:49:37 GMT"])
def test_what_is_no_wait_is_none(value: str) -> None:
    assert retry_after({"retry-after": value, "date": "Sun, 06 Nov 1994 08:49:37 GMT"}) == timedelta(0)
