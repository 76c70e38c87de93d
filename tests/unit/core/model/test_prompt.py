"""What a model is asked."""

import pytest

from palyra.core.model.prompt import estimate_tokens


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("üü", 1), ("🙂🙂", 2), ("x" * 4_000, 1_000)]
)
def test_a_token_is_guessed_for_every_four_bytes(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens
