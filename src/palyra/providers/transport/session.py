"""HTTP connections to providers. This module imports the HTTP library, so it is itself imported when first needed."""

from asyncio import Transport

import aiohttp
from aiohttp.connector import Connection

MAX_CONNECTIONS = 1024
KEPT_SECONDS = 30.0
NAMES_SECONDS = 60
"""How long DNS results are cached."""


class AbruptResponse(aiohttp.ClientResponse):
    """A response that can be aborted: at once, and even if the request has not been sent completely.

    Otherwise the library would first wait until the peer has received the rest, which may never happen.
    """

    _transport: Transport | None = None

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Wait for the response headers."""
        self._transport = connection.transport
        try:
            return await super().start(connection)
        except BaseException:
            self.break_off()
            raise

    def break_off(self) -> None:
        """Close the connection, whatever is still in progress on it."""
        if self._transport is not None:
            self._transport.abort()
        self.close()


def open_session() -> aiohttp.ClientSession:
    """Return the client for all requests."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=MAX_CONNECTIONS, limit_per_host=0, keepalive_timeout=KEPT_SECONDS, ttl_dns_cache=NAMES_SECONDS
        ),
        response_class=AbruptResponse,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None, sock_read=None),
        auto_decompress=False,
        trust_env=False,
        skip_auto_headers=("Content-Type",),
    )
