"""The tools of a run, and the built-in ones."""

import pkgutil
from collections.abc import Iterable
from importlib import import_module

from palyra.core.policy import labels
from palyra.core.tool import ToolSpec
from palyra.tools import builtin
from palyra.tools.base import Tool


def _scan() -> tuple[Tool, ...]:
    names = sorted(module.name for module in pkgutil.iter_modules(builtin.__path__))
    modules = (import_module(f"{builtin.__name__}.{name}") for name in names)
    return tuple(part for module in modules for part in vars(module).values() if isinstance(part, Tool))


# Imported with this module, because an import inside the event loop would block it.
BUILTIN = _scan()


class ToolCatalog:
    """Tools by name, in a stable order, so that prompt caches hit.

    Discovered tools (`found`) come after the others, in the order of discovery: what came before stays unchanged.
    Tools that are `hidden` exist, and can be called once they are discovered.
    """

    def __init__(
        self, tools: Iterable[Tool], *, matching_tools: Iterable[Tool] = (), hidden: Iterable[str] = ()
    ) -> None:
        state = sorted(tools, key=lambda tool: tool.spec.name)
        self._tools = {tool.spec.name: tool for tool in (*state, *matching_tools)}
        self._specs = tuple(tool.spec for tool in self._tools.values())
        described = {tool.described_by for tool in self._tools.values()}
        self._labels = labels.join(tuple(described - {labels.OWNER}))
        self._hidden = frozenset(hidden)

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools as a model sees them."""
        return self._specs

    def names(self) -> tuple[str, ...]:
        """Return the names of the tools that a model sees."""
        return tuple(self._tools)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the tools' descriptions, apart from Palyra's own."""
        return self._labels

    @property
    def hidden(self) -> frozenset[str]:
        """The names of the tools that a search would find."""
        return self._hidden

    def get(self, name: str) -> Tool | None:
        """Return the tool of that name, or None."""
        return self._tools.get(name)
