"""The routing plan of a model turn: the candidates, the choice and the reason. It is recorded with the turn."""

from enum import StrEnum

from msgspec import Struct

from palyra.core.model.catalog import Complexity, TaskClass


class RoutingMode(StrEnum):
    """How the routing rules of the configuration are applied."""

    SUGGEST = "suggest"
    """The default model is used; the plan says which one the rules would have chosen."""
    ENFORCE = "enforce"
    """The model that the rules choose is used."""


class ModelCandidate(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model that was considered."""

    model: str
    """`PROVIDER/MODEL`."""
    passed_over: str = ""
    """Why it cannot be used now; empty if it can."""


class RoutingPlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a turn's model was chosen."""

    choice: str
    """`PROVIDER/MODEL`."""
    reason: str
    candidates: tuple[ModelCandidate, ...] = ()
    """In the order of preference."""
    recommended: str = ""
    """What the rules would have chosen, if it differs from the choice."""
    needs: tuple[str, ...] = ()
    """What the turn requires of a model: `tools`, `vision`, `context:TOKENS`."""
    mode: RoutingMode = RoutingMode.SUGGEST
    task: TaskClass = TaskClass.INTERACTIVE
    complexity: Complexity = Complexity.NORMAL
    budget: str = ""
    """The state of the budgets that affect the choice; empty if there are none."""
    attempt: int = 1
    """The number of attempts of this turn, including this one."""
