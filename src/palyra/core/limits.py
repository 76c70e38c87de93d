"""The limits of a run: how far it may go, and the kinds of limit."""

from enum import StrEnum

from msgspec import Struct


class LimitKind(StrEnum):
    """The kind of limit that was reached."""

    MODEL_TURNS = "model_turns"
    TOOL_CALLS = "tool_calls"
    WALL_CLOCK = "wall_clock"
    REPEATED_FAILURE = "repeated_failure"
    """The same call failed three times, with nothing new in between."""


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of one run, frozen when it is accepted. All are stored: a later default must not change them."""

    model_turns: int = 24
    """The maximum number of model turns, not counting the last one without tools."""
    tool_calls: int = 32
    """The maximum number of calls that are executed."""
    wall_clock_ms: int = 15 * 60_000
    """The time in which a worker executes the run; neither waiting nor downtime counts."""
    last_turn_timeout_ms: int = 60_000
    """How much the last turn may exceed the wall clock."""
    tool_timeout_ms: int = 30_000
    """The timeout of one call."""
    max_depth: int = 3
    """The maximum depth of child runs."""
    max_children: int = 8
    """The maximum number of child runs of one run."""

    def capped(self, by: "Limits") -> "Limits":
        """Return these limits, each capped by the other's."""
        if self == by:
            return self  # as for every run of an agent without limits of its own
        return Limits(**{name: min(getattr(self, name), getattr(by, name)) for name in self.__struct_fields__})

    def within(self, *, model_turns: int, tool_calls: int, wall_clock_ms: int) -> "Limits":
        """Return limits for a child run that do not exceed what its parent has left."""
        return Limits(
            model_turns=max(1, min(self.model_turns, model_turns)),
            tool_calls=max(0, min(self.tool_calls, tool_calls)),
            wall_clock_ms=max(1, min(self.wall_clock_ms, wall_clock_ms)),
            last_turn_timeout_ms=self.last_turn_timeout_ms,
            tool_timeout_ms=self.tool_timeout_ms,
            max_depth=self.max_depth,
            max_children=self.max_children,
        )
