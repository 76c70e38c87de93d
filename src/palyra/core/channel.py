"""Channels: where a message came from. Each endpoint of the daemon has a name, and a client cannot choose another.

A name may have parts separated by `:`; each part belongs to the parts before it.
"""

GRPC = "grpc"
HTTP = "http"
V1 = "v1"
"""Clients of the OpenAI-compatible API: `/v1` of the HTTP API."""
TEST = "test"
"""A test call to a provider, made by an administrator."""
UNKNOWN = "unknown"
"""Used where no channel was recorded."""


def join(*groups: tuple[str, ...]) -> tuple[str, ...]:
    """Return every channel of the groups once, in the order of first use."""
    return tuple(dict.fromkeys(channel for group in groups for channel in group))


def families(channel: str) -> tuple[str, ...]:
    """Return the channels that a channel belongs to: `telegram` for `telegram:ops`."""
    parts = channel.split(":")
    return tuple(":".join(parts[:end]) for end in range(1, len(parts)))
