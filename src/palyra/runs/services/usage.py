"""Usage and the state of the budgets: each principal reads its own, an operator reads all."""

from collections.abc import Callable, Iterator
from datetime import datetime

from msgspec.structs import replace

from palyra.core.clock import Clock, from_ms, to_ms
from palyra.core.ids import AgentId, PrincipalId, RunId, SessionId, parse_ulid
from palyra.core.projection.ledger import EMBEDDINGS, Account, Amount, LedgerTurn, period_bounds, scope_of
from palyra.core.run.state import RunState
from palyra.core.spending.budget import Budget, BudgetPeriod, BudgetSubject, period_of
from palyra.core.spending.usage_report import (
    BudgetCap,
    BudgetStatus,
    TurnUsage,
    UsageCause,
    UsageCauses,
    UsageGrouping,
    UsageReport,
    UsageTotal,
)
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.ledger import accounts, embeddings
from palyra.journal.ledger import turns as usage
from palyra.journal.stores import agents, runs, sessions
from palyra.runs.recording.replay import replay
from palyra.runs.services.budgets import TOKENS, cap_micros
from palyra.runs.services.cancellation import RunNotFound
from palyra.settings import SpendingSettings

MAX_TURNS = 500
MAX_ACCOUNTS = 8
"""How many are shown of a budget that each session, agent, model or run has by itself."""
MAX_CHECKED = 64


class UsageService:
    """Reads the ledger."""

    def __init__(self, engine: Engine, settings: Callable[[], SpendingSettings], *, clock: Clock) -> None:
        """`settings` returns those in force."""
        self._engine = engine
        self._settings = settings
        self._clock = clock

    async def report(
        self, principal: PrincipalId | None, by: UsageGrouping, *, since: datetime, limit: int
    ) -> UsageReport:
        """Add up what a principal, or all principals, used since a moment."""
        settings, at = self._settings(), self._clock.now()

        def query(conn: Connection) -> UsageReport:
            rows = usage.sum_by(conn, by, principal, since_ms=to_ms(since), limit=limit)
            return UsageReport(
                currency=settings.currency,
                since=since,
                by=by,
                # An operator may not read what others have said.
                rows=tuple(replace(row, label=_label(conn, by, row.name)) if principal else row for row in rows),
                total=usage.total(conn, principal, since_ms=to_ms(since)),
                budgets=tuple(_budget_statuses(conn, settings, principal, at=at)),
            )

        return await self._engine.read(query)

    async def why(self, principal: PrincipalId | None, *, since: datetime) -> UsageCauses:
        """Return what caused the model turns since a moment."""

        def query(conn: Connection) -> UsageCauses:
            return UsageCauses(
                currency=self._settings().currency,
                since=since,
                causes=tuple(usage.causes(conn, principal, since_ms=to_ms(since))),
                total=usage.total(conn, principal, since_ms=to_ms(since)),
            )

        return await self._engine.read(query)

    async def why_run(self, principal: PrincipalId | None, name: str) -> UsageCauses:
        """Return what caused the model turns of a run and of its child runs."""
        run_id = RunId(parse_ulid(name, "run id"))

        def query(conn: Connection) -> UsageCauses:
            turns = _turns(conn, run_id, principal)
            turn_usages = tuple(
                TurnUsage(
                    run_id=turn.run_id,
                    turn=turn.turn,
                    model=f"{turn.provider}/{turn.model}",
                    cause=turn.cause,
                    step=turn.step,
                    state=turn.state,
                    at=from_ms(turn.at_ms),
                    used=usage.used_in(turn),
                )
                for turn in turns
            )
            grouped: dict[tuple[str, str], UsageTotal] = {}
            for one in turn_usages:
                usage_total = grouped.get((one.cause, one.step), UsageTotal())
                grouped[one.cause, one.step] = _plus(usage_total, one.used)
            total = UsageTotal()
            for used in grouped.values():
                total = _plus(total, used)
            causes = (UsageCause(cause=cause, step=step, used=used) for (cause, step), used in grouped.items())
            currency = self._settings().currency
            return UsageCauses(currency=currency, run_id=run_id, causes=tuple(causes), turns=turn_usages, total=total)

        return await self._engine.read(query)


def _plus(first: UsageTotal, second: UsageTotal) -> UsageTotal:
    return UsageTotal(**{name: getattr(first, name) + getattr(second, name) for name in UsageTotal.__struct_fields__})


def _turns(conn: Connection, run_id: RunId, principal: PrincipalId | None) -> list[LedgerTurn]:
    """Return the turns of a run and of its child runs; a call for embeddings has only one."""
    if (call := embeddings.find(conn, run_id, principal)) is not None:
        return [call]
    state = _run(conn, run_id, principal)
    turns = usage.of_root(conn, state.root_run_id, principal, limit=MAX_TURNS)
    # Of a child only its own usage: the rest belongs to its parent.
    return turns if state.parent is None else [turn for turn in turns if turn.run_id == run_id]


