"""The only way out: every request of a tool to the network passes here.

A URL is parsed in one way, and the connection goes to an address that was checked, with the name in `Host` and in the
TLS handshake. A redirect is followed within its origin (scheme, host and port) only, and checked from the start; what
was allowed is that origin, and nothing that was sent goes to another. Proxies that the environment names are not used.
"""

import asyncio
import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from palyra.core.errors import Denied, Invalid, Unavailable
from palyra.core.version import VERSION
from palyra.sandbox.network.address import Address
from palyra.sandbox.network.http_response import HttpResponse, read_response
from palyra.sandbox.network.pinning import (
    ConnectionFailed,
    HostNotAllowed,
    Judge,
    Resolve,
    address_problem,
    connect,
    literal_address,
    look_up,
    pin,
    require_allowed,
)
from palyra.sandbox.network.url import UrlTarget, parse, resolve_redirect

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_OURS = frozenset(
    "host connection content-length transfer-encoding upgrade te trailer expect keep-alive accept-encoding"
    " proxy-authorization proxy-connection".split()
)
"""Headers that belong to the connection, which callers cannot set."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class HeaderNotAllowed(Invalid):
    """This header cannot be sent."""


class CredentialsNeedTls(Denied):
    """Credentials are sent over TLS only, so nothing was sent. Use an https URL."""


class FetchTimeout(Unavailable):
    """The host took too long to answer."""


class RedirectLimitReached(Unavailable):
    """The URL redirects too many times."""


@dataclass(frozen=True, slots=True)
class EgressLimits:
    """Limits for one request."""

    seconds: float = 30.0
    """In total, redirects included."""
    body_bytes: int = 2 * 1024 * 1024
    redirects: int = 5


@dataclass(frozen=True, slots=True)
class EgressRequest:
    """The request to send."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    credentials: Mapping[str, str] = field(default_factory=dict)
    """Headers that authenticate; they replace others of the same names. They are sent over TLS only."""


@dataclass(frozen=True, slots=True)
class PinnedTarget:
    """A target, and its addresses that passed the check."""

    target: UrlTarget
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EgressResponse:
    """The response, and where it came from."""

    url: str
    response: HttpResponse
    leads_to: str = ""
    """The target of a redirect that was not followed, since it leaves the origin."""


class Egress:
    """Sends requests to public addresses, and to nothing else."""

    def __init__(
        self, *, resolve: Resolve = look_up, judge: Judge = address_problem, reach: EgressLimits | None = None
    ) -> None:
        self._resolve = resolve
        self._judge = judge
        self._reach = reach or EgressLimits()
        self._tls: ssl.SSLContext | None = None

    def check(self, request: EgressRequest) -> None:
        """Raise the error that would keep a request from being sent, as far as it is known without a name lookup.

        A name server would learn of the host, and the name may contain data that was not approved for sending.
        """
        target = parse(request.url)
        if _checked(request.credentials) and target.scheme != "https":
            raise CredentialsNeedTls
        _checked(request.headers)
        require_allowed(target.host, target.port, literal_address(target.host), self._problem)

    async def pin(self, target: UrlTarget, *, allowed: frozenset[str] | None = None) -> PinnedTarget:
        """Resolve a target and check all its addresses; `allowed` are the hosts that may be reached, None for all."""
        if allowed is not None and target.host not in allowed:
            raise HostNotAllowed(f"{target.host} is not on the list of allowed hosts.")
        addresses = await pin(target.host, target.port, judge=self._problem, resolve=self._resolve)
        return PinnedTarget(target, addresses)

    def _problem(self, address: Address, port: int) -> str:
        problem = self._judge(address, port)
        return f"{problem}. No tool may reach it" if problem else ""

    async def send(self, request: EgressRequest, *, allowed: frozenset[str] | None = None) -> EgressResponse:
        """Send a request and follow redirects within its origin."""
        self.check(request)
        target, headers = parse(request.url), _with(request.headers, request.credentials)
        method, body = request.method, request.body
        try:
            async with asyncio.timeout(self._reach.seconds):
                for _ in range(self._reach.redirects + 1):
                    pinned = await self.pin(target, allowed=allowed)
                    response = await self._ask(pinned, method, headers, body)
                    location = response.header("location")
                    if response.status not in _REDIRECTS or not location:
                        return EgressResponse(target.url, response)
                    onward = resolve_redirect(target, location)
                    if onward.origin != target.origin:
                        return EgressResponse(target.url, response, leads_to=onward.url)
                    if response.status == 303 or (response.status in (301, 302) and method == "POST"):
                        method, body = "HEAD" if method == "HEAD" else "GET", b""
                        headers = {name: value for name, value in headers.items() if name.lower() != "content-type"}
                    target = onward
        except TimeoutError:
            raise FetchTimeout(f"{target.host} took longer than {self._reach.seconds:g} s.") from None
        raise RedirectLimitReached(f"{request.url} redirects more than {self._reach.redirects} times.")

    async def _ask(self, pinned: PinnedTarget, method: str, headers: Mapping[str, str], body: bytes) -> HttpResponse:
        target = pinned.target
        reader, writer = await self._connect(pinned)
        try:
            writer.write(_written(target, method, headers, body))
            # A host may answer before it has read everything, and close.
            with suppress(ConnectionError):
                await writer.drain()
            return await read_response(reader, head_only=method == "HEAD", max_bytes=self._reach.body_bytes)
        except OSError as error:
            raise ConnectionFailed(f"{target.host} closed the connection: {error.strerror or error}.") from error
        finally:
            writer.transport.abort()

    async def _connect(self, pinned: PinnedTarget) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        target, tls = pinned.target, None
        if target.scheme == "https":
            if self._tls is None:
                self._tls = await asyncio.to_thread(ssl.create_default_context)
            tls = self._tls
        name = target.host if tls is not None else None

        async def attempt(location: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            try:
                return await asyncio.open_connection(location, target.port, ssl=tls, server_hostname=name)
            except ssl.SSLError as error:
                raise ConnectionFailed(
                    f"The certificate of {target.host} is not trusted: {error.reason or error}."
                ) from error

        return await connect(target.host, pinned.addresses, attempt)


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise HeaderNotAllowed(f"The header {name[:100]!r} contains characters that are not allowed in headers.")
        if name.lower() in _OURS or name.lower().startswith("proxy-"):
            raise HeaderNotAllowed(f"The header {name} is set by the connection. Remove it.")
    return dict(headers)


def _with(headers: Mapping[str, str], credentials: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with credentials replacing those of the same names."""
    theirs = {name.lower() for name in credentials}
    return {name: value for name, value in headers.items() if name.lower() not in theirs} | dict(credentials)


def _written(target: UrlTarget, method: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"{method} {target.path} HTTP/1.1", f"Host: {target.authority}", "Connection: close"]
    lines.append("Accept-Encoding: identity")
    names = {name.lower() for name in headers}
    usual = (("User-Agent", f"palyra/{VERSION}"), ("Accept", "text/html, text/plain, application/json, */*;q=0.5"))
    lines += [f"{name}: {value}" for name, value in usual if name.lower() not in names]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body or method in ("POST", "PUT", "PATCH"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
