"""The HTTP client for providers, one for the daemon. Its library is loaded by the warm-up, or with the first request.

It follows no redirects, stores no cookies, accepts no compression, and checks certificates. Proxies are those of the
environment; a `.netrc` is ignored, since keys come from the configuration alone.
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

    from palyra.providers.transport.session import AbruptResponse

LARGE_BYTES = 512 * 1024
MAX_BODY_BYTES = 64 * 1024
"""The maximum size of an answer that is not a stream."""
MAX_LIST_BYTES = 4 * 1024 * 1024
MAX_STREAM_BYTES = 256 * 1024 * 1024
"""The maximum size of a stream: each few letters of it come with a hundred bytes around them."""

END_SECONDS = 0.02
"""How long the client waits for the end of an answer, so that its connection can be reused."""

_HEADERS = {"User-Agent": f"palyra/{VERSION}", "Accept-Encoding": "identity"}


class RequestFailed(Exception):
    """The other side could not be asked, or did not answer to the end; says why, without what was sent."""

    def __init__(self, kind: FailureKind, why: str, *, refused: bool = False, begun: bool = False) -> None:
        super().__init__(why)
        self.kind = kind
        self.why = why
        self.refused = refused
        """It cannot have done any work."""
        self.begun = begun
        """The answer had begun."""


class ProviderHttpClient:
    """The client. It belongs to one event loop."""

    def __init__(self) -> None:
        self._aiohttp: Any = None
        self._session: aiohttp.ClientSession | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def post(self, url: str, *, headers: Mapping[str, str], body: bytes, seconds: float) -> "ResponseStream":
        """Send a POST request; the response headers must come within so many seconds."""
        return await self._ask("POST", url, headers=headers, body=body, seconds=seconds)

    async def get(self, url: str, *, headers: Mapping[str, str], seconds: float) -> "ResponseStream":
        """Send a GET request, in the same way."""
        return await self._ask("GET", url, headers=headers, body=None, seconds=seconds)

    async def close(self) -> None:
        """Close every connection. No further request is possible."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ask(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None, seconds: float
    ) -> "ResponseStream":
        session = self._session or await self._open()
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds

        def request() -> Awaitable[Any]:
            # Wrapped as a file, a large body is sent in pieces, and other tasks run in between.
            data = BytesIO(body) if body is not None and len(body) > LARGE_BYTES else body
            return session.request(
                method, url, data=data, allow_redirects=False, **_through(url, {**_HEADERS, **headers})
            )

        try:
            async with asyncio.timeout_at(until):
                # That this daemon has no free connection is not the provider's fault.
                response: Any = await wait_out(request, what="a request to a provider")
        except TimeoutError as error:
            raise RequestFailed(FailureKind.TIMEOUT, f"no data for {seconds:g} s") from error
        except ResourcesExhausted as error:
            raise RequestFailed(FailureKind.NETWORK, "this machine has no free connections", refused=True) from error
        except self._aiohttp.ClientError as error:
            raise self._failed(error) from error
        except (OSError, ValueError) as error:
            raise RequestFailed(FailureKind.NETWORK, _why(error), refused=True) from error
        return ResponseStream(self, response, begin_by=until)

    async def _open(self) -> "aiohttp.ClientSession":
        async with self._opening:
            if self._closed:
                raise RequestFailed(FailureKind.UNAVAILABLE, "Palyra is stopping", refused=True)
            if self._session is None:
                # Its import takes 0.2 seconds and 8 MB: not before it is needed, and not on the event loop.
                line: Any = await asyncio.to_thread(import_module, "palyra.providers.transport.session")
                self._aiohttp = line.aiohttp
                self._session = line.open_session()
        return self._session

    def _failed(self, error: Exception) -> RequestFailed:
        """Return the failure for an aiohttp error."""
        library = self._aiohttp
        match error:
            case library.ClientConnectorCertificateError() | library.ClientSSLError():
                return RequestFailed(
                    FailureKind.NETWORK, f"its certificate is not trusted: {_why(error)}", refused=True
                )
            case library.ClientProxyConnectionError() | library.ClientHttpProxyError():
                return RequestFailed(
                    FailureKind.NETWORK, "the proxy from the environment does not answer", refused=True
                )
            case library.ClientConnectorDNSError():
                return RequestFailed(FailureKind.NETWORK, "the host was not found", refused=True)
            case library.ClientConnectorError():
                return RequestFailed(FailureKind.NETWORK, _why(error), refused=True)
            case library.InvalidURL() | library.NonHttpUrlClientError():
                return RequestFailed(FailureKind.NETWORK, "its base_url is not a valid URL", refused=True)
            case library.ClientResponseError():
                return RequestFailed(FailureKind.MALFORMED, "its response is not HTTP")
            case library.ServerDisconnectedError():
                return RequestFailed(FailureKind.NETWORK, "it closed the connection before it responded")
            case _:
                return RequestFailed(FailureKind.NETWORK, _why(error))


