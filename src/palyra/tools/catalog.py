"""The tools of a run, and the built-in ones."""

import pkgutil
from collections.abc import Iterable
from importlib import import_module

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
    """Tools by name, in a stable order, so that prompt caches hit."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = {tool.spec.name: tool for tool in sorted(tools, key=lambda tool: tool.spec.name)}

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return what a model is told, by name."""
        return tuple(tool.spec for tool in self._tools.values())

    def names(self) -> tuple[str, ...]:
        """Return the names, sorted."""
        return tuple(self._tools)

    def get(self, name: str) -> Tool | None:
        """Return the tool of that name, or None."""
        return self._tools.get(name)
