"""What tokens cost. Money is counted in whole millionths of the currency, so that sums are exact."""

from decimal import ROUND_CEILING, Decimal

from msgspec import Struct

from palyra.core.usage import Usage

MICROS = 1_000_000


class Price(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a million tokens cost, and who says so."""

    input: Decimal
    output: Decimal
    cached: Decimal | None = None
    """Of a prompt that comes from the provider's cache; as any other if nothing is said."""
    cache_write: Decimal | None = None
    """Of a prompt that goes into the cache; as any other if nothing is said."""
    source: str = ""
    """Where the price was read."""
    date: str = ""
    """When."""


FREE = Price(input=Decimal(0), output=Decimal(0))


def cost_micros(price: Price, usage: Usage) -> int:
    """Return what a turn costs, rounded up."""
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
    return int(total.to_integral_value(rounding=ROUND_CEILING))


def highest_input(price: Price) -> Decimal:
    """Return what a token of a prompt costs at most, be it plain, cached or put into the cache."""
    return max(price.input, price.cached or Decimal(0), price.cache_write or Decimal(0))


def shown(micros: int, currency: str) -> str:
    """Return an amount as a person reads it: with cents, or with as many places as it takes to be more than nothing."""
    amount = Decimal(micros) / MICROS
    places = 2 if micros % 10_000 == 0 or abs(micros) >= MICROS else 4 if abs(micros) >= 100 else 6
    return f"{amount:.{places}f} {currency}"
