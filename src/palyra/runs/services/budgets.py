"""Budgets: a turn reserves what it may use before it begins, and does not begin if too little is left.

The check of the accounts and the reservation are one unit with the entry that begins the turn (`also` of `Emit`). The
accounts are locked meanwhile: of many runs that race for the rest of a budget, only as many begin as it has room for.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Protocol

from msgspec.structs import replace

from palyra.core.clock import to_ms
from palyra.core.errors import Denied
from palyra.core.events import BudgetWarned, RunEvent
from palyra.core.projection.ledger import Account, Amount, Spender, period_bounds, scope_of, spender_of
from palyra.core.run.state import RunState
from palyra.core.spending.budget import (
    Budget,
    BudgetAction,
    BudgetOverrun,
    BudgetPeriod,
    BudgetSubject,
    BudgetWarning,
    Reservation,
    period_of,
)
from palyra.core.spending.price import MICROS, Price, cost_micros, format_money, max_cost_micros
from palyra.core.spending.usage import Usage
from palyra.journal.engines.base import Connection
from palyra.journal.ledger import accounts, budget_warnings
from palyra.journal.stores import agents, tokens
from palyra.runs.recording.emit import Guard
from palyra.settings import SpendingSettings

TOKENS = "tokens"


class PriceSource(Protocol):
    """Knows what models cost."""

    def price(self, model: str, /) -> Price | None:
        """Return the price of `PROVIDER/MODEL`, None if none is set."""
        ...


class BudgetExceeded(Denied):
    """The budget does not allow this model turn."""

    def __init__(self, overdrawn: Sequence[BudgetOverrun]) -> None:
        self.overdrawn = tuple(overdrawn)
        super().__init__(" ".join(explain_overrun(one) for one in overdrawn))

    @property
    def can_ask(self) -> bool:
        """Whether the owner may let the run exceed all of them."""
        return all(one.action is BudgetAction.ASK and not one.unpriced for one in self.overdrawn)


@dataclass(frozen=True, slots=True)
class AppliedBudget:
    """A budget that a turn counts for."""

    name: str
    budget: Budget
    account: Account


class BudgetService:
    """Computes the cost of turns, and checks it against the budgets."""

    def __init__(self, settings: Callable[[], SpendingSettings], prices: PriceSource) -> None:
        """`settings` returns those in force; it is called each time."""
        self._settings = settings
        self._prices = prices

    @property
    def are_set(self) -> bool:
        """Whether there are any; nothing needs to be checked if not."""
        return bool(self._settings().budgets)

    @property
    def currency(self) -> str:
        """The currency of the prices and caps."""
        return self._settings().currency

    def estimate(self, model: str, input_tokens: int, output_tokens: int) -> Reservation:
        """Return what a turn may use: this much prompt and answer of `PROVIDER/MODEL`."""
        price = self._prices.price(model)
        micros = max_cost_micros(price, input_tokens, output_tokens) if price is not None else None
        return Reservation(input_tokens=input_tokens, output_tokens=output_tokens, cost_micros=micros)

    def cost(self, model: str, usage: Usage) -> int | None:
        """Return what a turn of `PROVIDER/MODEL` cost, in millionths; None if the model has no price."""
        price = self._prices.price(model)
        return cost_micros(price, usage) if price is not None else None

    def guard(self, state: RunState, model: str, reserved: Reservation, at: datetime) -> Guard:
        """Return the guard that lets a turn begin or raises `BudgetExceeded`; `at` is the time of its entry."""

        def look(conn: Connection) -> list[RunEvent]:
            warned = self.admit(conn, spender_of(state), model, reserved, at)
            return [BudgetWarned(at=at, overrun=one.overrun, scope=one.scope, period=one.period) for one in warned]

        return look if self.are_set else _nothing

    def admit(
        self, conn: Connection, spender: Spender, model: str, reserved: Reservation, at: datetime
    ) -> tuple[BudgetWarning, ...]:
        """Let a turn begin, or raise `BudgetExceeded`; return the budgets it exceeds that were not reported yet.

        The accounts are locked until the unit ends.
        """
        settings = self._settings()
        if not settings.budgets:
            return ()
        applied = list(_applied(conn, settings.budgets, spender, model, at))
        new_run = spender.run_id if spender.is_new else None
        # The account of a run with only this turn will never be read again, so there need be none.
        own = {
            each.account: Amount() for each in applied if spender.is_alone and each.budget.period is BudgetPeriod.RUN
        }
        shared = (each.account for each in applied if each.account not in own)
        held = own | accounts.lock_balances(conn, shared, at=at, new_run=new_run)
        short = list(_short(applied, held, reserved, model=model, currency=settings.currency, at=at))
        short = _visible_overruns(conn, spender, short, at=at)
        if refused := list(_refused(spender, short)):
            raise BudgetExceeded(refused)
        return tuple(
            BudgetWarning(overrun=one, scope=each.account.scope, period=each.account.period)
            for each, one in short
            if one.action is BudgetAction.WARN and not budget_warnings.is_recorded(conn, each.name, each.account)
        )

    def check(
        self, conn: Connection, state: RunState, reservations: Mapping[str, Reservation], at: datetime
    ) -> dict[str, tuple[BudgetOverrun, ...]]:
        """Return the budgets that do not cover a turn of each of these models; those that only warn are left out.

        Nothing is locked: the result may change a moment later, and the guard decides.
        """
        settings = self._settings()
        budget_overrunses: dict[str, tuple[BudgetOverrun, ...]] = {}
        spender = spender_of(state)
        for model, reserved in reservations.items() if settings.budgets else ():
            applied = list(_applied(conn, settings.budgets, spender, model, at))
            amounts = accounts.read_balances(conn, (each.account for each in applied), at=at)
            short = list(_short(applied, amounts, reserved, model=model, currency=settings.currency, at=at))
            budget_overrunses[model] = tuple(_refused(spender, _visible_overruns(conn, spender, short, at=at)))
        return {model: short for model, short in budget_overrunses.items() if short}


def explain_overrun(short: BudgetOverrun) -> str:
    """Say which budget is exceeded, what is left of it, when it resets, and what to do."""
    if short.unpriced:
        return (
            f"{describe_overrun(short)} Add its price to prices.toml in the home folder, or choose another model;"
            f" `palyra usage prices {short.model}` says how."
        )
    if short.hidden:
        return f"{describe_overrun(short)} An administrator of this daemon can raise it."
    raised = f"raise [spending.budgets.{short.budget}] in config.toml and run `palyra config reload`"
    return f"{describe_overrun(short)} To continue, {raised}."


def describe_overrun(short: BudgetOverrun) -> str:
    """Say which budget is exceeded, what is left of it, and when it resets."""
    whose = "everything" if short.whose == "everything" else f"the {short.whose}"
    if short.unpriced:
        return (
            f"The budget {short.budget!r} caps the cost of {whose}, but {short.model} has no price, so "
            "the cap cannot be checked."
        )
    amount = _tokens if short.unit == TOKENS else lambda count: format_money(count, short.unit)
    anew = f" It resets at {short.resets_at:%Y-%m-%d %H:%M} UTC." if short.resets_at is not None else ""
    if short.hidden:
        return (
            f"The shared budget {short.budget!r} per {short.per.value} for {whose} has too little left "
            f"for this turn, which may need {amount(short.requested)}.{anew}"
        )
    return (
        f"The budget {short.budget!r} allows {amount(short.cap)} per {short.per.value} for {whose}. "
        f"{amount(short.spent)} are spent or reserved, and this turn may need "
        f"{amount(short.requested)}.{anew}"
    )


def cap_micros(money: Decimal) -> int:
    """Return a cap in millionths."""
    return int(money * MICROS)


def _tokens(count: int) -> str:
    return f"{count:,} tokens"


def _nothing(conn: Connection) -> Sequence[RunEvent]:
    return ()


def _refused(spender: Spender, short: Iterable[tuple[AppliedBudget, BudgetOverrun]]) -> Iterator[BudgetOverrun]:
    """Yield those that the turn may not exceed."""
    for _, one in short:
        lifted = one.action is BudgetAction.ASK and not one.unpriced and one.budget in spender.lifted
        if one.action is not BudgetAction.WARN and not lifted:
            yield one


def _visible_overruns(
    conn: Connection, spender: Spender, short: Sequence[tuple[AppliedBudget, BudgetOverrun]], *, at: datetime
) -> list[tuple[AppliedBudget, BudgetOverrun]]:
    """Leave out what others have spent, unless the spender may know it."""
    shared = any(_is_shared(each.budget) for each, _ in short)
    if not shared or tokens.administers(conn, spender.principal, now_ms=to_ms(at)):
        return list(short)
    return [
        (each, replace(one, cap=0, spent=0, hidden=True) if _is_shared(each.budget) else one) for each, one in short
    ]


def _is_shared(budget: Budget) -> bool:
    """Tell whether several principals spend from one account of it; a run belongs to one principal only."""
    return budget.subject in (BudgetSubject.EVERYTHING, BudgetSubject.MODEL) and budget.period is not BudgetPeriod.RUN


def _applied(
    conn: Connection, budgets: Mapping[str, Budget], spender: Spender, model: str, at: datetime
) -> Iterator[AppliedBudget]:
    """Yield the budgets that a turn counts for. A child's turns count for its parent's run and session."""
    whose = {
        BudgetSubject.EVERYTHING: "",
        BudgetSubject.PRINCIPAL: str(spender.principal),
        BudgetSubject.SESSION: str(spender.session_id),
        BudgetSubject.AGENT: str(spender.agent_id),
        BudgetSubject.MODEL: model,
    }
    for name, budget in budgets.items():
        mine = whose[budget.subject]
        if budget.only is not None and budget.only != mine:
            agent = (
                agents.get(conn, spender.agent_id, spender.principal) if budget.subject is BudgetSubject.AGENT else None
            )
            if agent is None or agent.name != budget.only:
                continue
        period = period_of(budget.period, at, spender.run_id)
        yield AppliedBudget(name, budget, Account(scope_of(budget.subject, mine), period))


def _short(
    applied: Sequence[AppliedBudget],
    amounts: Mapping[Account, Amount],
    reserved: Reservation,
    *,
    model: str,
    currency: str,
    at: datetime,
) -> Iterator[tuple[AppliedBudget, BudgetOverrun]]:
    """Yield the budgets that do not cover the turn."""
    for each in applied:
        budget, amount = each.budget, amounts[each.account]
        caps: list[tuple[str, int, int, int | None]] = []
        if budget.tokens is not None:
            caps.append((TOKENS, budget.tokens, amount.tokens, reserved.tokens))
        if budget.money is not None:
            caps.append((currency, cap_micros(budget.money), amount.micros, reserved.cost_micros))
        for unit, cap, spent, requested in caps:
            # A turn that costs nothing fits an empty budget too.
            if requested is not None and (requested == 0 or spent + requested <= cap):
                continue
            yield (
                each,
                BudgetOverrun(
                    budget=each.name,
                    whose=each.account.scope.replace(":", " ", 1),
                    per=budget.period,
                    action=budget.action,
                    unit=unit,
                    cap=cap,
                    spent=spent,
                    requested=requested or 0,
                    unpriced=requested is None,
                    model=model,
                    resets_at=period_bounds(budget.period, at)[1] if budget.period is not BudgetPeriod.RUN else None,
                ),
            )
            break
