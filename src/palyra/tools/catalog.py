"""The tools of a run, and the built-in ones."""

import pkgutil
from collections.abc import Iterable
from importlib import import_module

from palyra.core import labels
from palyra.core.tool import ToolSpec
from palyra.tools import builtin
from palyra.tools.base import Tool


def _scan() -> tuple[Tool, ...]:
    names = sorted(module.name for module in pkgutil.iter_modules(builtin.__path__))
    modules = (import_module(f"{builtin.__name__}.{name}") for name in names)
    return tuple(part for module in modules for part in vars(module).values() if isinstance(part, Tool))


# Imported with this module, because an import inside the event loop would block it.
BUILTIN = _scan()


class Catalog:
    """Tools by name, in a stable order, so that prompt caches hit.

    Those that were `found` stand behind the others, in the order in which they were: what stood before stays as it was.
    Those that are `hidden` exist, and can be called once they were found.
    """

    def __init__(self, tools: Iterable[Tool], *, found: Iterable[Tool] = (), hidden: Iterable[str] = ()) -> None:
        standing = sorted(tools, key=lambda tool: tool.spec.name)
        self._tools = {tool.spec.name: tool for tool in (*standing, *found)}
        self._specs = tuple(tool.spec for tool in self._tools.values())
        described = {tool.described_by for tool in self._tools.values()}
        self._labels = labels.join(tuple(described - {labels.OWNER}))
        self._hidden = frozenset(hidden)

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return what a model is told."""
        return self._specs

    def names(self) -> tuple[str, ...]:
        """Return the names of what a model is told."""
        return tuple(self._tools)

    @property
    def labels(self) -> tuple[str, ...]:
        """Where what a model is told comes from, besides Palyra itself."""
        return self._labels

    @property
    def hidden(self) -> frozenset[str]:
        """The names of the tools that a search would find."""
        return self._hidden

    def get(self, name: str) -> Tool | None:
        """Return the tool of that name, or None."""
        return self._tools.get(name)
