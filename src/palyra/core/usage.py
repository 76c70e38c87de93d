"""What a model turn took."""

from msgspec import Struct


class Usage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of one model turn, as the provider counted them."""

    input_tokens: int = 0
    """All of the prompt, also what came from a cache or went into one."""
    output_tokens: int = 0
    """All that the model made, also what it only thought."""
    cached_tokens: int = 0
    """The part of the prompt that came from the provider's cache."""
    cache_write_tokens: int = 0
    """The part of the prompt that was put into the cache."""
    reasoning_tokens: int = 0
    """The part of the output that was thought and not said."""
    estimated: bool = False
    """The provider did not count; these are our guess."""

    @property
    def tokens(self) -> int:
        """Prompt and output together."""
        return self.input_tokens + self.output_tokens

    def plus(self, other: "Usage") -> "Usage":
        """Return both together."""
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            estimated=self.estimated or other.estimated,
        )
