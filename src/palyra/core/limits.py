"""How far a run may go, and the kinds of limit it can meet."""

from enum import StrEnum

from msgspec import Struct


class LimitKind(StrEnum):
    """Which limit was met."""

    MODEL_TURNS = "model_turns"
    TOOL_CALLS = "tool_calls"
    WALL_CLOCK = "wall_clock"
    REPEATED_FAILURE = "repeated_failure"
    """The same call failed three times, and nothing new was learned in between."""


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of one run, frozen when it is accepted. All are written out: a later default must not change them."""

    model_turns: int = 24
    """How often the model may be asked, one last turn not counted."""
    tool_calls: int = 32
    """How many calls may be carried out."""
    wall_clock_ms: int = 15 * 60_000
    """Time in which a worker carried the run; neither waiting nor downtime counts."""
    last_turn_ms: int = 60_000
    """How far the last turn may go over the wall clock."""
    tool_ms: int = 30_000
    """How long one call may take."""
    depth: int = 3
    """How many runs may stand one below the other."""
    children: int = 8
    """How many runs one run may start."""

    def capped(self, by: "Limits") -> "Limits":
        """Return these limits, each no higher than the other's."""
        if self == by:
            return self  # as for every run of an agent without limits of its own
        return Limits(**{name: min(getattr(self, name), getattr(by, name)) for name in self.__struct_fields__})

    def within(self, *, model_turns: int, tool_calls: int, wall_clock_ms: int) -> "Limits":
        """Return limits for a child that never exceed what its parent has left."""
        return Limits(
            model_turns=max(1, min(self.model_turns, model_turns)),
            tool_calls=max(0, min(self.tool_calls, tool_calls)),
            wall_clock_ms=max(1, min(self.wall_clock_ms, wall_clock_ms)),
            last_turn_ms=self.last_turn_ms,
            tool_ms=self.tool_ms,
            depth=self.depth,
            children=self.children,
        )
