"""Usage reports: sums of the ledger by group, causes of model turns, and the state of budgets."""

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from palyra.core.spending.budget import BudgetAction, BudgetPeriod, BudgetSubject


class UsageGrouping(StrEnum):
    """What usage is grouped by."""

    MODEL = "model"
    SESSION = "session"
    DAY = "day"
    AGENT = "agent"
    RUN = "run"
    PRINCIPAL = "principal"


class UsageTotal(Struct, frozen=True, kw_only=True):
    """The total usage of some model turns."""

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
    """How many of the turns have estimated figures."""
    discarded: int = 0
    """How many failed."""
    reserved_tokens: int = 0
    reserved_micros: int = 0
    """What is reserved for open turns."""


class UsageGroup(Struct, frozen=True, kw_only=True):
    """The usage of one model, session, day, agent, run or principal."""

    name: str
    label: str = ""
    """Its display name: a session's title, an agent's name, a run's message."""
    used: UsageTotal


class UsageCause(Struct, frozen=True, kw_only=True):
    """Model turns with the same cause."""

    cause: str
    """What led to the run: the channel of a message, `run` for a task of another run, and so on; `embeddings` for
    requests for embeddings, which do not belong to a run."""
    step: str
    """What led to the turn within the run: `input`, `results`, `retry` or `last`; `texts` for embeddings."""
    used: UsageTotal


class TurnUsage(Struct, frozen=True, kw_only=True):
    """One model turn of a run, or of a run that works for it."""

    run_id: str
    turn: int
    model: str
    cause: str
    step: str
    state: str
    at: datetime
    used: UsageTotal


class BudgetCap(Struct, frozen=True, kw_only=True):
    """One cap of a budget, and how much of it is used. Money is in millionths."""

    unit: str
    """`tokens`, or the currency."""
    cap: int
    settled: int
    reserved: int
    """What is reserved for open turns."""


class BudgetStatus(Struct, frozen=True, kw_only=True):
    """The state of a budget for one of its subjects."""

    budget: str
    subject: BudgetSubject
    subject_id: str
    """The principal, or the id of the session or agent, or the model; empty for a budget of everything."""
    label: str = ""
    """The display name of the subject, if it has one: a session's title, an agent's name."""
    per: BudgetPeriod
    period: str
    action: BudgetAction
    caps: tuple[BudgetCap, ...]
    resets_at: datetime | None = None
    """None for a budget of a run."""


class UsageReport(Struct, frozen=True, kw_only=True):
    """The usage since a point in time."""

    currency: str
    since: datetime
    by: UsageGrouping
    rows: tuple[UsageGroup, ...]
    total: UsageTotal
    budgets: tuple[BudgetStatus, ...]


class UsageCauses(Struct, frozen=True, kw_only=True):
    """The causes of model turns; lists each turn if it is about one run."""

    currency: str
    since: datetime | None = None
    run_id: str | None = None
    causes: tuple[UsageCause, ...]
    turns: tuple[TurnUsage, ...] = ()
    total: UsageTotal
