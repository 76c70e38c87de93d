"""The configuration in force: settings, policies, plugins and prices, each a frozen value that is replaced whole."""

import asyncio
import logging
from collections.abc import Callable

from palyra import config
from palyra.config import SettingsReload
from palyra.core.errors import PalyraError
from palyra.home import Home
from palyra.policy.current_policies import CurrentPolicies
from palyra.providers.prices import CurrentPrices
from palyra.settings import Settings
from palyra.tools.plugins.current import CurrentPlugins

log = logging.getLogger(__name__)


class LiveConfig:
    """Holds the settings and reloads them on request. If anything is invalid, nothing changes."""

    def __init__(self, home: Home, settings: Settings) -> None:
        self._home = home
        self._watchers: list[Callable[[Settings], None]] = []
        self._policies: CurrentPolicies | None = None
        self._plugins: CurrentPlugins | None = None
        self._prices: CurrentPrices | None = None
        self._check: Callable[[Settings], None] = lambda settings: None
        self._reading = asyncio.Lock()
        self._adopt(settings)

    def watch(self, changed: Callable[[Settings], None]) -> None:
        """Call `changed` after every reload."""
        self._watchers.append(changed)

    def include(self, policies: CurrentPolicies, plugins: CurrentPlugins) -> None:
        """Reload these too whenever the settings are reloaded."""
        self._policies = policies
        self._plugins = plugins

    def include_prices(self, prices: CurrentPrices) -> None:
        """Reload the prices too: reading them needs the settings."""
        self._prices = prices

    def refuse(self, check: Callable[[Settings], None]) -> None:
        """Reject settings for which `check` raises. It may block."""
        self._check = check

    async def reload(self) -> SettingsReload:
        """Reload the settings, policies, plugins and prices; apply what may change while the daemon runs."""
        async with self._reading:
            done = await asyncio.to_thread(config.reload, self._home, self.now)
            await asyncio.to_thread(self._check, done.settings)
            currency = done.settings.spending.currency
            # All are read before anything is applied: if one is invalid, nothing changes.
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
        log.info("settings reloaded: %s in force, %s after a restart", list(done.live), list(done.restart))
        return done

    async def reload_or_log(self) -> None:
        """Reload the settings; log what is wrong if they cannot be used."""
        try:
            await self.reload()
        except PalyraError as error:
            log.error("settings, policies and prices stay unchanged: %s", error)

    def _adopt(self, settings: Settings) -> None:
        self.now = settings
        self.hash = config.settings_hash(settings)
