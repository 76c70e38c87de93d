"""The ledger: what each model turn cost, and the accounts that budgets are checked against.

A request for embeddings is a turn too. It does not belong to a run, so its own id is used instead of a run id.

An account is a scope and a period: `principal:user:ana` on `2026-11-15`. Its balance is the sum of its turns: settled
turns count what they used, open turns what is reserved for them.
"""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from palyra.core.clock import to_ms
from palyra.core.events import ModelTurnStarted
from palyra.core.ids import AgentId, PrincipalId, RunId, SessionId
from palyra.core.run.state import RunState
from palyra.core.session_events import EmbeddingsStarted
from palyra.core.spending.budget import BudgetPeriod, BudgetSubject, Reservation
from palyra.core.spending.usage import Usage

RESERVED, SETTLED, DISCARDED = "reserved", "settled", "discarded"
EVERYTHING = "everything"
EMBEDDINGS = "embeddings"
"""The cause of a turn that is a request for embeddings."""
NOTHING = Usage()


class LedgerTurn(Struct, frozen=True, kw_only=True):
    """A model turn in the ledger; its fields are the columns, in order."""

    root_run_id: str
    run_id: str
    turn: int
    session_id: str
    root_session_id: str
    principal: str
    agent_id: str
    provider: str
    model: str
    task: str
    """The task class of the run."""
    cause: str
    """What led to the run: `http`, `grpc`, `run`, `reissue` and so on; `embeddings` for a request for embeddings."""
    step: str
    """What led to the turn within the run: `input`, `results`, `retry` or `last`; `texts` for embeddings."""
    at_ms: int
    state: str
    """`reserved` while it is open, then `settled`, or `discarded` if the attempt failed."""
    reserved_input: int
    reserved_output: int
    reserved_micros: int | None
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    micros: int | None = None
    """What it cost; None if the model has no price."""
    estimated: int = 0
    """1 if the figures are estimates."""

    @property
    def reserved(self) -> Reservation:
        """What was reserved for it."""
        return Reservation(
            input_tokens=self.reserved_input, output_tokens=self.reserved_output, cost_micros=self.reserved_micros
        )


class Spender(NamedTuple):
    """On whose behalf a turn is made: this determines which budgets it counts for."""

    principal: PrincipalId
    agent_id: AgentId
    session_id: SessionId
    run_id: RunId
    """The run and the session at the top, for which it works."""
    is_new: bool
    """Nothing has been spent for that run yet, and no one else spends for it."""
    lifted: tuple[str, ...] = ()
    """The budgets that it may exceed."""
    is_alone: bool = False
    """The turn is the only one of that run."""


class Account(NamedTuple):
    """The scope and period that a budget adds up."""

    scope: str
    period: str


class Amount(NamedTuple):
    """The balance of an account, or what a turn adds to it. Money is in millionths."""

    settled_tokens: int = 0
    settled_micros: int = 0
    reserved_tokens: int = 0
    reserved_micros: int = 0

    def less(self, other: "Amount") -> "Amount":
        """Return the difference to another amount."""
        return Amount(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))

    @property
    def tokens(self) -> int:
        """Settled and reserved."""
        return self.settled_tokens + self.reserved_tokens

    @property
    def micros(self) -> int:
        """Settled and reserved."""
        return self.settled_micros + self.reserved_micros


def turn_opened(state: RunState, event: ModelTurnStarted) -> LedgerTurn:
    """Return the ledger turn that an event opens, for a run in this state."""
    reserved = event.reserved or _NO_RESERVATION
    return LedgerTurn(
        root_run_id=state.root_run_id,
        run_id=state.run_id,
        turn=event.turn,
        session_id=state.session_id,
        root_session_id=state.root_session_id,
        principal=state.principal,
        agent_id=state.agent_id,
        provider=event.provider,
        model=event.model,
        task=event.plan.task.value if event.plan is not None else "",
        cause=state.channel,
        step=_step(state, event),
        at_ms=to_ms(event.at),
        state=RESERVED,
        reserved_input=reserved.input_tokens,
        reserved_output=reserved.output_tokens,
        reserved_micros=reserved.cost_micros,
    )


def embeddings_opened(session_id: SessionId, event: EmbeddingsStarted) -> LedgerTurn:
    """Return the ledger turn that a request for embeddings opens, on the tape of a session."""
    return LedgerTurn(
        root_run_id=event.request_id,
        run_id=event.request_id,
        turn=1,
        session_id=session_id,
        root_session_id=session_id,
        principal=event.principal,
        agent_id=event.agent_id,
        provider=event.provider,
        model=event.model,
        task=EMBEDDINGS,
        cause=EMBEDDINGS,
        step="texts",
        at_ms=to_ms(event.at),
        state=RESERVED,
        reserved_input=event.reserved.input_tokens,
        reserved_output=event.reserved.output_tokens,
        reserved_micros=event.reserved.cost_micros,
    )


def spender_of(state: RunState) -> Spender:
    """Return on whose behalf the turns of a run are made."""
    return Spender(
        principal=state.principal,
        agent_id=state.agent_id,
        session_id=state.root_session_id,
        run_id=state.root_run_id,
        is_new=state.turns == 0 and state.parent is None,
        lifted=state.lifted,
    )


_NO_RESERVATION = Reservation(input_tokens=0, output_tokens=0)


def _step(state: RunState, event: ModelTurnStarted) -> str:
    if event.last:
        return "last"
    if state.failures or (state.turns and not state.calls and not state.answered):
        return "retry"
    return "results" if state.calls else "input"


def turn_closed(turn: LedgerTurn, state: str, usage: Usage, micros: int | None) -> LedgerTurn:
    """Return an open turn with its final state and figures."""
    return replace(
        turn,
        state=state,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        micros=micros,
        estimated=int(usage.estimated),
    )


def turn_abandoned(reserved: Reservation | None) -> tuple[Usage, int | None]:
    """Return the assumed usage of a turn whose end is unknown: everything that was reserved for it."""
    if reserved is None:
        return NOTHING, None
    usage = Usage(input_tokens=reserved.input_tokens, output_tokens=reserved.output_tokens, estimated=True)
    return usage, reserved.cost_micros


def turn_amount(turn: LedgerTurn) -> Amount:
    """Return what a turn adds to its accounts."""
    if turn.state == RESERVED:
        return Amount(
            reserved_tokens=turn.reserved_input + turn.reserved_output, reserved_micros=turn.reserved_micros or 0
        )
    return Amount(settled_tokens=turn.input_tokens + turn.output_tokens, settled_micros=turn.micros or 0)


def scope_of(of: BudgetSubject, whose: str) -> str:
    """Return the name of a scope."""
    return EVERYTHING if of is BudgetSubject.EVERYTHING else f"{of.value}:{whose}"


def scopes(turn: LedgerTurn) -> tuple[str, ...]:
    """Return the scopes that a turn counts for."""
    return (
        EVERYTHING,
        f"principal:{turn.principal}",
        f"session:{turn.root_session_id}",
        f"agent:{turn.agent_id}",
        f"model:{turn.provider}/{turn.model}",
    )


def period_bounds(per: BudgetPeriod, at: datetime) -> tuple[datetime, datetime]:
    """Return when the day or month of a time begins, and when the next one begins."""
    day = datetime(at.year, at.month, at.day, tzinfo=UTC)
    if per is BudgetPeriod.DAY:
        return day, day + timedelta(days=1)
    first = day.replace(day=1)
    return first, (first + timedelta(days=32)).replace(day=1)
