"""Discovered tools, by name: once found by a search, a tool is offered for the rest of the session."""

from collections.abc import Iterable

from palyra.core.events import ModelTurnStarted, TapeEvent, ToolFinished

MAX_DISCOVERED_TOOLS = 24


def join_tools(names: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    """Return both without duplicates, in order; if there are too many, drop the oldest that were not found again."""
    if not more:
        return names
    every = dict.fromkeys((*names, *more))
    spare = max(0, len(every) - MAX_DISCOVERED_TOOLS)
    dropped = set([name for name in names if name not in more][:spare])
    return tuple(name for name in every if name not in dropped)[-MAX_DISCOVERED_TOOLS:]


def discovered_before(events: Iterable[TapeEvent]) -> tuple[str, ...]:
    """Return the tools a session has discovered so far, from its events in reverse order."""
    matches: list[tuple[str, ...]] = []
    for event in events:
        if isinstance(event, ToolFinished):
            matches.append(event.discovered_tools)
        elif isinstance(event, ModelTurnStarted) and event.discovered_tools:
            # A turn lists everything that was discovered before it.
            matches.append(event.discovered_tools)
            break
    names: tuple[str, ...] = ()
    for more in reversed(matches):
        names = join_tools(names, more)
    return names
