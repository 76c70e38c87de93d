"""Connects to addresses that were checked, and to no others.

A host is resolved once, every address is checked, and the connection goes to one of those addresses. If one address of
several is refused, all are: a name that leads inside and outside is an attack.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from functools import cache, partial
from typing import TypeVar

from palyra.core.errors import Denied, Unavailable
from palyra.sandbox.network import address
from palyra.threads import Threads

MAX_ADDRESSES = 4
"""How many addresses of a host are tried."""
CONNECT_SECONDS = 10.0

MAX_LOOKUPS = 64
"""Maximum lookups at once."""

T = TypeVar("T")
Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Takes a name and a port, returns its addresses."""
Judge = Callable[[address.Address, int], str]
"""Returns why an address may not be reached; empty if it may."""


class AddressNotAllowed(Denied):
    """The host has an address that no tool may reach: it is private, on this machine, or otherwise not public."""


class HostNotAllowed(Denied):
    """This host is not on the list of allowed hosts."""


class HostNotFound(Unavailable):
    """The host was not found, or the name server does not answer."""


class ConnectionFailed(Unavailable):
    """The host could not be reached, or closed the connection."""


@cache
def _lookups() -> Threads:
    """Return threads for name lookups alone: a name server that does not answer blocks them for long, and must not
    block anything else."""
    return Threads(MAX_LOOKUPS, name="names")


async def look_up(host: str, port: int) -> list[str]:
    """Ask the system for the addresses of a host."""
    request = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    result = await asyncio.get_running_loop().run_in_executor(_lookups(), request)
    return list(dict.fromkeys(str(position[0]) for _, _, _, _, position in result))


def address_problem(target_address: address.Address, port: int) -> str:
    """Return why an address may not be reached; empty if it may.

    One of this machine's own may be public: local-only services may listen there.
    """
    return address.address_problem(target_address, port) or (
        "an address of this machine" if is_of_this_machine(str(target_address)) else ""
    )


def is_of_this_machine(text: str) -> bool:
    """Tell whether an address is one of this machine's own: only those can be bound."""
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((text, 0))
        except OSError:
            return False
    return True


async def pin(host: str, port: int, *, judge: Judge, resolve: Resolve = look_up) -> tuple[str, ...]:
    """Resolve a host and return its addresses, all of which passed the check."""
    matches = literal_address(host)
    if not matches:
        try:
            matches = await resolve(host, port)
        except OSError as error:
            raise HostNotFound(f"{host} has no address: {error.strerror or error}.") from error
    if not matches:
        raise HostNotFound(f"{host} has no address.")
    require_allowed(host, port, matches, judge)
    return tuple(matches[:MAX_ADDRESSES])


def literal_address(host: str) -> list[str]:
    """Return the address that a host is; empty for a name. An address is itself, whatever a resolver says."""
    try:
        return [str(address.parse_address(host))]
    except ValueError:
        return []


def require_allowed(host: str, port: int, addresses: Iterable[str], judge: Judge) -> None:
    """Raise `AddressNotAllowed` if one of a host's addresses may not be reached."""
    for text in addresses:
        try:
            problem = judge(address.parse_address(text), port)
        except ValueError:
            problem = "no address at all"
        if problem:
            raise AddressNotAllowed(f"{host} resolves to {text}, which is {problem}.")


async def connect(host: str, addresses: Iterable[str], attempt: Callable[[str], Awaitable[T]]) -> T:
    """Return the connection to the first address that accepts one; an attempt fails with an `OSError`."""
    last = "no address"
    for location in addresses:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await attempt(location)
        except TimeoutError:
            last = "it does not answer"
        except OSError as error:
            last = error.strerror or str(error)
    raise ConnectionFailed(f"{host} cannot be reached: {last}.")
