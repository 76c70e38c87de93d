"""What was spent: each model turn as the ledger has it, and the accounts that budgets are held against.

A call for embeddings is a turn too, the only one of a run that stands on no tape as one: its own id takes that place.

An account is a scope and a period: `principal:user:ana` on `2026-11-15`. What stands in it is the sum of the turns that
belong to it, those that are settled at what they took, those that are open at what is set aside for them.
"""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from palyra.core.budget import Of, Per, Reserved
from palyra.core.clock import to_ms
from palyra.core.events import EmbeddingsStarted, ModelTurnStarted
from palyra.core.ids import AgentId, PrincipalId, RunId, SessionId
from palyra.core.run import RunState
from palyra.core.usage import Usage

RESERVED, SETTLED, VOIDED = "reserved", "settled", "voided"
EVERYTHING = "everything"
EMBEDDINGS = "embeddings"
"""What led to a turn that is a call for embeddings."""
NOTHING = Usage()


class Turn(Struct, frozen=True, kw_only=True):
    """A model turn in the ledger; its fields are the columns, in their order."""

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
    """Which class of work it was for."""
    cause: str
    """What led to the run: `http`, `grpc`, `run`, `reissue` and so on; `embeddings` for a call of its own."""
    step: str
    """What led to the turn within the run: `input`, `results`, `retry` or `last`; `texts` for embeddings."""
    at_ms: int
    state: str
    """`reserved` until it is over, then `settled`, or `voided` if its answer does not count."""
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
    """1 if the figures are a guess."""

    @property
    def reserved(self) -> Reserved:
        """What was set aside for it."""
        return Reserved(
            input_tokens=self.reserved_input, output_tokens=self.reserved_output, micros=self.reserved_micros
        )


class Spender(NamedTuple):
    """For whom a turn is to be: what tells which budgets it counts for."""

    principal: PrincipalId
    agent_id: AgentId
    session_id: SessionId
    run_id: RunId
    """The run and the session that it works for in the end."""
    is_new: bool
    """Nothing was spent for that run yet, and nobody else spends for it."""
    lifted: tuple[str, ...] = ()
    """The budgets that it may go beyond."""
    is_alone: bool = False
    """The turn is all that will ever be spent for that run."""


class Account(NamedTuple):
    """What a budget counts together."""

    scope: str
    period: str


class Amount(NamedTuple):
    """What stands in an account, or what a turn adds to it. Money is in millionths."""

    settled_tokens: int = 0
    settled_micros: int = 0
    reserved_tokens: int = 0
    reserved_micros: int = 0

    def less(self, other: "Amount") -> "Amount":
        """Return what this is more than another."""
        return Amount(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))

    @property
    def tokens(self) -> int:
        """Settled and set aside."""
        return self.settled_tokens + self.reserved_tokens

    @property
    def micros(self) -> int:
        """Settled and set aside."""
        return self.settled_micros + self.reserved_micros


def opened(state: RunState, event: ModelTurnStarted) -> Turn:
    """Return the turn that an event begins, in a run that stood so."""
    reserved = event.reserved or _NO_RESERVATION
    return Turn(
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
        cause=state.origin,
        step=_step(state, event),
        at_ms=to_ms(event.at),
        state=RESERVED,
        reserved_input=reserved.input_tokens,
        reserved_output=reserved.output_tokens,
        reserved_micros=reserved.micros,
    )


def embedded(session_id: SessionId, event: EmbeddingsStarted) -> Turn:
    """Return the turn that a call for embeddings begins, on the tape of a session."""
    return Turn(
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
        reserved_micros=event.reserved.micros,
    )


def spender_of(state: RunState) -> Spender:
    """Return for whom the turns of a run are."""
    return Spender(
        principal=state.principal,
        agent_id=state.agent_id,
        session_id=state.root_session_id,
        run_id=state.root_run_id,
        is_new=state.turns == 0 and state.parent is None,
        lifted=state.lifted,
    )


_NO_RESERVATION = Reserved(input_tokens=0, output_tokens=0)


def _step(state: RunState, event: ModelTurnStarted) -> str:
    if event.last:
        return "last"
    if state.failures or (state.turns and not state.calls and not state.answered):
        return "retry"
    return "results" if state.calls else "input"


def closed(turn: Turn, state: str, usage: Usage, micros: int | None) -> Turn:
    """Return an open turn as it stands once it is over."""
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


def left_open(reserved: Reserved | None) -> tuple[Usage, int | None]:
    """Return what a turn is taken to have used that nobody saw the end of: all that was set aside for it."""
    if reserved is None:
        return NOTHING, None
    usage = Usage(input_tokens=reserved.input_tokens, output_tokens=reserved.output_tokens, estimated=True)
    return usage, reserved.micros


def weight(turn: Turn) -> Amount:
    """Return what a turn adds to its accounts."""
    if turn.state == RESERVED:
        return Amount(
            reserved_tokens=turn.reserved_input + turn.reserved_output, reserved_micros=turn.reserved_micros or 0
        )
    return Amount(settled_tokens=turn.input_tokens + turn.output_tokens, settled_micros=turn.micros or 0)


def scope_of(of: Of, whose: str) -> str:
    """Return the name of a scope."""
    return EVERYTHING if of is Of.EVERYTHING else f"{of.value}:{whose}"


def scopes(turn: Turn) -> tuple[str, ...]:
    """Return the scopes that a turn belongs to."""
    return (
        EVERYTHING,
        f"principal:{turn.principal}",
        f"session:{turn.root_session_id}",
        f"agent:{turn.agent_id}",
        f"model:{turn.provider}/{turn.model}",
    )


def bounds(per: Per, at: datetime) -> tuple[datetime, datetime]:
    """Return when the day or month of a moment begins, and when the next one does."""
    day = datetime(at.year, at.month, at.day, tzinfo=UTC)
    if per is Per.DAY:
        return day, day + timedelta(days=1)
    first = day.replace(day=1)
    return first, (first + timedelta(days=32)).replace(day=1)
