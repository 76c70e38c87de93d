"""All tools that exist at the moment: the built-in ones, and those that were added."""

from collections.abc import Callable, Iterable

from palyra.core.ids import PrincipalId
from palyra.tools import catalog, tool_search
from palyra.tools.base import Tool
from palyra.tools.catalog import ToolCatalog

ADDED_TOKENS = 600
"""If the added tools take at most this many tokens in a prompt, all are offered; else they are found by search."""
FOUND_TOKENS = 4_000
"""The maximum number of tokens that discovered tools take in a prompt; the latest stay."""

LISTS_KNOWN = 64

Source = Callable[[], Iterable[Tool]]
"""Returns the tools that it has now; it is called for each step, and must not block."""


class Toolbox:
    """Finds the tools of a run. A built-in tool cannot be replaced by one of the same name."""

    def __init__(self, *sources: Source) -> None:
        self._sources = sources
        self._plain: dict[tuple[str, ...] | None, tuple[tuple[Tool, ...], ToolCatalog]] = {}
        """The last offer where nothing is added, for each list of tools, and what it was chosen from."""

    def catalog(self, allowed: tuple[str, ...] | None, *, who: PrincipalId | None = None) -> ToolCatalog:
        """Return the tools of these names, all for None. Names that do not exist now are skipped.

        `who` is the principal they are shown to: without one, only those that every principal may use.
        """
        every = (*self._added(who), *catalog.BUILTIN)
        return ToolCatalog(tool for tool in every if allowed is None or tool.spec.name in allowed)

    def _added(self, who: PrincipalId | None) -> list[Tool]:
        every = (tool for source in self._sources for tool in source())
        return [tool for tool in every if tool.is_for is None or tool.is_for(who)]

    def offer(
        self, allowed: tuple[str, ...] | None, matches: tuple[str, ...] = (), *, who: PrincipalId | None = None
    ) -> ToolCatalog:
        """Return the tools of a run as its model sees them; `found` are those discovered so far.

        The built-in ones are always offered. The others are offered while they are few. If they are many, a search tool
        is offered instead, also for an agent whose list does not name it.
        """
        every = self._added(who)
        if not every:
            return self._offer_builtin(allowed)
        builtin = [tool for tool in catalog.BUILTIN if allowed is None or tool.spec.name in allowed]
        names = {tool.spec.name for tool in catalog.BUILTIN} | {tool_search.NAME}
        added = {
            tool.spec.name: tool
            for tool in every
            if tool.spec.name not in names and (allowed is None or tool.spec.name in allowed)
        }
        if _are_few(added.values()):
            return ToolCatalog((*builtin, *added.values()))
        brought = _latest([added[name] for name in matches if name in added])
        lines = {tool.spec.name for tool in brought}
        finder = tool_search.search_tool([added[name] for name in sorted(added)])
        return ToolCatalog(
            (*builtin, finder), matching_tools=brought, hidden=(name for name in added if name not in lines)
        )

    def _offer_builtin(self, allowed: tuple[str, ...] | None) -> ToolCatalog:
        """Return the built-in tools: the same object as before, so that nothing derived from it is made again."""
        cached = self._plain.get(allowed)
        if cached is not None and cached[0] is catalog.BUILTIN:
            return cached[1]
        if len(self._plain) >= LISTS_KNOWN:
            self._plain.clear()
        chosen = ToolCatalog(tool for tool in catalog.BUILTIN if allowed is None or tool.spec.name in allowed)
        self._plain[allowed] = catalog.BUILTIN, chosen
        return chosen

    def is_searched(self, allowed: tuple[str, ...] | None, *, who: PrincipalId | None = None) -> bool:
        """Tell whether there are so many tools that some are found by search only."""
        return bool(self.offer(allowed, who=who).hidden)


def _are_few(tools: Iterable[Tool]) -> bool:
    room = ADDED_TOKENS
    for tool in tools:
        room -= tool_search.tokens_of(tool.spec)
        if room < 0:
            return False
    return True


def _latest(tools: list[Tool]) -> list[Tool]:
    """Return the last of the tools that fit, in their order; the last one always."""
    stored_tools: list[Tool] = []
    room = FOUND_TOKENS
    for tool in reversed(tools):
        room -= tool_search.tokens_of(tool.spec)
        if room < 0 and stored_tools:
            break
        stored_tools.append(tool)
    return stored_tools[::-1]


BUILTIN_ONLY = Toolbox()
