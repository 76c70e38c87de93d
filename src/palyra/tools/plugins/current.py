"""The plugins in force: one set at a time, replaced as a whole."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from palyra.home import Home
from palyra.tools.base import Tool
from palyra.tools.plugins.installed import FaultyPlugin, Plugin, load_all
from palyra.tools.plugins.tools import tools_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedPlugins:
    """The plugins of a home: those that can be used, and those that cannot."""

    plugins: tuple[Plugin, ...] = ()
    faulty: tuple[FaultyPlugin, ...] = ()


class CurrentPlugins:
    """Holds the plugins of a home, and reads them again on request. An invalid one is left out."""

    def __init__(self, home: Home) -> None:
        """Read the plugins. Blocks."""
        self._home = home
        self.now = LoadedPlugins()
        self._tools: tuple[Tool, ...] = ()
        self.adopt(self.read())

    def read(self) -> LoadedPlugins:
        """Return what is installed now. Blocks."""
        result = list(load_all(self._home))
        return LoadedPlugins(
            tuple(one for one in result if isinstance(one, Plugin)),
            tuple(one for one in result if isinstance(one, FaultyPlugin)),
        )

    def adopt(self, loaded_plugins: LoadedPlugins) -> bool:
        """Put these plugins into force, and tell whether that is a change. Running calls are not affected."""
        for faulty in loaded_plugins.faulty:
            log.error("plugin %s is left out: %s", faulty.name, faulty.error.detail)
        changed = {plugin.digest for plugin in loaded_plugins.plugins} != {plugin.digest for plugin in self.now.plugins}
        self.now = loaded_plugins
        self._tools = tuple(tool for plugin in loaded_plugins.plugins for tool in tools_of(plugin))
        return changed

    def tools(self) -> Iterable[Tool]:
        """Return the tools of all plugins."""
        return self._tools
