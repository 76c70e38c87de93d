"""What a model turn took."""

from msgspec import Struct


class Usage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of one model turn, as the provider counted them."""

    input_tokens: int = 0
    output_tokens: int = 0
