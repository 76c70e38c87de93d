"""Budgets: how much may be spent, by whom, in which time, and what happens when it is not enough."""

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from palyra.core.ids import MalformedId, parse_ulid

MAX_BUDGETS = 64
MOST_MONEY = 1_000_000_000
MOST_TOKENS = 10**15


class Of(StrEnum):
    """Whose spending counts together."""

    EVERYTHING = "everything"
    PRINCIPAL = "principal"
    SESSION = "session"
    AGENT = "agent"
    MODEL = "model"


class Per(StrEnum):
    """Over which time."""

    RUN = "run"
    DAY = "day"
    MONTH = "month"


class Action(StrEnum):
    """What happens when a turn would go beyond it."""

    WARN = "warn"
    """It is written down, and the turn goes on."""
    ASK = "ask"
    """The owner is asked."""
    BLOCK = "block"
    """The turn does not take place."""


class Budget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A budget as the configuration names it: a cap in tokens, in money, or in both."""

    of: Of = Of.EVERYTHING
    """`everything`, or each `principal`, `session`, `agent` or `model` by itself."""
    only: str | None = None
    """The one principal, session, agent or model that it is for; each of them has a budget of this size if none is."""
    per: Per = Per.DAY
    """`run`, `day` or `month`; days and months are those of UTC."""
    tokens: Annotated[int, Meta(ge=0, le=MOST_TOKENS)] | None = None
    """Tokens of prompts and answers together."""
    money: Annotated[Decimal, Meta()] | None = None
    """In the currency of the prices."""
    action: Action = Action.BLOCK
    """`warn`, `ask` or `block`."""


class Reserved(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is set aside for a turn before it begins: as much as it can take."""

    input_tokens: int
    output_tokens: int
    micros: int | None = None
    """The money; None if the model has no price."""

    @property
    def tokens(self) -> int:
        """Prompt and answer together."""
        return self.input_tokens + self.output_tokens


class Overdrawn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A budget that is not enough for a turn, as it stood when the turn was refused."""

    budget: str
    """Its name in the configuration."""
    whose: str
    """What it counted: `everything`, `principal user:ana`, and so on."""
    per: Per
    action: Action
    unit: str
    """`tokens`, or the currency."""
    cap: int
    spent: int
    """Settled and set aside; money in millionths."""
    wanted: int
    unpriced: bool = False
    """The model has no price, and so no cap in money can be kept."""
    model: str = ""
    """The model that was to be asked, as `PROVIDER/MODEL`."""
    begins_anew: datetime | None = None
    """When the next day or month begins; None for a budget of a run."""
    hidden: bool = False
    """Others spend from it too, and how much is not for whoever this is told to: `cap` and `spent` are left at 0."""


class Warned(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A budget that only warns, and that something goes beyond."""

    overdrawn: Overdrawn
    scope: str
    """Whose spending it counts,"""
    period: str
    """and in which day, month or run: the account of the ledger."""


def period_of(per: Per, at: datetime, run_id: str) -> str:
    """Return the name of the time that a moment belongs to."""
    match per:
        case Per.RUN:
            return run_id
        case Per.DAY:
            return at.strftime("%Y-%m-%d")
        case Per.MONTH:
            return at.strftime("%Y-%m")


def _is_id(text: str) -> bool:
    try:
        return parse_ulid(text) == text
    except MalformedId:
        return False


def faults(name: str, budget: Budget) -> Iterator[tuple[str, str, str]]:
    """Yield what is wrong with a budget of the configuration: the key, what it is, and a remedy."""
    if budget.tokens is None and budget.money is None:
        yield "", "caps nothing.", "Set tokens, money, or both."
    if budget.money is not None and (not budget.money.is_finite() or not 0 <= budget.money <= MOST_MONEY):
        yield "money", "has an amount that is none.", f"Write a number such as 2.50, up to {MOST_MONEY:,}."
    if budget.of is Of.EVERYTHING and budget.only is not None:
        yield "only", "is for everything and can not be for one alone.", 'Set of to "principal", "session", and so on.'
    # One that fits nothing would cap nothing, and nobody would know.
    if budget.of is Of.MODEL and budget.only is not None and not all(budget.only.partition("/")):
        yield "only", "names no model.", "Write PROVIDER/MODEL, as `palyra usage --by model` shows it."
    if budget.of is Of.SESSION and budget.only is not None and not _is_id(budget.only):
        yield "only", "names no session.", "Write the id of a session, as `palyra sessions list` shows it."
