"""How many connections and file descriptors the daemon allows itself, and how many it has."""

import asyncio

from palyra.core.clock import Clock
from palyra.daemon.current import Current
from palyra.gateway.connections import Connections, Limits
from palyra.sandbox import descriptors
from palyra.settings import GatewaySettings

RESERVED_DESCRIPTORS = 4_096
"""What the journal, sandboxed programs, model calls and everything else may need besides connections."""

Figures = dict[str, int]


def build(settings: Current, *, clock: Clock) -> Connections:
    """Make the budget that both APIs share; it follows the settings."""
    connections = Connections(_limits(settings.now.gateway), clock=clock)
    settings.watch(lambda new: connections.adopt(_limits(new.gateway)))
    return connections


async def figures(connections: Connections) -> Figures:
    """Return how many there are, and what became of those that are gone."""
    return {
        "open": connections.open,
        "authenticated": connections.authenticated,
        "limit": connections.limits.connections,
        "evicted": connections.evicted,
        "timed_out": connections.timed_out,
        "descriptors": await asyncio.to_thread(descriptors.used),
        "descriptor_limit": descriptors.limit(),
    }


def gauges(now: Figures) -> dict[str, tuple[str, float]]:
    """Return the figures as Prometheus shows them."""
    return {
        "connections_open": ("Connections to both APIs.", now["open"]),
        "connections_authenticated": ("Connections that have shown a valid token.", now["authenticated"]),
        "connections_limit": ("Connections that may be open.", now["limit"]),
        "connections_evicted": ("Connections that had to make room for others.", now["evicted"]),
        "connections_timed_out": ("Connections closed because the client was too slow.", now["timed_out"]),
        "descriptors_open": ("File descriptors in use.", now["descriptors"]),
        "descriptors_limit": ("File descriptors that may be in use.", now["descriptor_limit"]),
    }


def _limits(gateway: GatewaySettings) -> Limits:
    """Return how many connections there may be: descriptors must be left for everything else."""
    available = descriptors.raise_limit(gateway.connections + RESERVED_DESCRIPTORS)
    room = available - min(RESERVED_DESCRIPTORS, available // 2)
    return Limits(min(gateway.connections, room), gateway.connect_seconds)
