"""How many tokens a message takes in a prompt."""

from collections.abc import Callable

import msgspec

from palyra.core.model.prompt import Message, estimate_tokens
from palyra.core.text.token_bounds import max_tokens

MESSAGE_TOKENS = 4
"""The tokens of a message in addition to its text: role and separators."""
IMAGE_TOKENS = 1600
"""The tokens of an image: what providers state for one megapixel; they scale larger images down."""

_encode = msgspec.json.Encoder()


def tokens_of(message: Message) -> int:
    """Estimate the tokens of the message in a prompt."""
    return _tokens(message, estimate_tokens)


def max_tokens_of(message: Message) -> int:
    """Return the maximum number of tokens of the message in a prompt."""
    return _tokens(message, max_tokens)


def _tokens(message: Message, count: Callable[[str], int]) -> int:
    tokens = count(message.text) + MESSAGE_TOKENS + IMAGE_TOKENS * len(message.images)
    if message.calls:
        tokens += count(_encode.encode(message.calls).decode())
    if message.reasoning:
        tokens += count(_encode.encode(message.reasoning).decode())
    return tokens
