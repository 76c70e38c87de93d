"""The plugins in force: one set at a time, exchanged as a whole."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from palyra.home import Home
from palyra.tools.base import Tool
from palyra.tools.plugins.installed import Faulty, Plugin, load_all
from palyra.tools.plugins.tools import tools_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """The plugins of a home: those that can be used, and those that can not."""

    plugins: tuple[Plugin, ...] = ()
    faulty: tuple[Faulty, ...] = ()


class CurrentPlugins:
    """Holds the plugins of a home, and reads them again when asked. One that is not in order is left out."""

    def __init__(self, home: Home) -> None:
        """Read the plugins. Blocks."""
        self._home = home
        self.now = Found()
        self._tools: tuple[Tool, ...] = ()
        self.adopt(self.read())

    def read(self) -> Found:
        """Return what is installed now. Blocks."""
        found = list(load_all(self._home))
        return Found(
            tuple(one for one in found if isinstance(one, Plugin)),
            tuple(one for one in found if isinstance(one, Faulty)),
        )

    def adopt(self, found: Found) -> bool:
        """Let these plugins be in force, and tell whether that is a change. A call under way is not changed by it."""
        for faulty in found.faulty:
            log.error("plugin %s is left out: %s", faulty.name, faulty.error.detail)
        changed = {plugin.digest for plugin in found.plugins} != {plugin.digest for plugin in self.now.plugins}
        self.now = found
        self._tools = tuple(tool for plugin in found.plugins for tool in tools_of(plugin))
        return changed

    def tools(self) -> Iterable[Tool]:
        """Return the tools of all plugins."""
        return self._tools
