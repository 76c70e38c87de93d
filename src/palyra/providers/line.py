"""The lines to the providers. This module loads the HTTP library, so it is itself loaded when one is needed."""

from asyncio import Transport

import aiohttp
from aiohttp.connector import Connection

MOST_CONNECTIONS = 1024
KEPT_SECONDS = 30.0
NAMES_SECONDS = 60
"""How long it is remembered where a host is."""


class AbruptResponse(aiohttp.ClientResponse):
    """An answer that can be broken off for good: at once, and also when not all of the request has been sent.

    Else the library would first wait until the other side has taken the rest, which it may never do.
    """

    _transport: Transport | None = None

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Wait for the head of the answer."""
        self._transport = connection.transport
        try:
            return await super().start(connection)
        except BaseException:
            self.break_off()
            raise

    def break_off(self) -> None:
        """Close the connection, whatever is still under way on it."""
        if self._transport is not None:
            self._transport.abort()
        self.close()


def open_session() -> aiohttp.ClientSession:
    """Return the client for all requests."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=MOST_CONNECTIONS, limit_per_host=0, keepalive_timeout=KEPT_SECONDS, ttl_dns_cache=NAMES_SECONDS
        ),
        response_class=AbruptResponse,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None, sock_read=None),
        auto_decompress=False,
        trust_env=False,
        skip_auto_headers=("Content-Type",),
    )
