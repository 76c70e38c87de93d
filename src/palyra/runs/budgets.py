"""Budgets: what a turn may take is set aside before it begins, and a turn that finds too little left does not begin.

The look at the accounts and the reservation are one unit with the entry that begins the turn (`also` of `Emit`). While
it looks, the accounts are held: of many runs that race for the rest of a budget only as many begin as it has room for.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Protocol

from msgspec.structs import replace

from palyra.core.budget import Action, Budget, Of, Overdrawn, Per, Reserved, Warned, period_of
from palyra.core.clock import to_ms
from palyra.core.errors import Denied
from palyra.core.events import BudgetWarned, RunEvent
from palyra.core.price import MICROS, Price, cost_micros, most_micros, shown
from palyra.core.run import RunState
from palyra.core.spending import Account, Amount, Spender, bounds, scope_of, spender_of
from palyra.core.usage import Usage
from palyra.journal import agents, budget_warnings, spending, tokens
from palyra.journal.engine import Connection
from palyra.runs.emit import Guard
from palyra.settings import SpendingSettings

TOKENS = "tokens"


class Prices(Protocol):
    """Knows what models cost."""

    def price(self, model: str, /) -> Price | None:
        """Return the price of `PROVIDER/MODEL`, None if nobody has set one."""
        ...


class BudgetRefused(Denied):
    """The budget does not allow this turn of the model."""

    def __init__(self, overdrawn: Sequence[Overdrawn]) -> None:
        self.overdrawn = tuple(overdrawn)
        super().__init__(" ".join(explained(one) for one in overdrawn))

    @property
    def may_be_asked(self) -> bool:
        """Whether the owner may let the run go beyond all of them."""
        return all(one.action is Action.ASK and not one.unpriced for one in self.overdrawn)


@dataclass(frozen=True, slots=True)
class Applied:
    """A budget that a turn counts for."""

    name: str
    budget: Budget
    account: Account


class Budgets:
    """Says what turns cost, and whether there is enough for them."""

    def __init__(self, settings: Callable[[], SpendingSettings], prices: Prices) -> None:
        """`settings` returns those in force; it is asked each time."""
        self._settings = settings
        self._prices = prices

    @property
    def are_set(self) -> bool:
        """Whether there are any; nothing has to be looked at if not."""
        return bool(self._settings().budgets)

    @property
    def currency(self) -> str:
        """What the prices and the caps are in."""
        return self._settings().currency

    def estimate(self, model: str, input_tokens: int, output_tokens: int) -> Reserved:
        """Return what a turn may take: so much of a prompt and an answer of `PROVIDER/MODEL`."""
        price = self._prices.price(model)
        micros = most_micros(price, input_tokens, output_tokens) if price is not None else None
        return Reserved(input_tokens=input_tokens, output_tokens=output_tokens, micros=micros)

    def cost(self, model: str, usage: Usage) -> int | None:
        """Return what a turn of `PROVIDER/MODEL` cost, in millionths; None if the model has no price."""
        price = self._prices.price(model)
        return cost_micros(price, usage) if price is not None else None

    def guard(self, state: RunState, model: str, reserved: Reserved, at: datetime) -> Guard:
        """Return what lets a turn begin or raises `BudgetRefused`; `at` is the time of its entry."""

        def look(conn: Connection) -> list[RunEvent]:
            warned = self.admit(conn, spender_of(state), model, reserved, at)
            return [BudgetWarned(at=at, overdrawn=one.overdrawn, scope=one.scope, period=one.period) for one in warned]

        return look if self.are_set else _nothing

    def admit(
        self, conn: Connection, spender: Spender, model: str, reserved: Reserved, at: datetime
    ) -> tuple[Warned, ...]:
        """Let a turn begin, or raise `BudgetRefused`; return which budgets it goes beyond that were not told of yet.

        The accounts are held until the unit ends.
        """
        settings = self._settings()
        if not settings.budgets:
            return ()
        applied = list(_applied(conn, settings.budgets, spender, model, at))
        new_run = spender.run_id if spender.is_new else None
        # Of a run that has this turn alone nobody will ever ask what stands in its account: there need be none.
        own = {each.account: Amount() for each in applied if spender.is_alone and each.budget.per is Per.RUN}
        shared = (each.account for each in applied if each.account not in own)
        held = own | spending.hold(conn, shared, at=at, new_run=new_run)
        short = list(_short(applied, held, reserved, model=model, currency=settings.currency, at=at))
        short = _told(conn, spender, short, at=at)
        if refused := list(_refused(spender, short)):
            raise BudgetRefused(refused)
        return tuple(
            Warned(overdrawn=one, scope=each.account.scope, period=each.account.period)
            for each, one in short
            if one.action is Action.WARN and not budget_warnings.was_told(conn, each.name, each.account)
        )

    def look(
        self, conn: Connection, state: RunState, wanted: Mapping[str, Reserved], at: datetime
    ) -> dict[str, tuple[Overdrawn, ...]]:
        """Return which budgets are not enough for a turn of each of these models; those that only warn are left out.

        Nothing is held: it may be otherwise a moment later, and the guard decides.
        """
        settings = self._settings()
        found: dict[str, tuple[Overdrawn, ...]] = {}
        spender = spender_of(state)
        for model, reserved in wanted.items() if settings.budgets else ():
            applied = list(_applied(conn, settings.budgets, spender, model, at))
            amounts = spending.look(conn, (each.account for each in applied), at=at)
            short = list(_short(applied, amounts, reserved, model=model, currency=settings.currency, at=at))
            found[model] = tuple(_refused(spender, _told(conn, spender, short, at=at)))
        return {model: short for model, short in found.items() if short}


def explained(short: Overdrawn) -> str:
    """Say which budget is not enough, how it stands, when it begins anew, and what to do."""
    if short.unpriced:
        return (
            f"{standing(short)} Write its price into prices.toml in the home folder, or choose a model that has one;"
            f" `palyra usage prices {short.model}` says how."
        )
    if short.hidden:
        return f"{standing(short)} Whoever administers this Palyra can raise it."
    raised = f"raise [spending.budgets.{short.budget}] in config.toml and run `palyra config reload`"
    return f"{standing(short)} To go on, {raised}."


def standing(short: Overdrawn) -> str:
    """Say which budget is not enough, how it stands, and when it begins anew."""
    whose = "everything" if short.whose == "everything" else f"the {short.whose}"
    if short.unpriced:
        return (
            f"The budget {short.budget!r} caps the money of {whose}, and {short.model} has no price, so that it can not"
            " be kept."
        )
    amount = _tokens if short.unit == TOKENS else lambda count: shown(count, short.unit)
    anew = f" It begins anew at {short.begins_anew:%Y-%m-%d %H:%M} UTC." if short.begins_anew is not None else ""
    if short.hidden:
        return (
            f"The budget {short.budget!r} per {short.per.value} for {whose}, which others spend from too, has no room"
            f" left for this turn, which may take {amount(short.wanted)}.{anew}"
        )
    return (
        f"The budget {short.budget!r} allows {amount(short.cap)} per {short.per.value} for {whose}:"
        f" {amount(short.spent)} are spent or set aside, and this turn may take {amount(short.wanted)}.{anew}"
    )


def cap_micros(money: Decimal) -> int:
    """Return a cap in millionths."""
    return int(money * MICROS)


def _tokens(count: int) -> str:
    return f"{count:,} tokens"


def _nothing(conn: Connection) -> Sequence[RunEvent]:
    return ()


def _refused(spender: Spender, short: Iterable[tuple[Applied, Overdrawn]]) -> Iterator[Overdrawn]:
    """Yield those that the turn may not go beyond."""
    for _, one in short:
        lifted = one.action is Action.ASK and not one.unpriced and one.budget in spender.lifted
        if one.action is not Action.WARN and not lifted:
            yield one


def _told(
    conn: Connection, spender: Spender, short: Sequence[tuple[Applied, Overdrawn]], *, at: datetime
) -> list[tuple[Applied, Overdrawn]]:
    """Leave out what others have spent, unless the spender is somebody who may know."""
    shared = any(_is_shared(each.budget) for each, _ in short)
    if not shared or tokens.administers(conn, spender.principal, now_ms=to_ms(at)):
        return list(short)
    return [
        (each, replace(one, cap=0, spent=0, hidden=True) if _is_shared(each.budget) else one) for each, one in short
    ]


def _is_shared(budget: Budget) -> bool:
    """Tell whether several principals spend from one account of it; a run is nobody's but its own principal's."""
    return budget.of in (Of.EVERYTHING, Of.MODEL) and budget.per is not Per.RUN


def _applied(
    conn: Connection, budgets: Mapping[str, Budget], spender: Spender, model: str, at: datetime
) -> Iterator[Applied]:
    """Yield the budgets that a turn counts for. A child's turns count for the run and the session that it works for."""
    whose = {
        Of.EVERYTHING: "",
        Of.PRINCIPAL: str(spender.principal),
        Of.SESSION: str(spender.session_id),
        Of.AGENT: str(spender.agent_id),
        Of.MODEL: model,
    }
    for name, budget in budgets.items():
        mine = whose[budget.of]
        if budget.only is not None and budget.only != mine:
            agent = agents.get(conn, spender.agent_id, spender.principal) if budget.of is Of.AGENT else None
            if agent is None or agent.name != budget.only:
                continue
        period = period_of(budget.per, at, spender.run_id)
        yield Applied(name, budget, Account(scope_of(budget.of, mine), period))


