"""Traces: the subject of `palyra why`, and its tree of causes. `runs/trace/builder.py` builds it."""

from collections.abc import Iterator
from datetime import datetime

from msgspec import Struct

from palyra.core.tool import JsonObject

TRACE_SUBJECTS_HELP = (
    "Give a run (its id, or `last`), an entry (SESSION:SEQ), the id of a call, an approval (or its "
    "last six characters), an artifact, a file checkpoint or an embeddings request, or the path of a "
    "file."
)


class TraceNode(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened, and what followed from it."""

    kind: str
    """`input`, `history`, `turn`, `call`, `policy`, `approval`, `execution`, `child`, `file`, `artifact`, `restore`,
    `session` or `end`."""
    what: str
    """In one line."""
    at: datetime
    by: str = ""
    """The principal or component that did it."""
    session_id: str = ""
    run_id: str = ""
    tape_seq: int = 0
    """Its position on the tape of its session."""
    labels: tuple[str, ...] = ()
    """The labels of its sources."""
    facts: JsonObject = {}
    subject: bool = False
    """It is the subject of the trace."""
    then: "tuple[TraceNode, ...]" = ()


class Trace(Struct, frozen=True, kw_only=True):
    """The subject, what led to it, and what followed from it elsewhere."""

    of: str
    kind: str
    """`run`, `entry`, `call`, `approval`, `artifact`, `checkpoint` or `file`."""
    tree: TraceNode
    """From the first input on; the subject is marked in it."""
    later: tuple[TraceNode, ...] = ()
    """Later changes of the same files, and calls that read them or the artifact."""


def walk_nodes(tree: TraceNode) -> Iterator[TraceNode]:
    """Yield every node of a tree, parents first."""
    yield tree
    for link in tree.then:
        yield from walk_nodes(link)
