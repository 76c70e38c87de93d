"""What is in force: settings, policies, plugins and prices, one frozen value of each, exchanged as a whole."""

import asyncio
import logging
from collections.abc import Callable

from palyra import config
from palyra.config import Reloaded
from palyra.core.errors import PalyraError
from palyra.home import Home
from palyra.policy.current import CurrentPolicies
from palyra.providers.prices import Prices
from palyra.settings import Settings
from palyra.tools.plugins.current import CurrentPlugins

log = logging.getLogger(__name__)


class Current:
    """Holds the settings, and reads them again when asked. What is wrong changes nothing."""

    def __init__(self, home: Home, settings: Settings) -> None:
        self._home = home
        self._watchers: list[Callable[[Settings], None]] = []
        self._policies: CurrentPolicies | None = None
        self._plugins: CurrentPlugins | None = None
        self._prices: Prices | None = None
        self._check: Callable[[Settings], None] = lambda settings: None
        self._reading = asyncio.Lock()
        self._adopt(settings)

    def watch(self, changed: Callable[[Settings], None]) -> None:
        """Tell somebody of every exchange."""
        self._watchers.append(changed)

    def include(self, policies: CurrentPolicies, plugins: CurrentPlugins) -> None:
        """Read these again too whenever the settings are."""
        self._policies = policies
        self._plugins = plugins

    def include_prices(self, prices: Prices) -> None:
        """Read these again too: they need the settings to be read."""
        self._prices = prices

    def refuse(self, check: Callable[[Settings], None]) -> None:
        """Take over no settings for which this raises. It may block."""
        self._check = check

    async def reload(self) -> Reloaded:
        """Read the settings, the policies, the plugins and the prices again; take over what may change under way."""
        async with self._reading:
            done = await asyncio.to_thread(config.reload, self._home, self.now)
            await asyncio.to_thread(self._check, done.settings)
            currency = done.settings.spending.currency
            # Read before anything is taken over: if one of them is wrong, nothing changes.
            prices = await asyncio.to_thread(self._prices.read, currency) if self._prices is not None else None
            if self._policies is not None:
                policies = await asyncio.to_thread(self._policies.read)
                if policies.hash != self._policies.hash:
                    self._policies.adopt(policies)
                    done = done._replace(live=(*done.live, "policy"))
            if self._plugins is not None:
                plugins = await asyncio.to_thread(self._plugins.read)
                if self._plugins.adopt(plugins):
                    done = done._replace(live=(*done.live, "plugins"))
            if self._prices is not None and prices is not None and self._prices.adopt(prices):
                done = done._replace(live=(*done.live, "prices"))
            self._adopt(done.settings)
            for changed in self._watchers:
                changed(self.now)
        log.info("settings read again: %s in force, %s from the next start", list(done.live), list(done.restart))
        return done

    async def reload_or_say(self) -> None:
        """Read the settings again; say what is wrong if they can not be used."""
        try:
            await self.reload()
        except PalyraError as error:
            log.error("settings, policies and prices stay as they were: %s", error)

    def _adopt(self, settings: Settings) -> None:
        self.now = settings
        self.hash = config.settings_hash(settings)
