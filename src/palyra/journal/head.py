"""The end of a tape."""

from msgspec import Struct


class Head(Struct, frozen=True):
    """How many entries a tape has, and the hash of the last."""

    tape_seq: int
    hash: str
