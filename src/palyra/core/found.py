"""The tools that searches have brought, by name: offered from then on, over the turns and the runs of a session."""

from collections.abc import Iterable

from palyra.core.events import ModelTurnStarted, TapeEvent, ToolFinished

MOST = 24


def join(known: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    """Return both, each name once and in its place; of too many, the first of those that were not found again go."""
    if not more:
        return known
    every = dict.fromkeys((*known, *more))
    spare = max(0, len(every) - MOST)
    dropped = set([name for name in known if name not in more][:spare])
    return tuple(name for name in every if name not in dropped)[-MOST:]


def carried(events: Iterable[TapeEvent]) -> tuple[str, ...]:
    """Return what a session has found so far, given its events from the latest one back."""
    found: list[tuple[str, ...]] = []
    for event in events:
        if isinstance(event, ToolFinished):
            found.append(event.found)
        elif isinstance(event, ModelTurnStarted) and event.found:
            # A turn names all that was found before it.
            found.append(event.found)
            break
    names: tuple[str, ...] = ()
    for more in reversed(found):
        names = join(names, more)
    return names
