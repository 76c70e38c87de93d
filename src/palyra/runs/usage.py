"""What was spent, and how the budgets stand, for whoever asks: each principal about its own, an operator about all."""

from collections.abc import Callable, Iterator
from datetime import datetime

from msgspec.structs import replace

from palyra.core.budget import Budget, Of, Per, period_of
from palyra.core.clock import Clock, from_ms, to_ms
from palyra.core.ids import AgentId, PrincipalId, RunId, SessionId, parse_ulid
from palyra.core.report import BudgetStanding, By, Cap, Cause, Causes, TurnUsed, UsageReport, Used
from palyra.core.run import RunState
from palyra.core.spending import EMBEDDINGS, Account, Amount, Turn, bounds, scope_of
from palyra.journal import agents, embeddings, runs, sessions, spending, usage
from palyra.journal.engine import Connection, Engine
from palyra.runs.budgets import TOKENS, cap_micros
from palyra.runs.control import RunNotFound
from palyra.runs.replay import replay
from palyra.settings import SpendingSettings

MOST_TURNS = 500
MOST_ACCOUNTS = 8
"""So many are shown of a budget that each session, agent, model or run has by itself."""
LOOKED_AT = 64


class Usage:
    """Reads the ledger."""

    def __init__(self, engine: Engine, settings: Callable[[], SpendingSettings], *, clock: Clock) -> None:
        """`settings` returns those in force."""
        self._engine = engine
        self._settings = settings
        self._clock = clock

    async def report(self, principal: PrincipalId | None, by: By, *, since: datetime, limit: int) -> UsageReport:
        """Add up what a principal, or everybody, has used since a moment."""
        settings, at = self._settings(), self._clock.now()

        def query(conn: Connection) -> UsageReport:
            rows = usage.added_up(conn, by, principal, since_ms=to_ms(since), limit=limit)
            return UsageReport(
                currency=settings.currency,
                since=since,
                by=by,
                # What somebody else has said is not an operator's to read.
                rows=tuple(replace(row, label=_label(conn, by, row.name)) if principal else row for row in rows),
                total=usage.total(conn, principal, since_ms=to_ms(since)),
                budgets=tuple(_standings(conn, settings, principal, at=at)),
            )

        return await self._engine.read(query)

    async def why(self, principal: PrincipalId | None, *, since: datetime) -> Causes:
        """Say what led to the model turns since a moment."""

        def query(conn: Connection) -> Causes:
            return Causes(
                currency=self._settings().currency,
                since=since,
                causes=tuple(usage.causes(conn, principal, since_ms=to_ms(since))),
                total=usage.total(conn, principal, since_ms=to_ms(since)),
            )

        return await self._engine.read(query)

    async def why_run(self, principal: PrincipalId | None, name: str) -> Causes:
        """Say what led to the model turns of a run, and of the runs that worked for it."""
        wanted = RunId(parse_ulid(name, "run id"))

        def query(conn: Connection) -> Causes:
            turns = _turns(conn, wanted, principal)
            told = tuple(
                TurnUsed(
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
            grouped: dict[tuple[str, str], Used] = {}
            for one in told:
                known = grouped.get((one.cause, one.step), Used())
                grouped[one.cause, one.step] = _plus(known, one.used)
            total = Used()
            for used in grouped.values():
                total = _plus(total, used)
            causes = (Cause(cause=cause, step=step, used=used) for (cause, step), used in grouped.items())
            currency = self._settings().currency
            return Causes(currency=currency, run_id=wanted, causes=tuple(causes), turns=told, total=total)

        return await self._engine.read(query)


def _plus(first: Used, second: Used) -> Used:
    return Used(**{name: getattr(first, name) + getattr(second, name) for name in Used.__struct_fields__})


def _turns(conn: Connection, wanted: RunId, principal: PrincipalId | None) -> list[Turn]:
    """Return the turns of a run, and of the runs that worked for it; of a call for embeddings its only one."""
    if (call := embeddings.find(conn, wanted, principal)) is not None:
        return [call]
    state = _run(conn, wanted, principal)
    turns = usage.of_root(conn, state.root_run_id, principal, limit=MOST_TURNS)
    # Of a child only what it took itself: the rest belongs to the run that it works for.
    return turns if state.parent is None else [turn for turn in turns if turn.run_id == wanted]


def _run(conn: Connection, run_id: RunId, principal: PrincipalId | None) -> RunState:
    known = runs.session_of(conn, run_id) if principal is None else runs.get(conn, run_id, principal)
    if known is None:
        raise RunNotFound
    return replay(conn, run_id)


def _label(conn: Connection, by: By, name: str) -> str:
    """Return what a person knows it by."""
    match by:
        case By.SESSION:
            return sessions.title_of(conn, SessionId(name)) or ""
        case By.AGENT:
            return agents.name_of(conn, AgentId(name)) or ""
        case By.RUN:
            said = runs.input_of(conn, RunId(name))
            return said if said is not None else EMBEDDINGS if embeddings.find(conn, name, None) is not None else ""
        case By.MODEL | By.DAY | By.PRINCIPAL:
            return ""


def _standings(
    conn: Connection, settings: SpendingSettings, principal: PrincipalId | None, *, at: datetime
) -> Iterator[BudgetStanding]:
    for name, budget in settings.budgets.items():
        for account, amount in _accounts(conn, budget, principal, at=at):
            found = _standing(name, budget, account, amount, currency=settings.currency, at=at)
            of, _, whose = account.scope.partition(":")
            by = {"session": By.SESSION, "agent": By.AGENT}.get(of)
            yield replace(found, label=_label(conn, by, whose)) if by is not None and principal else found


def _accounts(
    conn: Connection, budget: Budget, principal: PrincipalId | None, *, at: datetime
) -> Iterator[tuple[Account, Amount]]:
    """Yield the accounts of a budget that the principal may know of, and what stands in them."""
    period = None if budget.per is Per.RUN else period_of(budget.per, at, "")
    whose = budget.only
    if whose is None and budget.of is Of.PRINCIPAL and principal is not None:
        whose = str(principal)
    single = budget.of is Of.EVERYTHING or (whose is not None and budget.of is not Of.AGENT)
    if period is not None and single:
        account = Account(scope_of(budget.of, whose or ""), period)
        if _may_know(conn, account, principal):
            yield from spending.look(conn, [account], at=at).items()
        return
    known = spending.highest(conn, budget.of, period, limit=LOOKED_AT)
    fitting = (
        (account, amount)
        for account, amount in known
        if _counts(conn, budget, account) and _may_know(conn, account, principal)
        # What a run that has ended may still spend is of no use to anybody.
        if period is not None or runs.is_open(conn, RunId(account.period))
    )
    for found, _ in zip(fitting, range(MOST_ACCOUNTS), strict=False):
        yield found


def _counts(conn: Connection, budget: Budget, account: Account) -> bool:
    whose = account.scope.partition(":")[2]
    if budget.only in (None, whose):
        return True
    return budget.of is Of.AGENT and agents.name_of(conn, AgentId(whose)) == budget.only


def _may_know(conn: Connection, account: Account, principal: PrincipalId | None) -> bool:
    """Tell whether an account is a principal's own; what others have spent too is for an operator."""
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


def _standing(
    name: str, budget: Budget, account: Account, amount: Amount, *, currency: str, at: datetime
) -> BudgetStanding:
    caps = []
    if budget.tokens is not None:
        caps.append(Cap(unit=TOKENS, cap=budget.tokens, settled=amount.settled_tokens, reserved=amount.reserved_tokens))
    if budget.money is not None:
        cap = cap_micros(budget.money)
        caps.append(Cap(unit=currency, cap=cap, settled=amount.settled_micros, reserved=amount.reserved_micros))
    return BudgetStanding(
        budget=name,
        of=budget.of,
        whose=account.scope.replace(":", " ", 1),
        per=budget.per,
        period=account.period,
        action=budget.action,
        caps=tuple(caps),
        begins_anew=bounds(budget.per, at)[1] if budget.per is not Per.RUN else None,
    )
