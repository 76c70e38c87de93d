"""Which connections may stay open: one budget for the HTTP and the gRPC API, so that neither starves the other.

Anyone can connect, so a connection that has not shown a valid token must not cost those that have. It is *new* until a
request on it was authenticated, and then *authenticated*. New connections have a quarter of the budget, and one address
has at most half of that. When that is used up, the next connection evicts the oldest new one, whatever it does: so no
client can hold a slot without a token, and a client that shows its token at once has done so long before its turn
comes. A new connection has a few seconds to authenticate, and is then closed as soon as none of its requests is in
progress.

The rest of the budget is for authenticated connections. When it is used up, the principal with the most connections
loses the protection of its oldest one, which counts as new again. So a client with a token always gets in, whatever
others do without one, and no principal can shut out another.
"""

import asyncio
from collections import Counter
from ipaddress import IPv6Address, ip_address, ip_network
from typing import NamedTuple, Protocol

from palyra.core.clock import Clock
from palyra.core.ids import PrincipalId

SWEEP_SECONDS = 1.0


class ConnectionLimits(NamedTuple):
    """The limits in force."""

    connections: int
    """How many connections may be open in all."""
    seconds: float
    """How long a client has to authenticate, and to send the head of a request."""

    @property
    def new(self) -> int:
        """How many connections may be new."""
        return max(2, self.connections // 4)

    @property
    def new_per_address(self) -> int:
        """How many connections of one address may be new."""
        return max(1, self.new // 2)

    @property
    def authenticated(self) -> int:
        """How many connections may be authenticated."""
        return max(1, self.connections - self.new)

    @property
    def accepted_at_once(self) -> int:
        """How many to accept before the others get to run: each must have some time before it is evicted."""
        return max(1, min(32, self.new_per_address // 8))


class Peer(Protocol):
    """The server's side of one connection."""

    @property
    def busy(self) -> bool:
        """Whether a request is in progress: its head was received, and its response is not complete."""
        ...

    def overdue(self, now: float, seconds: float) -> bool:
        """Whether an authenticated client has kept us waiting for too long; checked about once a second."""
        ...

    def leave(self) -> None:
        """Close the connection in the protocol's regular way."""
        ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...


class ConnectionSlot:
    """One connection's slot in the budget."""

    __slots__ = ("_connections", "address", "leaving", "local", "peer", "principal", "since")

    def __init__(
        self, connections: "ConnectionBudget", address: str, peer: Peer, *, since: float, local: str | None
    ) -> None:
        self._connections = connections
        self.address = address
        self.local = local
        """The local address that it was received at."""
        self.peer = peer
        self.since = since
        """When it became new."""
        self.principal: PrincipalId | None = None
        self.leaving = False

    def authenticated(self, principal: PrincipalId) -> None:
        """Record a valid token."""
        if self.principal != principal:
            self._connections.promote(self, principal)

    def rejected(self) -> None:
        """Record a token that is not valid, or no longer valid."""
        if self.principal is not None:
            self._connections.demote(self)

    def release(self) -> None:
        """Release the slot: the connection is closed."""
        self._connections.release(self)


class ConnectionBudget:
    """See the module."""

    def __init__(self, limits: ConnectionLimits, *, clock: Clock) -> None:
        self.limits = limits
        self._clock = clock
        self._new: dict[ConnectionSlot, None] = {}
        self._new_of: Counter[str] = Counter()
        self._authenticated: dict[PrincipalId, dict[ConnectionSlot, None]] = {}
        self.evicted = 0
        """How many were evicted for others."""
        self.timed_out = 0
        """How many were closed because they kept us waiting."""

    @property
    def authenticated(self) -> int:
        """How many connections have shown a valid token."""
        return sum(map(len, self._authenticated.values()))

    @property
    def open(self) -> int:
        """How many connections are open."""
        return len(self._new) + self.authenticated

    def adopt(self, limits: ConnectionLimits) -> None:
        """Apply new limits; existing connections stay."""
        self.limits = limits

    def admit(self, host: str, peer: Peer, *, local: str | None = None) -> ConnectionSlot:
        """Admit a new connection from an address; others are evicted if needed."""
        slot = ConnectionSlot(self, _group(host), peer, since=self._clock.monotonic(), local=local)
        self._add(slot)
        return slot

    def promote(self, slot: ConnectionSlot, principal: PrincipalId) -> None:
        """Count a connection as authenticated for a principal."""
        if not self.release(slot):
            return  # it was closed in the meantime
        if self.authenticated >= self.limits.authenticated:
            maximum = max(self._authenticated.values(), key=len)
            if len(maximum) <= len(self._authenticated.get(principal, ())) + 1:
                self._add(slot)
                return
            self.demote(next(iter(maximum)))
        slot.principal = principal
        self._authenticated.setdefault(principal, {})[slot] = None

    def demote(self, slot: ConnectionSlot) -> None:
        """Count a connection as new again, with the usual time to authenticate."""
        if self.release(slot):
            slot.since = self._clock.monotonic()
            self._add(slot)

    def release(self, slot: ConnectionSlot) -> bool:
        """Stop counting a connection; return whether it was counted."""
        if slot.principal is None:
            if slot not in self._new:
                return False
            del self._new[slot]
            self._new_of[slot.address] -= 1
            if not self._new_of[slot.address]:
                del self._new_of[slot.address]
            return True
        own = self._authenticated.get(slot.principal, {})
        if slot not in own:
            return False
        del own[slot]
        if not own:
            del self._authenticated[slot.principal]
        slot.principal = None
        return True

    def evict(self, address: str | None = None) -> None:
        """Close the oldest new connection, if there is one; only of that address if one is named."""
        oldest = next((slot for slot in self._new if address is None or slot.address == address), None)
        if oldest is not None:
            self.evicted += 1
            self.release(oldest)
            oldest.peer.abort()

    async def watch(self) -> None:
        """Close overdue connections, for as long as the daemon runs."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep()

    def sweep(self) -> None:
        """Close every connection whose time is over: in the regular way first, the next time at once."""
        now, seconds = self._clock.monotonic(), self.limits.seconds
        for slot in [*self._new, *(slot for own in self._authenticated.values() for slot in own)]:
            if slot.leaving:
                self.release(slot)
                slot.peer.abort()
            elif _overdue(slot, now, seconds):
                self.timed_out += 1
                slot.leaving = True
                slot.peer.leave()

    def _add(self, slot: ConnectionSlot) -> None:
        limits = self.limits
        if self._new_of[slot.address] >= limits.new_per_address:
            self.evict(slot.address)
        elif len(self._new) >= limits.new:
            self.evict()
        self._new[slot] = None
        self._new_of[slot.address] += 1


def _overdue(slot: ConnectionSlot, now: float, seconds: float) -> bool:
    if slot.principal is None:
        return now - slot.since > seconds and not slot.peer.busy
    return slot.peer.overdue(now, seconds)


def _group(host: str) -> str:
    """Return the group that an address counts for: for IPv6 its network, which usually belongs to one customer."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(ip_network((address, 64), strict=False))
    return str(address)
