"""The one way out: every request of a tool to the network passes here.

A URL is taken apart in one way, its host is resolved once, every answer is judged, and the connection goes to one of
the addresses that were judged, with the name in `Host` and in the TLS handshake. If one answer of several is refused,
all are: a name that leads inside and outside is a trick. A redirect is followed within its origin (scheme, host and
port) only, and checked from the start; what was allowed is that origin, and nothing that was sent goes to another.
Proxies that the environment names are not used.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial

from palyra.core.errors import Denied, Invalid, Unavailable
from palyra.core.version import VERSION
from palyra.sandbox import address
from palyra.sandbox.response import Response, read_response
from palyra.sandbox.url import Target, follow, parse
from palyra.threads import Threads

MOST_ADDRESSES = 4
"""How many addresses of a host are tried."""
CONNECT_SECONDS = 10.0

MAX_LOOKUPS = 64
"""At once."""

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Takes a name and a port, gives its addresses."""
Judge = Callable[[address.Address, int], str]
"""Says why an address may not be reached; nothing if it may."""

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_OURS = frozenset(
    "host connection content-length transfer-encoding upgrade te trailer expect keep-alive accept-encoding"
    " proxy-authorization proxy-connection".split()
)
"""Headers that belong to the connection, which no caller sets."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class AddressRefused(Denied):
    """The host has an address that no tool may reach: it is private, of this machine, or otherwise not public."""


class HostNotAllowed(Denied):
    """This host is not among those that may be reached."""


class HostUnknown(Unavailable):
    """The host has no address, or the name server does not answer."""


class HeaderRefused(Invalid):
    """This header can not be sent."""


class CredentialsRefused(Denied):
    """Credentials are sent over TLS only, so nothing was sent. Use the address with https."""


class ConnectionFailed(Unavailable):
    """The host could not be reached, or ended the connection."""


class FetchTooSlow(Unavailable):
    """The host took too long to answer."""


class TooManyRedirects(Unavailable):
    """The address redirects again and again."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a request may go."""

    seconds: float = 30.0
    """For everything, redirects included."""
    body_bytes: int = 2 * 1024 * 1024
    redirects: int = 5


@dataclass(frozen=True, slots=True)
class Request:
    """What to ask for."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    credentials: Mapping[str, str] = field(default_factory=dict)
    """Headers that prove who asks, in the place of others of these names. They are sent over TLS only."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """A target, and the addresses that were found good."""

    target: Target
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, and from where."""

    url: str
    response: Response
    leads_to: str = ""
    """Where a redirect goes that was not followed, since it leaves the origin."""


@cache
def _lookups() -> Threads:
    """Return threads for name lookups alone: a name server that does not answer holds them for long, and must not hold
    up all else."""
    return Threads(MAX_LOOKUPS, name="names")


async def look_up(host: str, port: int) -> list[str]:
    """Ask the system for the addresses of a host."""
    asked = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    found = await asyncio.get_running_loop().run_in_executor(_lookups(), asked)
    return list(dict.fromkeys(str(place[0]) for _, _, _, _, place in found))


def fault_of(place: address.Address, port: int) -> str:
    """Say why an address may not be reached; nothing if it may.

    One of this machine's own may be public: services listen there that let nobody else in.
    """
    return address.fault(place, port) or ("an address of this machine" if is_of_this_machine(str(place)) else "")


def is_of_this_machine(text: str) -> bool:
    """Tell whether an address is one of this machine's own: only those can be listened at."""
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((text, 0))
        except OSError:
            return False
    return True


