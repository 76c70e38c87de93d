"""Identifiers: ULIDs as text, with a separate type for each kind of object."""

from typing import NewType, Protocol

from palyra.core.errors import Invalid

SessionId = NewType("SessionId", str)
RunId = NewType("RunId", str)
CallId = NewType("CallId", str)
AgentId = NewType("AgentId", str)
TaskId = NewType("TaskId", str)
TokenId = NewType("TokenId", str)
PrincipalId = NewType("PrincipalId", str)

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
LENGTH = 26
RANDOM_BYTES = 10

_VALID = frozenset(ALPHABET)


class IdInvalid(Invalid):
    """The id is not valid. An id has 26 characters of Crockford base 32, as in 01ARZ3NDEKTSV4RRFFQ69G5FAV."""


class IdSource(Protocol):
    """A source of new ids. Each call returns a new id; later ones sort later, to the millisecond."""

    def new(self) -> str: ...


def ulid(at_ms: int, randomness: bytes) -> str:
    """Return the ULID of a time and ten random bytes."""
    number = (at_ms << 80) | int.from_bytes(randomness[:RANDOM_BYTES], "big")
    digits = [""] * LENGTH
    for index in range(LENGTH - 1, -1, -1):
        digits[index] = ALPHABET[number & 31]
        number >>= 5
    return "".join(digits)


def time_of(ulid: str) -> int:
    """Return when an id was created, in milliseconds."""
    number = 0
    for digit in ulid[:10]:
        number = number * 32 + ALPHABET.index(digit)
    return number


def parse_ulid(text: str, what: str = "id") -> str:
    """Return the id in its canonical form, or raise `IdInvalid` naming `what` it was meant to be."""
    # Some letters beyond ASCII become ASCII ones in upper case.
    canonical = text.upper() if text.isascii() else ""
    if len(canonical) != LENGTH or canonical[0] > "7" or not _VALID.issuperset(canonical):
        displayed = text if len(text) <= 40 else text[:40] + "…"
        raise IdInvalid(
            f"{displayed!r} is not a valid {what}. An id has 26 characters, as in 01ARZ3NDEKTSV4RRFFQ69G5FAV."
        )
    return canonical
