"""What turns cost, and how amounts are written."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.core.spending.price import Price, cost_micros, format_money, max_cost_micros
from palyra.core.spending.usage import Usage

PLAIN = Price(input=Decimal(3), output=Decimal(15), cached=Decimal("0.3"), cache_write=Decimal("3.75"))
LONG = Price(input=Decimal(1), output=Decimal(2), cached=Decimal("0.1"), long_tokens=100, long_input=Decimal(4))


@pytest.mark.parametrize(
    ("usage", "micros"),
    [
        (Usage(), 0),
        (Usage(input_tokens=1000, output_tokens=10), 3150),
        (Usage(input_tokens=1000, cached_tokens=900), 300 + 270),
        (Usage(input_tokens=1000, cached_tokens=400, cache_write_tokens=100), 1500 + 120 + 375),
        (Usage(input_tokens=1, cached_tokens=1), 1),  # rounded up
    ],
)
def test_each_part_of_a_prompt_has_its_price(usage: Usage, micros: int) -> None:
    assert cost_micros(PLAIN, usage) == micros


def test_a_cache_that_has_no_price_costs_as_any_other_prompt() -> None:
    price = Price(input=Decimal(2), output=Decimal(2))
    assert cost_micros(price, Usage(input_tokens=10, cached_tokens=5, cache_write_tokens=5)) == 20


def test_a_long_prompt_costs_more_from_its_first_token_on() -> None:
    assert cost_micros(LONG, Usage(input_tokens=100, output_tokens=1)) == 102
    assert cost_micros(LONG, Usage(input_tokens=101, output_tokens=1)) == 404 + 2
    # What is not said of its cache costs as any other part of it.
    assert cost_micros(LONG, Usage(input_tokens=101, cached_tokens=101)) == 404


amounts = st.decimals(0, 1000, places=3)
counts = st.integers(0, 1_000_000)


@given(
    price=st.builds(
        Price,
        input=amounts,
        output=amounts,
        cached=st.none() | amounts,
        cache_write=st.none() | amounts,
        long_tokens=st.none() | st.integers(1, 500_000),
        long_input=st.none() | amounts,
        long_output=st.none() | amounts,
        long_cached=st.none() | amounts,
    ),
    asked=counts,
    answered=counts,
    cached=counts,
    written=counts,
)
def test_no_turn_costs_more_than_was_thought(
    price: Price, asked: int, answered: int, cached: int, written: int
) -> None:
    cached = min(cached, asked)
    written = min(written, asked - cached)
    usage = Usage(input_tokens=asked, output_tokens=answered, cached_tokens=cached, cache_write_tokens=written)
    assert cost_micros(price, usage) <= max_cost_micros(price, asked, answered)


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "0.00 USD"),
        (2_500_000, "2.50 USD"),
        (1_234_567, "1.23 USD"),
        (12_300, "0.0123 USD"),
        (7, "0.000007 USD"),
    ],
)
def test_an_amount_has_as_many_places_as_it_takes(micros: int, text: str) -> None:
    assert format_money(micros, "USD") == text
