"""What is told of spending: sums of the ledger by something, causes of model turns, and how budgets stand."""

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from palyra.core.budget import Action, Of, Per


class By(StrEnum):
    """By what usage is added up."""

    MODEL = "model"
    SESSION = "session"
    DAY = "day"
    AGENT = "agent"
    RUN = "run"
    PRINCIPAL = "principal"


class Used(Struct, frozen=True, kw_only=True):
    """What some model turns took together."""

    turns: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    micros: int = 0
    """What they cost, in millionths, as far as there are prices."""
    unpriced: int = 0
    """How many of the turns have no price."""
    estimated: int = 0
    """Of how many the figures are a guess."""
    voided: int = 0
    """How many came to nothing."""
    reserved_tokens: int = 0
    reserved_micros: int = 0
    """What is set aside for those that are under way."""


class UsedBy(Struct, frozen=True, kw_only=True):
    """What one model, session, day, agent, run or principal took."""

    name: str
    label: str = ""
    """What a person knows it by: a session's title, an agent's name, a run's message."""
    used: Used


class Cause(Struct, frozen=True, kw_only=True):
    """Model turns that one thing led to."""

    cause: str
    """What led to the run: a door by which a message came in, `run` for a task of another run, and so on; `embeddings`
    for texts to be embedded, which are no run."""
    step: str
    """What led to the turn within the run: `input`, `results`, `retry` or `last`; `texts` for embeddings."""
    used: Used


class TurnUsed(Struct, frozen=True, kw_only=True):
    """One model turn of a run, or of a run that works for it."""

    run_id: str
    turn: int
    model: str
    cause: str
    step: str
    state: str
    at: datetime
    used: Used


class Cap(Struct, frozen=True, kw_only=True):
    """One cap of a budget, and how far it is used. Money is in millionths."""

    unit: str
    """`tokens`, or the currency."""
    cap: int
    settled: int
    reserved: int
    """What is set aside for turns that are under way."""


class BudgetStanding(Struct, frozen=True, kw_only=True):
    """How a budget stands for one of those that it counts."""

    budget: str
    of: Of
    whose: str
    """`everything`, `principal user:ana`, and so on."""
    label: str = ""
    per: Per
    period: str
    action: Action
    caps: tuple[Cap, ...]
    begins_anew: datetime | None = None
    """None for a budget of a run."""


class UsageReport(Struct, frozen=True, kw_only=True):
    """What was used since a moment."""

    currency: str
    since: datetime
    by: By
    rows: tuple[UsedBy, ...]
    total: Used
    budgets: tuple[BudgetStanding, ...]


class Causes(Struct, frozen=True, kw_only=True):
    """What led to model turns; each of them if it is about one run."""

    currency: str
    since: datetime | None = None
    run_id: str | None = None
    causes: tuple[Cause, ...]
    turns: tuple[TurnUsed, ...] = ()
    total: Used
