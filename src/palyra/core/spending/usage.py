"""Token usage of model turns."""

from msgspec import Struct


class Usage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of one model turn, as the provider counted them."""

    input_tokens: int = 0
    """The whole prompt, including tokens read from a cache or written to one."""
    output_tokens: int = 0
    """The whole output, including reasoning."""
    cached_tokens: int = 0
    """The part of the prompt that came from the provider's cache."""
    cache_write_tokens: int = 0
    """The part of the prompt that was written to the cache."""
    reasoning_tokens: int = 0
    """The part of the output that was reasoning."""
    estimated: bool = False
    """The provider reported no usage; these are our estimates."""

    @property
    def tokens(self) -> int:
        """Prompt and output together."""
        return self.input_tokens + self.output_tokens

    def plus(self, other: "Usage") -> "Usage":
        """Return the sum of both."""
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            estimated=self.estimated or other.estimated,
        )
