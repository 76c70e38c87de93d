"""Chooses the model of a turn: a pure function of the turn's needs, failures, open circuits and the owner's rules.

Every candidate is checked in the order of preference; the first without an objection is chosen. The objections to the
others are recorded with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from palyra.core.model.catalog import Capabilities, Complexity, TaskClass
from palyra.core.model.routing_plan import ModelCandidate, RoutingMode, RoutingPlan
from palyra.core.run.state import FailedAttempt
from palyra.providers.base import FailureKind

NARROWINGS = 3
"""How often a conversation that is too long for a model is shortened before another model is used."""
FINAL = frozenset({FailureKind.AUTH, FailureKind.PERMISSION, FailureKind.QUOTA, FailureKind.UNUSABLE})
"""Failures for which a retry with the same model does not help."""
MAX_WAIT_WITH_FALLBACK_SECONDS = 5.0
"""How long a turn waits for a model rather than use the next one."""
MAX_WAIT_SECONDS = 60.0
"""How long it waits if there is no other."""
FIRST_WAIT_SECONDS = 0.5

_SAID = {
    FailureKind.AUTH: "its key was refused",
    FailureKind.PERMISSION: "it may not be used with this key",
    FailureKind.QUOTA: "its quota is used up",
    FailureKind.RATE_LIMIT: "it is rate-limited",
    FailureKind.CONTEXT_TOO_LONG: "the conversation is too long for it",
    FailureKind.CONTENT_POLICY: "its content policy refused this",
    FailureKind.MALFORMED: "its response was not valid",
    FailureKind.NETWORK: "it could not be reached",
    FailureKind.TIMEOUT: "it timed out",
    FailureKind.UNAVAILABLE: "it was not available",
    FailureKind.UNUSABLE: "something that it needs is missing",
}


@dataclass(frozen=True, slots=True)
class RoutingOption:
    """A possible model."""

    name: str
    """`PROVIDER/MODEL`."""
    capabilities: Capabilities
    attempts: int = 3
    """The maximum attempts of a turn with it."""
    retry_in_seconds: float = 0.0
    """How long its provider's circuit stays open, after too many failures."""


@dataclass(frozen=True, slots=True)
class RoutingPreference:
    """Models in the order of preference, and the reason for the order."""

    names: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class TurnNeeds:
    """What a turn requires of a model."""

    tools: bool = False
    vision: bool = False
    context_tokens: int = 0
    """The minimum tokens of the prompt: everything before the conversation, and its last message."""

    def names(self) -> tuple[str, ...]:
        """Return the needs as the tape records them."""
        return (
            *(("tools",) if self.tools else ()),
            *(("vision",) if self.vision else ()),
            *((f"context:{self.context_tokens}",) if self.context_tokens else ()),
        )


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """The turn to plan."""

    need: TurnNeeds
    task: TaskClass
    complexity: Complexity
    failures: tuple[FailedAttempt, ...] = ()
    """The failures of this turn so far."""
    refused: Mapping[str, str] | None = None
    """The models that a budget does not allow, and its reason."""


def plan(
    turn: RoutingRequest,
    options: Mapping[str, RoutingOption],
    *,
    ordered: RoutingPreference,
    by_rules: RoutingPreference | None,
    mode: RoutingMode,
) -> RoutingPlan:
    """Choose a model; if none is available, the choice is empty and the reason says why."""
    first, second = (by_rules, ordered) if mode is RoutingMode.ENFORCE and by_rules else (ordered, None)
    names = _once((*first.names, *(second.names if second is not None else ())))
    against = _against(turn, names, options)
    choice = next((name for name in names if not against[name]), "")
    # Rules in suggest mode may name models beyond the candidates: they are checked in the same way.
    wished = _first_free(turn, by_rules, options) if by_rules is not None else ""
    return RoutingPlan(
        choice=choice,
        reason=_reason(choice, names, against, first=first, second=second),
        candidates=tuple(ModelCandidate(model=name, passed_over=against[name]) for name in names),
        recommended=wished if wished != choice else "",
        needs=turn.need.names(),
        mode=mode,
        task=turn.task,
        complexity=turn.complexity,
        budget="; ".join(_once(tuple((turn.refused or {}).values()))),
        attempt=len(turn.failures) + 1,
    )


def pause_seconds(name: str, failures: Sequence[FailedAttempt]) -> float:
    """Return how long to wait before a model is retried: what it asks for, or longer each time."""
    own = [failure for failure in failures if failure.model == name and failure.kind in _SAID]
    if not own or own[-1].kind == FailureKind.CONTEXT_TOO_LONG:
        return 0.0
    return max(own[-1].retry_ms / 1000, FIRST_WAIT_SECONDS * float(1 << (len(own) - 1)))


