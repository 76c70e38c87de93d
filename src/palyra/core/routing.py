"""The plan of a model turn: who could be asked, who is, and why. It stands on the tape with the turn."""

from enum import StrEnum

from msgspec import Struct

from palyra.core.model import Complexity, TaskClass


class RoutingMode(StrEnum):
    """What the rules of the configuration are for."""

    SUGGEST = "suggest"
    """The default model is asked; the plan says which one the rules would have chosen."""
    ENFORCE = "enforce"
    """The model that the rules choose is asked."""


class Candidate(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model that was considered."""

    model: str
    """`PROVIDER/MODEL`."""
    passed_over: str = ""
    """Why it can not be asked now; empty if it can."""


class Plan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a turn's model was chosen."""

    choice: str
    """`PROVIDER/MODEL`."""
    reason: str
    candidates: tuple[Candidate, ...] = ()
    """In the order of preference."""
    recommended: str = ""
    """What the rules would have chosen, where that is not what was."""
    needs: tuple[str, ...] = ()
    """What the turn asks of a model: `tools`, `vision`, `context:TOKENS`."""
    mode: RoutingMode = RoutingMode.SUGGEST
    task: TaskClass = TaskClass.INTERACTIVE
    complexity: Complexity = Complexity.NORMAL
    budget: str = ""
    """How the budgets stand that bear on the choice; empty if there are none."""
    attempt: int = 1
    """How often the turn was tried, this time included."""
