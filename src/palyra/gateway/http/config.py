"""The settings over HTTP: what is in force, and reading them again."""

from collections.abc import Awaitable, Callable

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from palyra.config import Reloaded, effective, settings_hash
from palyra.core.ids import PrincipalId
from palyra.gateway.http.operation import Operation
from palyra.gateway.http.wire import reply
from palyra.settings import Settings


class InForce(Struct, frozen=True, kw_only=True):
    """The settings that the daemon works with; secrets are left out."""

    hash: str
    values: dict[str, str | int | bool | None]


class ReloadAnswer(Struct, frozen=True, kw_only=True):
    """What became of changed settings."""

    hash: str
    live: tuple[str, ...]
    """The keys that are in force now."""
    restart: tuple[str, ...]
    """The keys that wait for the next start."""


class ConfigRoutes:
    """The operations that concern settings. `reload` raises, and changes nothing, if any setting is wrong."""

    def __init__(self, current: Callable[[], Settings], reload: Callable[[], Awaitable[Reloaded]]) -> None:
        self._current = current
        self._reload = reload

    def operations(self) -> list[Operation]:
        at = "/admin/v1/config"
        return [
            Operation("GET", at, self.show, "Show the settings in force.", need="admin", answer=InForce),
            Operation(
                "POST", f"{at}/reload", self.reload, "Read the settings again.", need="admin", answer=ReloadAnswer
            ),
        ]

    async def show(self, request: Request, principal: PrincipalId) -> Response:
        """Show every setting."""
        settings = self._current()
        return reply({"hash": settings_hash(settings), "values": effective(settings)})

    async def reload(self, request: Request, principal: PrincipalId) -> Response:
        """Read the file and the environment again, and take over what may change."""
        done = await self._reload()
        return reply(ReloadAnswer(hash=settings_hash(done.settings), live=done.live, restart=done.restart))
