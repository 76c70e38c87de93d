"""Starting on a full disk: the start waits for space, reports that everywhere, and continues without help."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from palyra.daemon.process.http_server import HttpServer, build_refusing_server
from palyra.daemon.process.listener import ListenerParts
from palyra.home import Home
from palyra.journal.engines.base import StorageFull
from palyra.runs.system import CurrentConfig

RETRY_SECONDS = 2.0

T = TypeVar("T")

log = logging.getLogger(__name__)


class Waiting:
    """Runs the steps of a start that need disk space. While it waits, HTTP answers with the error."""

    def __init__(
        self, home: Home, config: CurrentConfig, listener: ListenerParts, *, began: Callable[[], None]
    ) -> None:
        """`began` is called when the first attempt has failed and HTTP answers."""
        # The first successful start creates the key: before that there is no journal to wait with.
        self._has_journal = home.key.exists()
        self._config = config
        self._listener = listener
        self._began = began
        self._group = asyncio.TaskGroup()
        self._serving: tuple[HttpServer, asyncio.Task[None]] | None = None
        self._reason = ""

    async def __aenter__(self) -> "Waiting":
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.over()
        await self._group.__aexit__(None, None, None)

    async def for_space(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `attempt`, and retry it while the disk is full."""
        while True:
            try:
                result = await attempt()
            except StorageFull as error:
                if not self._has_journal:
                    raise
                self._show(error)
            else:
                if self._reason:
                    self._reason = ""
                    log.warning("there is disk space again; the start continues")
                return result
            await asyncio.sleep(RETRY_SECONDS)

    async def over(self) -> None:
        """Release the listener: the start has all that it needs, or it was given up."""
        if self._serving is not None:
            server, task = self._serving
            self._serving = None
            server.should_exit = True
            await task

    def _show(self, error: StorageFull) -> None:
        if error.detail != self._reason:
            self._reason = error.detail
            log.error("the start waits: %s", error, extra={"code": error.code})
        self._listener.announcement.publish(waiting=error.detail)
        if self._serving is None:
            server = build_refusing_server(error, self._config, self._listener.connections)
            task = self._group.create_task(server.serve(sockets=[self._listener.socket.dup()]))
            self._serving = server, task
            self._began()
