"""The settings over HTTP: show those in force, and reload them."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from palyra.config import SettingsReload, effective, settings_hash
from palyra.core.ids import PrincipalId
from palyra.gateway.http.messages import json_response
from palyra.gateway.http.operation import Operation
from palyra.gateway.records.daemon import ConfigResponse, ReloadResponse
from palyra.settings import Settings


class ConfigRoutes:
    """The operations that concern settings. `reload` raises, and changes nothing, if any setting is wrong."""

    def __init__(self, current: Callable[[], Settings], reload: Callable[[], Awaitable[SettingsReload]]) -> None:
        self._current = current
        self._reload = reload

    def operations(self) -> list[Operation]:
        at = "/admin/v1/config"
        return [
            Operation(
                "getConfig", "GET", at, self.show, "Show the settings in force.", need="admin", answer=ConfigResponse
            ),
            Operation(
                "reloadConfig",
                "POST",
                f"{at}/reload",
                self.reload,
                "Reload the settings.",
                need="admin",
                answer=ReloadResponse,
            ),
        ]

    async def show(self, request: Request, principal: PrincipalId) -> Response:
        """Show every setting."""
        settings = self._current()
        return json_response(ConfigResponse(hash=settings_hash(settings), values=effective(settings)))

    async def reload(self, request: Request, principal: PrincipalId) -> Response:
        """Read the file and the environment again, and apply what may change while the daemon runs."""
        done = await self._reload()
        return json_response(ReloadResponse(hash=settings_hash(done.settings), live=done.live, restart=done.restart))
