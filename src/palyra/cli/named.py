"""How a person names things: an id by its last characters, and the door that a message took."""

from collections.abc import Iterable

from palyra.core.errors import Invalid, NotFound
from palyra.core.ids import LENGTH

ENDING_CHARS = 6
"""So many characters from its end are enough to name an id; those at its beginning are much the same for all."""

DOORS = {
    "grpc": "the command line (grpc)",
    "http": "a program (http)",
    "v1": "a program that speaks to OpenAI (v1)",
    "trial": "a trial of a model",
}


class IdUnclear(Invalid):
    """Several ids end with these characters. Give more of them, or the full id."""


class EndingUnknown(NotFound):
    """No recent id ends with these characters. Give the full id."""


def is_ending(name: str) -> bool:
    """Tell whether this can be the end of an id, rather than a whole one or a word such as `last`."""
    return ENDING_CHARS <= len(name) < LENGTH and name.isalnum()


def by_ending(name: str, ids: Iterable[str]) -> str:
    """Return the one id that ends so."""
    found = [one for one in ids if one.endswith(name.upper())]
    if len(found) > 1:
        raise IdUnclear(f'{len(found)} ids end with "{name}". Give more characters, or the full id.')
    if not found:
        raise EndingUnknown(f'No recent id ends with "{name}". Give the full id.')
    return found[0]


def door(origin: str) -> str:
    """Return by which way a message came in, in words."""
    return DOORS.get(origin, origin)