class Egress:
    """Sends requests to public addresses, and to nothing else."""

    def __init__(self, *, resolve: Resolve = look_up, judge: Judge = fault_of, reach: Reach | None = None) -> None:
        self._resolve = resolve
        self._judge = judge
        self._reach = reach or Reach()
        self._tls: ssl.SSLContext | None = None

    def check(self, request: Request) -> None:
        """Raise what would keep a request from being sent, as far as it is known without asking a name server.

        A name server would learn of the host, and the name may hold what nobody has allowed to be sent.
        """
        target = parse(request.url)
        if _checked(request.credentials) and target.scheme != "https":
            raise CredentialsRefused
        _checked(request.headers)
        with suppress(ValueError):
            self._require_allowed(target, [str(address.read(target.host))])

    async def pin(self, target: Target, *, allowed: frozenset[str] | None = None) -> Pinned:
        """Resolve a target and judge every address of it; `allowed` are the hosts that may be reached, None for all."""
        if allowed is not None and target.host not in allowed:
            raise HostNotAllowed(f"{target.host} is not among the hosts that may be reached.")
        try:
            # An address is its own answer, also to a resolver that thinks otherwise.
            found = [str(address.read(target.host))]
        except ValueError:
            found = await self._look_up(target)
        self._require_allowed(target, found)
        return Pinned(target, tuple(found[:MOST_ADDRESSES]))

    def _require_allowed(self, target: Target, found: list[str]) -> None:
        for text in found:
            try:
                fault = self._judge(address.read(text), target.port)
            except ValueError:
                fault = "no address at all"
            if fault:
                raise AddressRefused(f"{target.host} leads to {text}, which is {fault}. No tool may reach it.")

    async def send(self, request: Request, *, allowed: frozenset[str] | None = None) -> Answer:
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
                        return Answer(target.url, response)
                    onward = follow(target, location)
                    if onward.origin != target.origin:
                        return Answer(target.url, response, leads_to=onward.url)
                    if response.status == 303 or (response.status in (301, 302) and method == "POST"):
                        method, body = "HEAD" if method == "HEAD" else "GET", b""
                        headers = {name: value for name, value in headers.items() if name.lower() != "content-type"}
                    target = onward
        except TimeoutError:
            raise FetchTooSlow(f"{target.host} took longer than {self._reach.seconds:g} s.") from None
        raise TooManyRedirects(f"{request.url} redirects more than {self._reach.redirects} times.")

    async def _look_up(self, target: Target) -> list[str]:
        try:
            found = await self._resolve(target.host, target.port)
        except OSError as error:
            raise HostUnknown(f"{target.host} has no address: {error.strerror or error}.") from error
        if not found:
            raise HostUnknown(f"{target.host} has no address.")
        return found

    async def _ask(self, pinned: Pinned, method: str, headers: Mapping[str, str], body: bytes) -> Response:
        target = pinned.target
        reader, writer = await self._connect(pinned)
        try:
            writer.write(_written(target, method, headers, body))
            # A host may answer before it has read everything, and close.
            with suppress(ConnectionError):
                await writer.drain()
            return await read_response(reader, head_only=method == "HEAD", most_bytes=self._reach.body_bytes)
        except OSError as error:
            raise ConnectionFailed(f"{target.host} ended the connection: {error.strerror or error}.") from error
        finally:
            writer.transport.abort()

    async def _connect(self, pinned: Pinned) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        target, tls = pinned.target, None
        if target.scheme == "https":
            if self._tls is None:
                self._tls = await asyncio.to_thread(ssl.create_default_context)
            tls = self._tls
        name = target.host if tls is not None else None
        last = "no address"
        for place in pinned.addresses:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    return await asyncio.open_connection(place, target.port, ssl=tls, server_hostname=name)
            except ssl.SSLError as error:
                raise ConnectionFailed(f"{target.host} can not prove who it is: {error.reason or error}.") from error
            except TimeoutError:
                last = "it does not answer"
            except OSError as error:
                last = error.strerror or str(error)
        raise ConnectionFailed(f"{target.host} can not be reached: {last}.")


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise HeaderRefused(f"The header {name[:100]!r} holds characters that no header may.")
        if name.lower() in _OURS or name.lower().startswith("proxy-"):
            raise HeaderRefused(f"The header {name} belongs to the connection. Leave it out.")
    return dict(headers)


def _with(headers: Mapping[str, str], credentials: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with credentials in the place of whatever has their names."""
    theirs = {name.lower() for name in credentials}
    return {name: value for name, value in headers.items() if name.lower() not in theirs} | dict(credentials)


def _written(target: Target, method: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"{method} {target.path} HTTP/1.1", f"Host: {target.authority}", "Connection: close"]
    lines.append("Accept-Encoding: identity")
    given = {name.lower() for name in headers}
    usual = (("User-Agent", f"palyra/{VERSION}"), ("Accept", "text/html, text/plain, application/json, */*;q=0.5"))
    lines += [f"{name}: {value}" for name, value in usual if name.lower() not in given]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body or method in ("POST", "PUT", "PATCH"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
