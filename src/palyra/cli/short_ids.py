"""Short names for people: an id by its last characters, and the channel of a message."""

from collections.abc import Iterable

from palyra.core.errors import Invalid, NotFound
from palyra.core.ids import LENGTH

MIN_SUFFIX_CHARS = 6
"""How many of its last characters are enough to name an id; the first ones are much the same for all."""

CHANNEL_NAMES = {
    "grpc": "the command line (grpc)",
    "http": "the HTTP API (http)",
    "v1": "the OpenAI-compatible API (v1)",
    "trial": "a test of a model",
}


class IdAmbiguous(Invalid):
    """Several ids end with these characters. Give more characters, or the full id."""


class IdNotFound(NotFound):
    """No recent id ends with these characters. Give the full id."""


def is_id_suffix(name: str) -> bool:
    """Return whether this can be the end of an id, rather than a full one or a word such as `last`."""
    return MIN_SUFFIX_CHARS <= len(name) < LENGTH and name.isalnum()


def find_by_suffix(name: str, ids: Iterable[str]) -> str:
    """Return the one id that ends with these characters."""
    matches = [one for one in ids if one.endswith(name.upper())]
    if len(matches) > 1:
        raise IdAmbiguous(f'{len(matches)} ids end with "{name}". Give more characters, or the full id.')
    if not matches:
        raise IdNotFound(f'No recent id ends with "{name}". Give the full id.')
    return matches[0]


def describe_channel(origin: str) -> str:
    """Return the channel of a message, in words."""
    return CHANNEL_NAMES.get(origin, origin)
