"""A trace: what was asked about, and the tree of causes that it stands in. `core/why.py` works it out."""

from collections.abc import Iterator
from datetime import datetime

from msgspec import Struct

from palyra.core.tool import JsonObject

CAN_BE_ASKED = (
    "Ask about a run (its id, or `last`), an entry (SESSION:SEQ), a call, an approval (its id or the six characters"
    " at its end), an artifact, a checkpoint or a call for embeddings by its id, or a file by its path."
)


class Link(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened, and what followed from it."""

    kind: str
    """`input`, `turn`, `call`, `policy`, `approval`, `execution`, `child`, `file`, `artifact`, `restore`, or `end`."""
    what: str
    """In one line."""
    at: datetime
    by: str = ""
    """The principal or part that did it."""
    session_id: str = ""
    run_id: str = ""
    tape_seq: int = 0
    """Where it stands on the tape of its session."""
    labels: tuple[str, ...] = ()
    """Where what went into it came from."""
    facts: JsonObject = {}
    subject: bool = False
    """It is what was asked about."""
    then: "tuple[Link, ...]" = ()


class Trace(Struct, frozen=True, kw_only=True):
    """What was asked about, what led to it, and what followed from it elsewhere."""

    of: str
    kind: str
    """`run`, `entry`, `call`, `approval`, `artifact`, `checkpoint` or `file`."""
    tree: Link
    """From the first input on; what was asked about is marked in it."""
    later: tuple[Link, ...] = ()
    """Later changes of the same files, and calls that read them or the artifact."""


def walk(tree: Link) -> Iterator[Link]:
    """Yield every link of a tree, each before what followed from it."""
    yield tree
    for link in tree.then:
        yield from walk(link)
