"""Every tool that there is at the moment: the built-in ones, and those that were added."""

from collections.abc import Callable, Iterable

from palyra.tools import catalog
from palyra.tools.base import Tool
from palyra.tools.catalog import Catalog

Source = Callable[[], Iterable[Tool]]
"""Returns the tools that it has now; it is asked for each step, and must not wait for anything."""


class Toolbox:
    """Finds the tools of a run. A built-in tool can not be replaced by one that bears its name."""

    def __init__(self, *sources: Source) -> None:
        self._sources = sources

    def catalog(self, allowed: tuple[str, ...] | None) -> Catalog:
        """Return the tools of these names, all for None. A name that is not there now is passed over."""
        added = [tool for source in self._sources for tool in source()]
        return Catalog(tool for tool in (*added, *catalog.BUILTIN) if allowed is None or tool.spec.name in allowed)


BUILTIN_ONLY = Toolbox()
