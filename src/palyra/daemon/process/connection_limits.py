"""Limits for connections and file descriptors of the daemon, and how many are in use."""

import asyncio

from palyra.core.clock import Clock
from palyra.gateway.connections import ConnectionBudget, ConnectionLimits
from palyra.runs.system import CurrentConfig
from palyra.sandbox.processes import descriptors
from palyra.settings import GatewaySettings

RESERVED_DESCRIPTORS = 4_096
"""File descriptors for the journal, sandboxed programs, model calls and everything else except connections."""

Figures = dict[str, int]


def build(config: CurrentConfig, *, clock: Clock) -> ConnectionBudget:
    """Build the connection budget that both APIs share; it follows the settings."""
    connections = ConnectionBudget(_limits(config.now.gateway), clock=clock)
    config.watch(lambda new: connections.adopt(_limits(new.gateway)))
    return connections


async def figures(connections: ConnectionBudget) -> Figures:
    """Return the numbers of open, evicted and timed-out connections and of file descriptors, with their limits."""
    return {
        "open": connections.open,
        "authenticated": connections.authenticated,
        "limit": connections.limits.connections,
        "evicted": connections.evicted,
        "timed_out": connections.timed_out,
        "descriptors": await asyncio.to_thread(descriptors.used),
        "descriptor_limit": descriptors.limit(),
    }


def metrics(now: Figures) -> dict[str, tuple[str, float]]:
    """Return the figures under their names as metrics, with descriptions."""
    return {
        "connections_open": ("Open connections to both APIs.", now["open"]),
        "connections_authenticated": ("Connections that have sent a valid token.", now["authenticated"]),
        "connections_limit": ("The maximum number of connections.", now["limit"]),
        "connections_evicted_total": ("Connections closed to make room for others.", now["evicted"]),
        "connections_timed_out_total": ("Connections closed because the client was too slow.", now["timed_out"]),
        "descriptors_open": ("File descriptors in use.", now["descriptors"]),
        "descriptors_limit": ("The maximum number of file descriptors in use.", now["descriptor_limit"]),
    }


def _limits(gateway: GatewaySettings) -> ConnectionLimits:
    """Return the connection limits; enough file descriptors must be left for everything else."""
    available = descriptors.raise_limit(gateway.max_connections + RESERVED_DESCRIPTORS)
    room = available - min(RESERVED_DESCRIPTORS, available // 2)
    return ConnectionLimits(min(gateway.max_connections, room), gateway.connect_timeout_seconds)
