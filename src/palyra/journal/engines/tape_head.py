"""The head of a tape."""

from msgspec import Struct


class TapeHead(Struct, frozen=True):
    """How many entries a tape has, and the hash of the last."""

    tape_seq: int
    hash: str
