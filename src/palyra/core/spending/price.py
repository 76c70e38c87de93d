"""Prices of tokens. Money is counted in whole millionths of the currency, so that sums are exact."""

from decimal import ROUND_CEILING, Decimal
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from palyra.core.spending.usage import Usage

MICROS = 1_000_000


class Price(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The price of a million tokens, and its source."""

    input: Decimal
    output: Decimal
    cached: Decimal | None = None
    """For prompt tokens read from the provider's cache; the normal price if not set."""
    cache_write: Decimal | None = None
    """For prompt tokens written to the cache; the normal price if not set."""
    long_tokens: Annotated[int, Meta(ge=1)] | None = None
    """The prompt length from which the following prices apply to the whole prompt, if set."""
    long_input: Decimal | None = None
    long_output: Decimal | None = None
    long_cached: Decimal | None = None
    long_cache_write: Decimal | None = None
    source: str = ""
    """Where the price was read."""
    date: str = ""
    """When."""


FREE = Price(input=Decimal(0), output=Decimal(0))


def at_length(price: Price, input_tokens: int) -> Price:
    """Return the price that applies to a prompt of that length."""
    if price.long_tokens is None or input_tokens <= price.long_tokens:
        return price
    return replace(
        price,
        input=price.input if price.long_input is None else price.long_input,
        output=price.output if price.long_output is None else price.long_output,
        cached=price.long_cached,
        cache_write=price.long_cache_write,
    )


def cost_micros(price: Price, usage: Usage) -> int:
    """Return the cost of a turn, rounded up."""
    price = at_length(price, usage.input_tokens)
    cached = price.cached if price.cached is not None else price.input
    written = price.cache_write if price.cache_write is not None else price.input
    plain = max(0, usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens)
    # A price per million tokens is the price of one token in millionths.
    total = (
        plain * price.input
        + usage.cached_tokens * cached
        + usage.cache_write_tokens * written
        + usage.output_tokens * price.output
    )
    return _round_up(total)


def max_cost_micros(price: Price, input_tokens: int, output_tokens: int) -> int:
    """Return the maximum cost of a turn, whether its prompt is uncached, read from the cache or written to it."""
    price = at_length(price, input_tokens)
    highest = max(price.input, price.cached or Decimal(0), price.cache_write or Decimal(0))
    return _round_up(input_tokens * highest + output_tokens * price.output)


def _round_up(amount: Decimal) -> int:
    return int(amount.to_integral_value(rounding=ROUND_CEILING))


def format_money(micros: int, currency: str) -> str:
    """Return an amount as a person reads it: with cents, or with as many decimals as it takes to be more than zero."""
    amount = Decimal(micros) / MICROS
    positions = 2 if micros % 10_000 == 0 or abs(micros) >= MICROS else 4 if abs(micros) >= 100 else 6
    return f"{amount:.{positions}f} {currency}"
