"""HTTP to the providers: one client for the daemon. Its library is loaded by the warm-up, or with the first request.

It follows no redirect, keeps no cookie, takes nothing compressed, and checks certificates. Proxies are those of the
environment; a `.netrc` is not looked at, since keys come from the configuration alone.
"""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Mapping
from importlib import import_module
from io import BytesIO
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes, urlsplit

from palyra.core.version import VERSION
from palyra.exhaustion import ResourcesExhausted, wait_out
from palyra.providers.base import FailureKind

if TYPE_CHECKING:
    import aiohttp

    from palyra.providers.line import AbruptResponse

LARGE_BYTES = 512 * 1024
MOST_BODY_BYTES = 64 * 1024
"""Of an answer that is no stream."""
MOST_LIST_BYTES = 4 * 1024 * 1024
MOST_STREAM_BYTES = 256 * 1024 * 1024
"""Of a stream: each few letters of it come with a hundred bytes around them."""

END_SECONDS = 0.02
"""How long the end of an answer is waited for, so that its connection can be used again."""

_HEADERS = {"User-Agent": f"palyra/{VERSION}", "Accept-Encoding": "identity"}


class LineFailed(Exception):
    """The other side could not be asked, or did not answer to the end; says why, without what was sent."""

    def __init__(self, kind: FailureKind, why: str, *, refused: bool = False, begun: bool = False) -> None:
        super().__init__(why)
        self.kind = kind
        self.why = why
        self.refused = refused
        """It can not have done any work."""
        self.begun = begun
        """The answer had begun."""


