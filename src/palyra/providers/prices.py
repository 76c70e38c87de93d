"""Prices of models: the shipped ones, and the owner's own file, which overrides them.

A file lists prices per million tokens, in one currency, by `PROVIDER/MODEL` or by the model alone; `*` in a name
matches anything. The most specific entry applies: a full name before a pattern, one with a provider before one without,
the longer pattern before the shorter, and the owner's before the shipped one.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from palyra.core.errors import Invalid
from palyra.core.model.catalog import BUILT_IN, DialectName, split_model_name
from palyra.core.spending.price import FREE, Price
from palyra.home import Home
from palyra.settings import Settings

SHIPPED = "prices.toml"
"""The file name that is shown for shipped prices."""
MAX_BYTES = 1024 * 1024
MAX_PRICE = 1_000_000
"""The maximum price of a million tokens: far more than any, and small enough for sums not to overflow."""

_SECTION = re.compile(r"^\s*\[")
_FIELDS = frozenset(Price.__struct_fields__)


class PricesInvalid(Invalid):
    """The price file is not valid."""


@dataclass(frozen=True, slots=True)
class SourcedPrice:
    """A price, and its source."""

    name: str
    """`PROVIDER/MODEL`, a model, or a pattern of either."""
    price: Price
    file: str

    def fits(self, model: str) -> bool:
        """Return whether it applies to `PROVIDER/MODEL`."""
        _, alone = split_model_name(model)
        return fnmatchcase(model, self.name) or (alone is not None and fnmatchcase(alone, self.name))


@dataclass(frozen=True, slots=True)
class PriceList:
    """A set of prices."""

    currency: str
    items: tuple[SourcedPrice, ...]
    """The most specific first."""
    prices: dict[str, SourcedPrice | None] = field(default_factory=dict, compare=False)
    """Cached lookups: a daemon uses few models, and looks each of them up in every turn."""

    def of(self, model: str) -> SourcedPrice | None:
        """Return the price that applies to `PROVIDER/MODEL`."""
        if model not in self.prices:
            self.prices[model] = next((named for named in self.items if named.fits(model)), None)
        return self.prices[model]


class CurrentPrices:
    """Holds the prices in force, and reloads them on request. Invalid files change nothing."""

    def __init__(self, home: Home, settings: Callable[[], Settings]) -> None:
        """`settings` returns those in force. Only the owner's file is read at once; the rest on first use.

        Raises `PricesInvalid` if that file is invalid.
        """
        self._home = home
        self._settings = settings
        self._now = self.read() if home.prices.exists() else None

    @property
    def now(self) -> PriceList:
        """The prices in force."""
        if self._now is None:
            self._now = self.read()
        return self._now

    def read(self, currency: str | None = None) -> PriceList:
        """Return the prices in the files now; raise `PricesInvalid` if anything is invalid.

        They must be in the given currency, or in that of the settings in force.
        """
        return load(self._home, currency or self._settings().spending.currency)

    def adopt(self, prices: PriceList) -> bool:
        """Put these prices in force; return whether that changes anything."""
        changed = self.now != prices
        self._now = prices
        return changed

    def price(self, model: str) -> Price | None:
        """Return the price of `PROVIDER/MODEL`, None if it has none. Models on this machine are free."""
        named = self.now.of(model)
        if named is not None:
            return named.price
        return FREE if self._is_here(model) else None

    def _is_here(self, model: str) -> bool:
        provider, _ = split_model_name(model)
        cached_provider = self._settings().model.providers.get(provider)
        return provider in BUILT_IN or (cached_provider is not None and cached_provider.dialect is DialectName.LOCAL)


def load(home: Home, currency: str) -> PriceList:
    """Return the prices of a home, checked against the currency of the settings."""
    own_currency, own = _own(home.prices)
    shipped_currency, along = shipped()
    if own_currency is not None and own_currency != currency:
        raise PricesInvalid(
            f"{home.prices}: its prices are in {own_currency}, but spending.currency is {currency}. Set "
            f"spending.currency to {own_currency}, or write the prices in {currency}."
        )
    # Shipped prices are in one currency only; in another, only the owner's prices are known.
    sourced_prices = (*own, *along) if shipped_currency == currency else own
    return PriceList(currency, tuple(sorted(sourced_prices, key=_rank)))


@cache
def shipped() -> tuple[str, tuple[SourcedPrice, ...]]:
    """Return the currency and the shipped prices."""
    text = resources.files(__package__).joinpath(SHIPPED).read_text("utf-8")
    currency, items = parse(text, SHIPPED)
    return currency, tuple(items)


def parse(text: str, file: str) -> tuple[str, list[SourcedPrice]]:
    """Return the currency and the prices in a file's text; raise `PricesInvalid` at the first problem, with its
    line."""
    try:
        arguments = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise PricesInvalid(f"{file}: {error}. Fix that line.") from None
    for key in arguments:
        if key not in ("currency", "models"):
            raise _fault(file, text, key, f"unknown key {key!r}", "Use only currency and [models.…]")
    currency = arguments.get("currency", "USD")
    if not isinstance(currency, str) or not re.fullmatch("[A-Z]{3}", currency):
        raise _fault(file, text, "currency", "currency is not valid", 'Write three letters such as "USD"')
    models = arguments.get("models", {})
    if not isinstance(models, dict):
        raise _fault(file, text, "models", "models is not a table", 'Write [models."PROVIDER/MODEL"]')
    return currency, [SourcedPrice(name, _price(name, entry, text, file), file) for name, entry in models.items()]


def _price(name: str, entry: Any, text: str, file: str) -> Price:
    if not isinstance(entry, dict):
        raise _fault(file, text, name, f"{name!r} has no price", f'Write [models."{name}"] with input and output')
    for key in entry:
        if key not in _FIELDS:
            known_name = ", ".join(Price.__struct_fields__)
            raise _fault(file, text, name, f"unknown key {key!r}", f"Known keys: {known_name}", key=key)
    try:
        price = msgspec.convert(entry, Price, str_keys=True)
    except msgspec.ValidationError as error:
        remedy = "Write input and output as numbers: the price of a million tokens"
        raise _fault(file, text, name, f"the price of {name!r} is not valid ({error})", remedy) from None
    for key, amount in _amounts(price):
        if not amount.is_finite() or not 0 <= amount <= MAX_PRICE:
            raise _fault(
                file, text, name, f"{key} is not a valid price", f"Write a number from 0 to {MAX_PRICE:,}", key=key
            )
    return price


def _amounts(price: Price) -> Iterator[tuple[str, Decimal]]:
    for key in Price.__struct_fields__:
        amount = getattr(price, key)
        if isinstance(amount, Decimal):
            yield key, amount


def _own(path: Path) -> tuple[str | None, Iterable[SourcedPrice]]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None, ()
    except OSError as error:
        raise PricesInvalid(f"{path}: cannot be read: {error.strerror}. Make the file readable.") from None
    if len(data) > MAX_BYTES:
        raise PricesInvalid(
            f"{path}: larger than {MAX_BYTES // 1024} KiB. Keep only the prices of the models that you use."
        )
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise PricesInvalid(f"{path}: not text. Save the file as UTF-8.") from None
    currency, items = parse(text, str(path))
    return currency, items


def _fault(file: str, text: str, name: str, what: str, remedy: str, *, key: str | None = None) -> PricesInvalid:
    line = _line_of(text, name, key)
    return PricesInvalid(f"{file}:{line}: {what}. {remedy}.")


def _line_of(text: str, name: str, key: str | None) -> int:
    """Return the line where an entry, or a key of it, begins; 1 if it is written in another way."""
    begins = 0
    for number, line in enumerate(text.splitlines(), 1):
        if not begins:
            if name in line:
                begins = number
                if key is None or re.search(rf"\b{re.escape(key)}\b\s*=", line):
                    return number
        elif _SECTION.match(line):
            break
        elif key is not None and re.match(rf"\s*{re.escape(key)}\s*=", line):
            return number
    return begins or 1


def _rank(named: SourcedPrice) -> tuple[bool, bool, int, bool, str]:
    """Order prices from the most to the least specific."""
    pattern = any(sign in named.name for sign in "*?[")
    return pattern, "/" not in named.name, -len(named.name), named.file == SHIPPED, named.name
