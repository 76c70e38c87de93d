"""An MCP server behind a URL: reached at the address that was checked, and at no other.

The URL is in the configuration, so the owner may allow an address that is not public, also one of this machine;
Palyra's own endpoints can never be reached. Redirects that leave the host are refused, and so are proxies that the
environment names.
"""

import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import anyio
import httpcore2
import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

from palyra.sandbox.network.address import Address
from palyra.sandbox.network.pinning import (
    CONNECT_SECONDS,
    HostNotAllowed,
    Resolve,
    address_problem,
    connect,
    is_of_this_machine,
    look_up,
    pin,
)
from palyra.tools.mcp.limits import MAX_LINE_BYTES, MessageRateLimit, ServerUnusable
from palyra.tools.mcp.orders import UrlLaunch


@asynccontextmanager
async def transport(
    launch: UrlLaunch, *, refused: Callable[[int], None], give_up: Callable[[Exception], NoReturn]
) -> AsyncIterator[TransportStreams]:
    """Open the transport to the server.

    `refused` gets the status of an error response; `give_up`, which never returns, is called for a server that floods.
    """
    url = httpx2.URL(launch.url)
    way = PinnedConnector(url.host, allow_private=launch.allow_private, own_ports=frozenset(launch.own_ports))
    client = httpx2.AsyncClient(
        transport=PinnedTransport(way, refused, give_up),
        headers={**launch.headers, "Accept-Encoding": "identity"},
        timeout=httpx2.Timeout(CONNECT_SECONDS, read=launch.timeout_seconds),
        trust_env=False,
    )
    async with (
        client,
        streamable_http_client(launch.url, http_client=client, max_sse_event_size=MAX_LINE_BYTES) as both,
    ):
        yield both


class PinnedTransport(httpx2.AsyncHTTPTransport):
    """Sends requests to one host only, and reads no response that is too long or compressed."""

    def __init__(
        self, way: "PinnedConnector", refused: Callable[[int], None], give_up: Callable[[Exception], NoReturn]
    ) -> None:
        super().__init__(trust_env=False)
        self._refused = refused
        self._give_up = give_up
        self._flow = MessageRateLimit()
        self._pool = httpcore2.AsyncConnectionPool(ssl_context=ssl.create_default_context(), network_backend=way)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if response.status_code >= 400:
            self._refused(response.status_code)
        if response.headers.get("content-encoding", "identity") != "identity":
            # A small response could decompress to any size.
            raise httpx2.RemoteProtocolError("the server compresses its responses, which was not requested")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = CountedStream(response.stream, self._count)
        else:
            response.stream = BoundedResponse(response.stream)
        return response

    def _count(self, piece: bytes) -> None:
        try:
            self._flow.add(piece.count(b"\ndata:"), len(piece))
        except ServerUnusable as error:
            self._give_up(error)


class CountedStream(httpx2.AsyncByteStream):
    """An event stream that may last forever, and of which each piece is counted."""

    def __init__(self, stream: httpx2.AsyncByteStream, count: Callable[[bytes], None]) -> None:
        self._stream = stream
        self._count = count

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._count(piece)
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class BoundedResponse(httpx2.AsyncByteStream):
    """A response up to a maximum size. An event stream is bounded by the size of each event."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > MAX_LINE_BYTES:
                raise httpx2.RemoteProtocolError(f"the server sent a response of more than {MAX_LINE_BYTES >> 20} MiB")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class PinnedConnector(httpcore2.AsyncNetworkBackend):
    """Connects to one host, at addresses that may be reached."""

    def __init__(
        self, host: str, *, allow_private: bool, own_ports: frozenset[int], resolve: Resolve = look_up
    ) -> None:
        self._host = host
        self._resolve = resolve
        self._allow_private = allow_private
        self._own_ports = own_ports
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the port says so
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to an address that passed the check."""
        if host.strip("[]") != self._host.strip("[]"):
            raise HostNotAllowed(f"{host} is not the host in the configuration.")

        async def attempt(location: str) -> httpcore2.AsyncNetworkStream:
            try:
                return await self._network.connect_tcp(location, port, timeout, local_address, socket_options)
            except httpcore2.TimeoutException:
                raise TimeoutError from None
            except httpcore2.NetworkError as error:
                raise OSError(str(error) or type(error).__name__) from error

        addresses = await pin(host.strip("[]"), port, judge=self._problem, resolve=self._resolve)
        return await connect(f"{host} at port {port}", addresses, attempt)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    def _problem(self, address: Address, port: int) -> str:
        if port in self._own_ports and is_of_this_machine(str(address)):
            return "Palyra itself. No agent may reach its own control plane"
        problem = "" if self._allow_private else address_problem(address, port)
        return f"{problem}. Set allow_private for this server if you mean it" if problem else ""
