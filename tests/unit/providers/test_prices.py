"""Prices: which one holds for a model, and what is said of a file that can not be used."""

from decimal import Decimal
from pathlib import Path

import pytest

from palyra.core.model.catalog import DialectName, ModelProvider
from palyra.core.spending.price import FREE
from palyra.home import Home
from palyra.providers.prices import CurrentPrices, PricesInvalid, load, parse, shipped
from palyra.settings import ModelSettings, Settings, SpendingSettings


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def prices(home: Home, text: str = "", settings: Settings | None = None) -> CurrentPrices:
    if text:
        home.prices.write_text(text)
    return CurrentPrices(home, lambda: settings or Settings())


def entry(name: str, amount: int) -> str:
    return f'[models."{name}"]\ninput = {amount}\noutput = {amount}\n'


def test_every_price_that_comes_along_has_a_source_and_a_date() -> None:
    currency, items = shipped()
    assert currency == "USD"
    assert items
    for named in items:
        assert named.price.source.startswith("https://"), named.name
        assert named.price.date.startswith("20"), named.name
        # Embeddings have no answer that could cost anything.
        assert named.price.input <= named.price.output or not named.price.output
        assert (named.price.cached or 0) < named.price.input


@pytest.mark.parametrize(
    ("model", "amount"),
    [
        ("acme/large-2", 1),  # the whole name with its provider
        ("other/large-2", 2),  # the whole name of the model
        ("acme/large-3", 3),  # a pattern with a provider
        ("other/large-3", 4),  # the longer pattern of a model
        ("other/lark", 5),
    ],
)
def test_what_is_named_most_exactly_holds(home: Home, model: str, amount: int) -> None:
    names = {"acme/large-2": 1, "large-2": 2, "acme/*": 3, "large-*": 4, "la*": 5}
    known = prices(home, "".join(entry(name, amount) for name, amount in reversed(names.items())))
    price = known.price(model)
    assert price is not None
    assert price.input == amount


def test_the_owners_price_takes_the_place_of_one_that_comes_along(home: Home) -> None:
    along = prices(home).price("openai/gpt-5-mini")
    assert along is not None
    own = prices(home, entry("gpt-5-mini", 7)).price("openai/gpt-5-mini")
    assert own is not None
    assert (along.input, own.input) == (Decimal("0.25"), Decimal(7))


def test_a_model_that_nobody_names_has_no_price(home: Home) -> None:
    known = prices(home)
    assert known.price("acme/unheard-of") is None
    # A name of a model that is part of another name says nothing of it.
    assert known.price("broker/openai/gpt-5-mini") is None


def test_what_runs_on_this_machine_is_free_unless_somebody_sets_a_price(home: Home) -> None:
    local = ModelProvider(dialect=DialectName.LOCAL, path="/models/small.gguf")
    settings = Settings(model=ModelSettings(providers={"here": local}))
    known = prices(home, settings=settings)
    for name in ("embedded/embedded", "scripted/scripted", "here/small"):
        assert known.price(name) == FREE
    priced = prices(home, entry("here/*", 1), settings).price("here/small")
    assert priced is not None
    assert priced.input == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[models", "prices.toml: "),
        ('currency = "dollars"', "prices.toml:1: currency is not valid"),
        ("prices = 3", "prices.toml:1: unknown key 'prices'"),
        ("models = 3", "prices.toml:1: models is not a table"),
        ('\n[models."a/b"]\ninput = 1\noutptu = 2', "prices.toml:4: unknown key 'outptu'"),
        ('\n\n[models."a/b"]\ninput = 1', "prices.toml:3: the price of 'a/b' is not valid"),
        ('[models."a/b"]\ninput = "1 dollar"\noutput = 2', "prices.toml:1: the price of 'a/b' is not valid"),
        ('[models."a/b"]\ninput = -1\noutput = 2', "prices.toml:2: input is not a valid price"),
        ('[models."a/b"]\ninput = 1e300\noutput = 2', "prices.toml:2: input is not a valid price"),
        ('[models."a/b"]\ninput = nan\noutput = 2', "prices.toml:2: input is not a valid price"),
        ('[models]\n"a/b" = 3', "prices.toml:2: 'a/b' has no price"),
    ],
)
def test_a_fault_is_told_with_its_file_and_line(home: Home, text: str, said: str) -> None:
    with pytest.raises(PricesInvalid) as error:
        prices(home, text)
    assert said in error.value.detail
    assert error.value.detail.endswith(".")


def test_a_file_that_is_no_text_or_far_too_large_is_refused(home: Home) -> None:
    home.prices.write_bytes(b"\xff\xfe")
    with pytest.raises(PricesInvalid, match="not text"):
        load(home, "USD")
    home.prices.write_bytes(b"#" * 2_000_000)
    with pytest.raises(PricesInvalid, match="KiB"):
        load(home, "USD")


def test_prices_in_another_currency_than_the_settings_are_refused(home: Home) -> None:
    euros = Settings(spending=SpendingSettings(currency="EUR"))
    with pytest.raises(PricesInvalid, match=r"in USD, but spending\.currency is EUR"):
        prices(home, entry("a/b", 1), euros)
    known = prices(home, 'currency = "EUR"\n' + entry("a/b", 1), euros)
    assert known.price("a/b") is not None
    # What comes along is in dollars, and so is no price in euros.
    assert known.price("openai/gpt-5-mini") is None


def test_a_broken_file_leaves_what_was_in_force(home: Home) -> None:
    known = prices(home, entry("a/b", 1))
    home.prices.write_text("nonsense")
    with pytest.raises(PricesInvalid):
        known.read()
    held = known.price("a/b")
    assert held is not None
    assert held.input == 1
    home.prices.write_text(entry("a/b", 2))
    assert known.adopt(known.read())
    assert not known.adopt(known.read())
    changed = known.price("a/b")
    assert changed is not None
    assert changed.input == 2


def test_numbers_are_exact() -> None:
    _, (named,) = parse('[models."a/b"]\ninput = 0.1\noutput = 0.3\n', "prices.toml")
    assert named.price.input * 3 == Decimal("0.3") == named.price.output