def _run(conn: Connection, run_id: RunId, principal: PrincipalId | None) -> RunState:
    cached = runs.session_of(conn, run_id) if principal is None else runs.get(conn, run_id, principal)
    if cached is None:
        raise RunNotFound
    return replay(conn, run_id)


def _label(conn: Connection, by: UsageGrouping, name: str) -> str:
    """Return the name by which a person knows it."""
    match by:
        case UsageGrouping.SESSION:
            return sessions.title_of(conn, SessionId(name)) or ""
        case UsageGrouping.AGENT:
            return agents.name_of(conn, AgentId(name)) or ""
        case UsageGrouping.RUN:
            text = runs.input_of(conn, RunId(name))
            return text if text is not None else EMBEDDINGS if embeddings.find(conn, name, None) is not None else ""
        case UsageGrouping.MODEL | UsageGrouping.DAY | UsageGrouping.PRINCIPAL:
            return ""


def _budget_statuses(
    conn: Connection, settings: SpendingSettings, principal: PrincipalId | None, *, at: datetime
) -> Iterator[BudgetStatus]:
    for name, budget in settings.budgets.items():
        for account, amount in _accounts(conn, budget, principal, at=at):
            budget_status = _budget_status(name, budget, account, amount, currency=settings.currency, at=at)
            of, _, whose = account.scope.partition(":")
            by = {"session": UsageGrouping.SESSION, "agent": UsageGrouping.AGENT}.get(of)
            yield (
                replace(budget_status, label=_label(conn, by, whose)) if by is not None and principal else budget_status
            )


def _accounts(
    conn: Connection, budget: Budget, principal: PrincipalId | None, *, at: datetime
) -> Iterator[tuple[Account, Amount]]:
    """Yield the accounts of a budget that the principal may see, and their balances."""
    period = None if budget.period is BudgetPeriod.RUN else period_of(budget.period, at, "")
    whose = budget.only
    if whose is None and budget.subject is BudgetSubject.PRINCIPAL and principal is not None:
        whose = str(principal)
    single = budget.subject is BudgetSubject.EVERYTHING or (
        whose is not None and budget.subject is not BudgetSubject.AGENT
    )
    if period is not None and single:
        account = Account(scope_of(budget.subject, whose or ""), period)
        if _may_know(conn, account, principal):
            yield from accounts.read_balances(conn, [account], at=at).items()
        return
    cached = accounts.highest(conn, budget.subject, period, limit=MAX_CHECKED)
    fitting = (
        (account, amount)
        for account, amount in cached
        if _counts(conn, budget, account) and _may_know(conn, account, principal)
        # What a run that has ended could still spend is of no use.
        if period is not None or runs.is_open(conn, RunId(account.period))
    )
    for result, _ in zip(fitting, range(MAX_ACCOUNTS), strict=False):
        yield result


def _counts(conn: Connection, budget: Budget, account: Account) -> bool:
    whose = account.scope.partition(":")[2]
    if budget.only in (None, whose):
        return True
    return budget.subject is BudgetSubject.AGENT and agents.name_of(conn, AgentId(whose)) == budget.only


def _may_know(conn: Connection, account: Account, principal: PrincipalId | None) -> bool:
    """Tell whether an account is the principal's own; accounts that others spend from too are for an operator."""
    if principal is None:
        return True
    of, _, whose = account.scope.partition(":")
    match of:
        case "principal":
            return whose == principal
        case "session":
            return sessions.get(conn, SessionId(whose), principal) is not None
        case "agent":
            return agents.get(conn, AgentId(whose), principal) is not None
        case _:
            return runs.get(conn, RunId(account.period), principal) is not None


def _budget_status(
    name: str, budget: Budget, account: Account, amount: Amount, *, currency: str, at: datetime
) -> BudgetStatus:
    caps = []
    if budget.tokens is not None:
        caps.append(
            BudgetCap(unit=TOKENS, cap=budget.tokens, settled=amount.settled_tokens, reserved=amount.reserved_tokens)
        )
    if budget.money is not None:
        cap = cap_micros(budget.money)
        caps.append(BudgetCap(unit=currency, cap=cap, settled=amount.settled_micros, reserved=amount.reserved_micros))
    return BudgetStatus(
        budget=name,
        subject=budget.subject,
        subject_id=account.scope.partition(":")[2],
        per=budget.period,
        period=account.period,
        action=budget.action,
        caps=tuple(caps),
        resets_at=period_bounds(budget.period, at)[1] if budget.period is not BudgetPeriod.RUN else None,
    )
