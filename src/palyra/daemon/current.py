"""The settings in force: one frozen value at a time, exchanged as a whole."""

import asyncio
import logging
from collections.abc import Callable

from palyra import config
from palyra.config import Home, Reloaded, Settings, SettingsInvalid

log = logging.getLogger(__name__)


class Current:
    """Holds the settings, and reads them again when asked. What is wrong changes nothing."""

    def __init__(self, home: Home, settings: Settings) -> None:
        self._home = home
        self._watchers: list[Callable[[Settings], None]] = []
        self._reading = asyncio.Lock()
        self._adopt(settings)

    def watch(self, changed: Callable[[Settings], None]) -> None:
        """Tell somebody of every exchange."""
        self._watchers.append(changed)

    async def reload(self) -> Reloaded:
        """Read the file and the environment again; take over what may change under a running daemon."""
        async with self._reading:
            done = await asyncio.to_thread(config.reload, self._home, self.now)
            self._adopt(done.settings)
            for changed in self._watchers:
                changed(self.now)
        log.info("settings read again: %s in force, %s from the next start", list(done.live), list(done.restart))
        return done

    async def reload_or_say(self) -> None:
        """Read the settings again; say what is wrong if they can not be used."""
        try:
            await self.reload()
        except SettingsInvalid as error:
            log.error("settings stay as they were: %s", error)

    def _adopt(self, settings: Settings) -> None:
        self.now = settings
        self.hash = config.settings_hash(settings)
