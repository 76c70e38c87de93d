"""Budgets: how much may be spent, by whom, in which period, and what happens beyond that."""

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from palyra.core.ids import IdInvalid, parse_ulid

MAX_BUDGETS = 64
MAX_MONEY = 1_000_000_000
MAX_TOKENS = 10**15


class BudgetSubject(StrEnum):
    """Whose spending is added up."""

    EVERYTHING = "everything"
    PRINCIPAL = "principal"
    SESSION = "session"
    AGENT = "agent"
    MODEL = "model"


class BudgetPeriod(StrEnum):
    """The period of a budget."""

    RUN = "run"
    DAY = "day"
    MONTH = "month"


class BudgetAction(StrEnum):
    """What happens when a turn would exceed the budget."""

    WARN = "warn"
    """It is recorded, and the turn continues."""
    ASK = "ask"
    """The owner's approval is requested."""
    BLOCK = "block"
    """The turn is refused."""


class Budget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A budget as the configuration defines it: a cap in tokens, in money, or in both."""

    subject: BudgetSubject = BudgetSubject.EVERYTHING
    """`everything`, or each `principal`, `session`, `agent` or `model` separately."""
    only: str | None = None
    """The one principal, session, agent or model that it applies to; if not set, each has a budget of this size."""
    period: BudgetPeriod = BudgetPeriod.DAY
    """`run`, `day` or `month`; days and months are in UTC."""
    tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] | None = None
    """Tokens of prompts and answers together."""
    money: Annotated[Decimal, Meta()] | None = None
    """In the currency of the prices."""
    action: BudgetAction = BudgetAction.BLOCK
    """`warn`, `ask` or `block`."""


class Reservation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The maximum a turn can use, reserved before it begins."""

    input_tokens: int
    output_tokens: int
    cost_micros: int | None = None
    """The money; None if the model has no price."""

    @property
    def tokens(self) -> int:
        """Prompt and answer together."""
        return self.input_tokens + self.output_tokens


class BudgetOverrun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A budget that a turn would have exceeded, at the time the turn was refused."""

    budget: str
    """Its name in the configuration."""
    whose: str
    """What it counted: `everything`, `principal user:ana`, and so on."""
    per: BudgetPeriod
    action: BudgetAction
    unit: str
    """`tokens`, or the currency."""
    cap: int
    spent: int
    """Settled and reserved; money in millionths."""
    requested: int
    unpriced: bool = False
    """The model has no price, so a cap in money cannot be checked."""
    model: str = ""
    """The model that would have been used, as `PROVIDER/MODEL`."""
    resets_at: datetime | None = None
    """When the next day or month begins; None for a budget of a run."""
    hidden: bool = False
    """Others share this budget, and the reader may not see how much they spent: `cap` and `spent` are 0."""


class BudgetWarning(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A budget that only warns, and that is exceeded."""

    overrun: BudgetOverrun
    scope: str
    """Whose spending it counts,"""
    period: str
    """and in which day, month or run: the ledger account."""


def period_of(per: BudgetPeriod, at: datetime, run_id: str) -> str:
    """Return the name of the period that a time belongs to."""
    match per:
        case BudgetPeriod.RUN:
            return run_id
        case BudgetPeriod.DAY:
            return at.strftime("%Y-%m-%d")
        case BudgetPeriod.MONTH:
            return at.strftime("%Y-%m")


def _is_id(text: str) -> bool:
    try:
        return parse_ulid(text) == text
    except IdInvalid:
        return False


def budget_problems(name: str, budget: Budget) -> Iterator[tuple[str, str, str]]:
    """Yield what is wrong with a budget's settings: the key, the problem and the fix."""
    if budget.tokens is None and budget.money is None:
        yield "", "has no cap.", "Set tokens, money, or both."
    if budget.money is not None and (not budget.money.is_finite() or not 0 <= budget.money <= MAX_MONEY):
        yield "money", "has an amount that is not valid.", f"Write a number such as 2.50, up to {MAX_MONEY:,}."
    if budget.subject is BudgetSubject.EVERYTHING and budget.only is not None:
        yield (
            "only",
            "applies to everything, so it cannot be limited to one.",
            'Set `of` to "principal", "session", "agent" or "model".',
        )
    # A budget that matches nothing would cap nothing, without any sign of it.
    if budget.subject is BudgetSubject.MODEL and budget.only is not None and not all(budget.only.partition("/")):
        yield "only", "does not name a model.", "Write PROVIDER/MODEL, as `palyra usage --by model` shows it."
    if budget.subject is BudgetSubject.SESSION and budget.only is not None and not _is_id(budget.only):
        yield "only", "does not name a session.", "Write the id of a session, as `palyra sessions list` shows it."