def narrowings(failures: Sequence[FailedAttempt], name: str) -> int:
    """Return how often the conversation was too long for a model in this turn."""
    return sum(failure.model == name and failure.kind == FailureKind.CONTEXT_TOO_LONG for failure in failures)


def complexity_of(*, turns: int, input_chars: int, has_code: bool) -> Complexity:
    """Estimate how demanding a turn is, by the number of turns so far and the length of the input."""
    if turns >= 6 or input_chars > 2000 or (has_code and input_chars > 400):
        return Complexity.HARD
    if turns == 0 and input_chars <= 200 and not has_code:
        return Complexity.SIMPLE
    return Complexity.NORMAL


def _against(turn: RoutingRequest, names: Sequence[str], options: Mapping[str, RoutingOption]) -> dict[str, str]:
    """Return the objection to each model; empty if there is none."""
    # A need that no model meets is dropped: no tools, a shortened message. To reject every model would not help.
    capabilities = [options[name].capabilities for name in names]
    need = replace(
        turn.need,
        tools=turn.need.tools and any(can.tools for can in capabilities),
        context_tokens=turn.need.context_tokens
        if any(can.window_tokens >= turn.need.context_tokens for can in capabilities)
        else 0,
    )
    hard = {name: _unfit(turn, need, options[name]) for name in names}
    against = dict(hard)
    awake = [name for name in names if not hard[name] and not options[name].retry_in_seconds]
    for name in names if awake else ():
        if not hard[name] and options[name].retry_in_seconds:
            rest = f"{options[name].retry_in_seconds:.0f} s"
            against[name] = f"its provider failed too often and is not used for {rest}"
    free = [name for name in names if not against[name]]
    for name in free:
        # Another model now is better than the same one later; if there is no other, the turn waits.
        waits, others = pause_seconds(name, turn.failures), any(other != name for other in free)
        longest = (
            MAX_WAIT_WITH_FALLBACK_SECONDS if others and not _waited(name, free, turn.failures) else MAX_WAIT_SECONDS
        )
        if waits > longest:
            against[name] = f"it asks to wait {waits:.0f} s"
    return against


def _waited(name: str, free: Sequence[str], failures: Sequence[FailedAttempt]) -> bool:
    """Return whether every other model would have to be waited for as well."""
    return all(pause_seconds(other, failures) > MAX_WAIT_WITH_FALLBACK_SECONDS for other in free if other != name)


def _unfit(turn: RoutingRequest, need: TurnNeeds, option: RoutingOption) -> str:
    can = option.capabilities
    if need.tools and not can.tools:
        return "it does not support tools"
    if need.vision and not can.vision:
        return "it does not support images"
    if need.context_tokens > can.window_tokens:
        return f"its window of {can.window_tokens} tokens is too small for {need.context_tokens}"
    if turn.refused and option.name in turn.refused:
        return "a budget does not allow it"
    # A request that one provider refuses for its content is not sent to the next.
    if any(failure.kind == FailureKind.CONTENT_POLICY for failure in turn.failures):
        return "the request was refused because of its content"
    own = [failure for failure in turn.failures if failure.model == option.name]
    for failure in own:
        if failure.kind in FINAL:
            return _SAID[FailureKind(failure.kind)]
        if failure.kind == FailureKind.MALFORMED and failure.refused:
            return "it rejects the request as it is"
    failed = [failure.kind for failure in own]
    too_long = failed.count(FailureKind.CONTEXT_TOO_LONG)
    if too_long > NARROWINGS:
        return f"{_SAID[FailureKind.CONTEXT_TOO_LONG]}, even when shortened"
    # A provider with an open circuit is used only if there is no other, and then once.
    attempts = 1 if option.retry_in_seconds > 0 else option.attempts
    if (tries := len(failed) - too_long) >= attempts:
        text = _SAID.get(FailureKind(failed[-1])) if failed[-1] in _SAID else None
        return f"{text or 'it failed'} ({tries} {'attempt' if tries == 1 else 'attempts'})"
    return ""


def _first_free(turn: RoutingRequest, wished: RoutingPreference, options: Mapping[str, RoutingOption]) -> str:
    against = _against(turn, wished.names, options)
    return next((name for name in wished.names if not against[name]), "")


def _reason(
    choice: str,
    names: Sequence[str],
    against: Mapping[str, str],
    *,
    first: RoutingPreference,
    second: RoutingPreference | None,
) -> str:
    passed = [f"{name}: {against[name]}" for name in names if against[name]]
    if not choice:
        return "no model can be used: " + "; ".join(passed)
    if choice == names[0]:
        return first.why
    why = first.why if choice in first.names or second is None else second.why
    before = [f"{name}: {against[name]}" for name in names[: names.index(choice)]]
    return f"{why}; {'; '.join(before)}"


def _once(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
