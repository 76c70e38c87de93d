"""Channels: by which way a message came in. Each door of the daemon has a name, and no client can choose another.

A name may have parts with `:` between them, of which each belongs to those before it.
"""

GRPC = "grpc"
HTTP = "http"
V1 = "v1"
"""What programs use that speak to OpenAI: `/v1` of the HTTP door."""
TRIAL = "trial"
"""A trial of a provider, by whoever administers this Palyra."""
UNKNOWN = "unknown"
"""Stands where no channel was recorded."""


def join(*groups: tuple[str, ...]) -> tuple[str, ...]:
    """Return every channel of the groups once, the first that was used first."""
    return tuple(dict.fromkeys(channel for group in groups for channel in group))


def families(channel: str) -> tuple[str, ...]:
    """Return what a channel belongs to: `telegram` for `telegram:ops`."""
    parts = channel.split(":")
    return tuple(":".join(parts[:end]) for end in range(1, len(parts)))