class ResponseStream:
    """A response in progress. The caller must close it."""

    def __init__(self, http: ProviderHttpClient, response: "AbruptResponse", *, begin_by: float) -> None:
        self._http = http
        self._response = response
        self._begin_by = begin_by
        self._left = MAX_STREAM_BYTES
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.headers.items()}

    async def __aenter__(self) -> "ResponseStream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def begin(self) -> bytes:
        """Return the first bytes of the body, with the same deadline as the headers; empty if there is no body."""
        return await self._read(until=self._begin_by)

    async def read(self, *, until: float) -> bytes:
        """Return the next bytes of the body, empty at its end; `until` is a deadline in event loop time."""
        return await self._read(until=until)

    async def body(self, *, seconds: float, maximum: int = MAX_BODY_BYTES, first: bytes = b"") -> bytes:
        """Return the rest of the body after its first bytes; everything beyond the limit is dropped."""
        until = asyncio.get_running_loop().time() + seconds
        pieces = bytearray(first)
        while len(pieces) < maximum and (piece := await self._read(until=until)):
            pieces += piece
        return bytes(pieces[:maximum])

    async def finish(self) -> None:
        """Wait a moment for the end of the body, after all that matters has been read."""
        until = asyncio.get_running_loop().time() + END_SECONDS
        try:
            while not self._response.content.at_eof() and await self._read(until=until):
                pass
        except RequestFailed:
            pass  # then the connection is closed, and the next turn opens another

    def close(self) -> None:
        """Release the connection for reuse if the response was read to its end, otherwise close it."""
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
            raise RequestFailed(FailureKind.TIMEOUT, "its response did not begin or stalled", begun=True) from error
        except self._http._aiohttp.ClientError as error:
            raise RequestFailed(FailureKind.NETWORK, _why(error), begun=True) from error
        except (OSError, RuntimeError) as error:
            raise RequestFailed(FailureKind.NETWORK, _why(error), begun=True) from error
        self._left -= len(piece)
        if self._left < 0:
            raise RequestFailed(FailureKind.MALFORMED, "its response is too long", begun=True)
        return piece


def _through(url: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the headers, and the proxy that the environment sets for a URL, if any."""
    # Its imports would stay in the memory of a daemon that sends no requests.
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    if not parts.hostname or not (proxies := getproxies()) or proxy_bypass(parts.hostname):
        return {"headers": headers}
    matching_parts = urlsplit(proxies.get(parts.scheme) or proxies.get("all") or "")
    if matching_parts.scheme not in ("http", "https"):
        return {"headers": headers}
    user, _, host = matching_parts.netloc.rpartition("@")
    cached = {"Proxy-Authorization": f"Basic {b64encode(unquote_to_bytes(user)).decode()}"} if user else {}
    proxy = f"{matching_parts.scheme}://{host}"
    # With a tunnel only the proxy itself may see the credentials; otherwise they are sent with the request.
    if parts.scheme == "https":
        return {"headers": headers, "proxy": proxy, "proxy_headers": cached}
    return {"headers": {**headers, **cached}, "proxy": proxy}


def _why(error: Exception) -> str:
    """Return the reason that the system gives, and nothing of what was sent."""
    inner = getattr(error, "os_error", error)
    if isinstance(inner, ConnectionRefusedError):
        return "the connection was refused"
    reason = getattr(inner, "verify_message", None) or getattr(inner, "strerror", None)
    return str(reason) if reason else "the connection was lost"
