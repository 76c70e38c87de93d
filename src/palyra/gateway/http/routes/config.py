"""The settings over HTTP: show those in force, and reload them."""

from collections.abc import Awaitable, Callable

from palyra.config import SettingsReload, effective, settings_hash
from palyra.gateway.http.declaration import Routes, operation
from palyra.gateway.records.daemon import ConfigResponse, ReloadResponse
from palyra.settings import Settings


class ConfigRoutes(Routes):
    """The operations that concern settings. `reload` raises, and changes nothing, if any setting is wrong."""

    def __init__(self, current: Callable[[], Settings], reload: Callable[[], Awaitable[SettingsReload]]) -> None:
        self._current = current
        self._reload = reload

    @operation("getConfig", "GET /admin/v1/config", need="admin")
    async def show(self) -> ConfigResponse:
        """Show the settings in force."""
        settings = self._current()
        return ConfigResponse(hash=settings_hash(settings), values=effective(settings))

    @operation("reloadConfig", "POST /admin/v1/config/reload", need="admin")
    async def reload(self) -> ReloadResponse:
        """Reload the settings."""
        done = await self._reload()
        return ReloadResponse(hash=settings_hash(done.settings), live=done.live, restart=done.restart)