def _short(
    applied: Sequence[Applied],
    amounts: Mapping[Account, Amount],
    reserved: Reserved,
    *,
    model: str,
    currency: str,
    at: datetime,
) -> Iterator[tuple[Applied, Overdrawn]]:
    """Yield the budgets that are not enough."""
    for each in applied:
        budget, amount = each.budget, amounts[each.account]
        caps: list[tuple[str, int, int, int | None]] = []
        if budget.tokens is not None:
            caps.append((TOKENS, budget.tokens, amount.tokens, reserved.tokens))
        if budget.money is not None:
            caps.append((currency, cap_micros(budget.money), amount.micros, reserved.micros))
        for unit, cap, spent, wanted in caps:
            # What costs nothing may be had from an empty purse too.
            if wanted is not None and (wanted == 0 or spent + wanted <= cap):
                continue
            yield (
                each,
                Overdrawn(
                    budget=each.name,
                    whose=each.account.scope.replace(":", " ", 1),
                    per=budget.per,
                    action=budget.action,
                    unit=unit,
                    cap=cap,
                    spent=spent,
                    wanted=wanted or 0,
                    unpriced=wanted is None,
                    model=model,
                    begins_anew=bounds(budget.per, at)[1] if budget.per is not Per.RUN else None,
                ),
            )
            break