class Http:
    """The client. It belongs to one event loop."""

    def __init__(self) -> None:
        self._aiohttp: Any = None
        self._session: aiohttp.ClientSession | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def post(self, url: str, *, headers: Mapping[str, str], body: bytes, seconds: float) -> "Answer":
        """Send a request; the head of the answer must have come after so many seconds."""
        return await self._ask("POST", url, headers=headers, body=body, seconds=seconds)

    async def get(self, url: str, *, headers: Mapping[str, str], seconds: float) -> "Answer":
        """Ask for a page, in the same way."""
        return await self._ask("GET", url, headers=headers, body=None, seconds=seconds)

    async def close(self) -> None:
        """Close every connection. Nothing can be asked any more."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ask(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None, seconds: float
    ) -> "Answer":
        session = self._session or await self._open()
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds

        def request() -> Awaitable[Any]:
            # As a file a large body goes out in pieces, and others get their turn between them.
            data = BytesIO(body) if body is not None and len(body) > LARGE_BYTES else body
            return session.request(
                method, url, data=data, allow_redirects=False, **_through(url, {**_HEADERS, **headers})
            )

        try:
            async with asyncio.timeout_at(until):
                # That this daemon has no connection to give is no fault of the provider.
                response: Any = await wait_out(request, what="a request to a provider")
        except TimeoutError as error:
            raise LineFailed(FailureKind.TIMEOUT, f"nothing came for {seconds:g} s") from error
        except ResourcesExhausted as error:
            raise LineFailed(FailureKind.NETWORK, "this machine has no connection to give", refused=True) from error
        except self._aiohttp.ClientError as error:
            raise self._failed(error) from error
        except (OSError, ValueError) as error:
            raise LineFailed(FailureKind.NETWORK, _why(error), refused=True) from error
        return Answer(self, response, begin_by=until)

    async def _open(self) -> "aiohttp.ClientSession":
        async with self._opening:
            if self._closed:
                raise LineFailed(FailureKind.UNAVAILABLE, "Palyra is about to stop", refused=True)
            if self._session is None:
                # Its import takes 0.2 seconds and 8 MB: not before it is needed, and not on the event loop.
                line: Any = await asyncio.to_thread(import_module, "palyra.providers.line")
                self._aiohttp = line.aiohttp
                self._session = line.open_session()
        return self._session

    def _failed(self, error: Exception) -> LineFailed:
        """Tell what aiohttp found wrong."""
        library = self._aiohttp
        match error:
            case library.ClientConnectorCertificateError() | library.ClientSSLError():
                return LineFailed(FailureKind.NETWORK, f"its certificate is not trusted: {_why(error)}", refused=True)
            case library.ClientProxyConnectionError() | library.ClientHttpProxyError():
                return LineFailed(FailureKind.NETWORK, "the proxy of the environment does not answer", refused=True)
            case library.ClientConnectorDNSError():
                return LineFailed(FailureKind.NETWORK, "there is no host of that name", refused=True)
            case library.ClientConnectorError():
                return LineFailed(FailureKind.NETWORK, _why(error), refused=True)
            case library.InvalidURL() | library.NonHttpUrlClientError():
                return LineFailed(FailureKind.NETWORK, "its base_url is no address of a server", refused=True)
            case library.ClientResponseError():
                return LineFailed(FailureKind.MALFORMED, "its answer is no HTTP")
            case library.ServerDisconnectedError():
                return LineFailed(FailureKind.NETWORK, "it closed the connection before it answered")
            case _:
                return LineFailed(FailureKind.NETWORK, _why(error))


class Answer:
    """An answer under way. Whoever has it closes it."""

    def __init__(self, http: Http, response: "AbruptResponse", *, begin_by: float) -> None:
        self._http = http
        self._response = response
        self._begin_by = begin_by
        self._left = MOST_STREAM_BYTES
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.headers.items()}

    async def __aenter__(self) -> "Answer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def begin(self) -> bytes:
        """Return the first bytes of the body, which must come as soon as the head had to; none if there is no body."""
        return await self._read(until=self._begin_by)

    async def read(self, *, until: float) -> bytes:
        """Return the next bytes of the body, none at its end; at the latest at that time of the event loop."""
        return await self._read(until=until)

    async def body(self, *, seconds: float, most: int = MOST_BODY_BYTES, first: bytes = b"") -> bytes:
        """Return the rest of the body after its first bytes; what is beyond the bound is left out."""
        until = asyncio.get_running_loop().time() + seconds
        pieces = bytearray(first)
        while len(pieces) < most and (piece := await self._read(until=until)):
            pieces += piece
        return bytes(pieces[:most])

    async def finish(self) -> None:
        """Wait a moment for the end of the body, of which all that matters has been read."""
        until = asyncio.get_running_loop().time() + END_SECONDS
        try:
            while not self._response.content.at_eof() and await self._read(until=until):
                pass
        except LineFailed:
            pass  # then the connection is closed, and the next turn opens another

    def close(self) -> None:
        """Let the connection be used again if the answer was read to its end, and else close it."""
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.break_off()

    async def _read(self, *, until: float) -> bytes:
        content = self._response.content
        try:
            piece = content.read_nowait()
            if not piece and not content.at_eof():
                async with asyncio.timeout_at(until):
                    piece = await content.readany()
        except TimeoutError as error:
            raise LineFailed(FailureKind.TIMEOUT, "its answer did not begin or go on", begun=True) from error
        except self._http._aiohttp.ClientError as error:
            raise LineFailed(FailureKind.NETWORK, _why(error), begun=True) from error
        except (OSError, RuntimeError) as error:
            raise LineFailed(FailureKind.NETWORK, _why(error), begun=True) from error
        self._left -= len(piece)
        if self._left < 0:
            raise LineFailed(FailureKind.MALFORMED, "its answer has no end", begun=True)
        return piece


def _through(url: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the headers, and the proxy that the environment names for an address, if any."""
    # What it imports would stay in the memory of a daemon that asks nobody.
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    if not parts.hostname or not (proxies := getproxies()) or proxy_bypass(parts.hostname):
        return {"headers": headers}
    found = urlsplit(proxies.get(parts.scheme) or proxies.get("all") or "")
    if found.scheme not in ("http", "https"):
        return {"headers": headers}
    user, _, host = found.netloc.rpartition("@")
    known = {"Proxy-Authorization": f"Basic {b64encode(unquote_to_bytes(user)).decode()}"} if user else {}
    proxy = f"{found.scheme}://{host}"
    # Through a tunnel only the proxy itself may see who asks it; else it is told with the request.
    if parts.scheme == "https":
        return {"headers": headers, "proxy": proxy, "proxy_headers": known}
    return {"headers": {**headers, **known}, "proxy": proxy}


def _why(error: Exception) -> str:
    """Return the reason that the system gives, and nothing of what was sent."""
    inner = getattr(error, "os_error", error)
    if isinstance(inner, ConnectionRefusedError):
        return "no server listens there"
    reason = getattr(inner, "verify_message", None) or getattr(inner, "strerror", None)
    return str(reason) if reason else "the connection was lost"
