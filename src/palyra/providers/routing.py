"""Which model is asked: a pure choice by what the turn needs, what has failed, who rests, and what the owner wants.

Every candidate is looked at in the order of preference; the first that nothing speaks against is the choice. What
speaks against the others is written down with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from palyra.core.model import Capabilities, Complexity, TaskClass
from palyra.core.routing import Candidate, Plan, RoutingMode
from palyra.core.run import Failure
from palyra.providers.base import FailureKind

NARROWINGS = 3
"""How often a conversation that is too long for a model is shortened before another one is asked."""
FINAL = frozenset({FailureKind.AUTH, FailureKind.PERMISSION, FailureKind.QUOTA, FailureKind.UNUSABLE})
"""What no second try at the same place mends."""
PATIENCE_SECONDS = 5.0
"""How long a turn waits for a model rather than ask the next one."""
LONGEST_WAIT_SECONDS = 60.0
"""How long it waits if there is no other."""
FIRST_WAIT_SECONDS = 0.5

_SAID = {
    FailureKind.AUTH: "its key was refused",
    FailureKind.PERMISSION: "it may not be used with this key",
    FailureKind.QUOTA: "its quota is used up",
    FailureKind.RATE_LIMIT: "too much was asked of it",
    FailureKind.CONTEXT_TOO_LONG: "the conversation is too long for it",
    FailureKind.CONTENT_POLICY: "it will not answer this",
    FailureKind.MALFORMED: "its answer could not be read",
    FailureKind.NETWORK: "it could not be reached",
    FailureKind.TIMEOUT: "it did not answer in time",
    FailureKind.UNAVAILABLE: "it was not available",
    FailureKind.UNUSABLE: "what it needs is not there",
}


@dataclass(frozen=True, slots=True)
class Option:
    """A model that could be asked."""

    name: str
    """`PROVIDER/MODEL`."""
    capabilities: Capabilities
    attempts: int = 3
    """How often a turn may be tried with it."""
    rests_seconds: float = 0.0
    """How long its provider is left alone, after it has failed too often."""


@dataclass(frozen=True, slots=True)
class Preference:
    """Models in the order in which they are asked, and why that is the order."""

    names: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Need:
    """What a turn asks of a model."""

    tools: bool = False
    vision: bool = False
    context_tokens: int = 0
    """What the prompt takes at the least: what comes before the conversation, and its last message."""

    def words(self) -> tuple[str, ...]:
        """Return it as the tape keeps it."""
        return (
            *(("tools",) if self.tools else ()),
            *(("vision",) if self.vision else ()),
            *((f"context:{self.context_tokens}",) if self.context_tokens else ()),
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """What is to be planned."""

    need: Need
    task: TaskClass
    complexity: Complexity
    failures: tuple[Failure, ...] = ()
    """What has failed in this turn so far."""
    refused: Mapping[str, str] | None = None
    """The models that a budget does not allow, and what it says."""


def plan(
    turn: Turn,
    options: Mapping[str, Option],
    *,
    ordered: Preference,
    by_rules: Preference | None,
    mode: RoutingMode,
) -> Plan:
    """Choose a model; the plan has an empty choice if there is none to ask, and says why in its reason."""
    first, second = (by_rules, ordered) if mode is RoutingMode.ENFORCE and by_rules else (ordered, None)
    names = _once((*first.names, *(second.names if second is not None else ())))
    against = _against(turn, names, options)
    choice = next((name for name in names if not against[name]), "")
    # Rules that only suggest may name models beyond the candidates: they are judged in the same way.
    wished = _first_free(turn, by_rules, options) if by_rules is not None else ""
    return Plan(
        choice=choice,
        reason=_reason(choice, names, against, first=first, second=second),
        candidates=tuple(Candidate(model=name, passed_over=against[name]) for name in names),
        recommended=wished if wished != choice else "",
        needs=turn.need.words(),
        mode=mode,
        task=turn.task,
        complexity=turn.complexity,
        budget="; ".join(_once(tuple((turn.refused or {}).values()))),
        attempt=len(turn.failures) + 1,
    )


def pause_seconds(name: str, failures: Sequence[Failure]) -> float:
    """Return how long to wait before a model is asked again: what it asks for, or longer each time."""
    own = [failure for failure in failures if failure.model == name and failure.kind in _SAID]
    if not own or own[-1].kind == FailureKind.CONTEXT_TOO_LONG:
        return 0.0
    return max(own[-1].retry_ms / 1000, FIRST_WAIT_SECONDS * float(1 << (len(own) - 1)))


def narrowings(failures: Sequence[Failure], name: str) -> int:
    """Return how often the conversation was too long for a model in this turn."""
    return sum(failure.model == name and failure.kind == FailureKind.CONTEXT_TOO_LONG for failure in failures)


def complexity_of(*, turns: int, input_chars: int, has_code: bool) -> Complexity:
    """Guess how much a turn asks of a model: by how long the work goes on, and how much was said."""
    if turns >= 6 or input_chars > 2000 or (has_code and input_chars > 400):
        return Complexity.HARD
    if turns == 0 and input_chars <= 200 and not has_code:
        return Complexity.SIMPLE
    return Complexity.NORMAL


def _against(turn: Turn, names: Sequence[str], options: Mapping[str, Option]) -> dict[str, str]:
    """Say what speaks against each; empty if nothing does."""
    # What none of them has is done without: no tools, a shortened message. To refuse every one would help nobody.
    known = [options[name].capabilities for name in names]
    need = replace(
        turn.need,
        tools=turn.need.tools and any(can.tools for can in known),
        context_tokens=turn.need.context_tokens
        if any(can.window_tokens >= turn.need.context_tokens for can in known)
        else 0,
    )
    hard = {name: _unfit(turn, need, options[name]) for name in names}
    against = dict(hard)
    awake = [name for name in names if not hard[name] and not options[name].rests_seconds]
    for name in names if awake else ():
        if not hard[name] and options[name].rests_seconds:
            rest = f"{options[name].rests_seconds:.0f} s"
            against[name] = f"its provider has failed too often and is left alone for {rest}"
    free = [name for name in names if not against[name]]
    for name in free:
        # Better another one now than the same one later; if there is no other, it is waited for.
        waits, others = pause_seconds(name, turn.failures), any(other != name for other in free)
        longest = PATIENCE_SECONDS if others and not _waited(name, free, turn.failures) else LONGEST_WAIT_SECONDS
        if waits > longest:
            against[name] = f"it asks to be left alone for {waits:.0f} s"
    return against


def _waited(name: str, free: Sequence[str], failures: Sequence[Failure]) -> bool:
    """Whether every other one would have to be waited for as well."""
    return all(pause_seconds(other, failures) > PATIENCE_SECONDS for other in free if other != name)


def _unfit(turn: Turn, need: Need, option: Option) -> str:
    can = option.capabilities
    if need.tools and not can.tools:
        return "it does not call tools"
    if need.vision and not can.vision:
        return "it does not understand pictures"
    if need.context_tokens > can.window_tokens:
        return f"its window of {can.window_tokens} tokens is too small for {need.context_tokens}"
    if turn.refused and option.name in turn.refused:
        return "a budget does not allow it"
    # What one provider will not hear for its content is not carried to the next.
    if any(failure.kind == FailureKind.CONTENT_POLICY for failure in turn.failures):
        return "what was asked was refused for its content"
    own = [failure for failure in turn.failures if failure.model == option.name]
    for failure in own:
        if failure.kind in FINAL:
            return _SAID[FailureKind(failure.kind)]
        if failure.kind == FailureKind.MALFORMED and failure.refused:
            return "it will not take the request as it stands"
    failed = [failure.kind for failure in own]
    too_long = failed.count(FailureKind.CONTEXT_TOO_LONG)
    if too_long > NARROWINGS:
        return f"{_SAID[FailureKind.CONTEXT_TOO_LONG]}, also when shortened"
    # Who is left alone is asked at all only if nobody else is there, and then once.
    attempts = 1 if option.rests_seconds > 0 else option.attempts
    if (tries := len(failed) - too_long) >= attempts:
        said = _SAID.get(FailureKind(failed[-1])) if failed[-1] in _SAID else None
        return f"{said or 'it failed'} ({tries} {'try' if tries == 1 else 'tries'})"
    return ""


def _first_free(turn: Turn, wished: Preference, options: Mapping[str, Option]) -> str:
    against = _against(turn, wished.names, options)
    return next((name for name in wished.names if not against[name]), "")


def _reason(
    choice: str,
    names: Sequence[str],
    against: Mapping[str, str],
    *,
    first: Preference,
    second: Preference | None,
) -> str:
    passed = [f"{name}: {against[name]}" for name in names if against[name]]
    if not choice:
        return "no model can be asked: " + "; ".join(passed)
    if choice == names[0]:
        return first.why
    why = first.why if choice in first.names or second is None else second.why
    before = [f"{name}: {against[name]}" for name in names[: names.index(choice)]]
    return f"{why}; {'; '.join(before)}"


def _once(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
