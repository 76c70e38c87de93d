"""What the scanners found in the results that a session has seen."""

from msgspec import Struct

from palyra.core.events import ChildEnded, MessageGiven, ToolFinished, decode
from palyra.core.ids import SessionId
from palyra.journal.engine import Connection

FURTHEST = 2_000
"""So many entries back a result is looked for: beyond that it is hardly in the prompt any more."""
MOST_RESULTS = 50


class Warned(Struct, frozen=True):
    """The signals of what was read, and what brought them."""

    signals: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    """The tools, the latest first; `a child run` for one of those, `the caller` for what that one brought along."""


def of_session(conn: Connection, session_id: SessionId, *, after_seq: int) -> Warned:
    """Return what was found in the results behind a boundary."""
    head = conn.fetch_one("SELECT tape_seq FROM heads WHERE session_id = :session_id", {"session_id": session_id})
    after = max(after_seq, (head[0] if head is not None else 0) - FURTHEST)
    rows = conn.fetch(
        "SELECT content FROM tape WHERE session_id = :session_id AND tape_seq > :after"
        " AND kind IN ('tool_finished', 'child_ended', 'message_given') AND content LIKE :has"
        " ORDER BY tape_seq DESC LIMIT :most",
        {"session_id": session_id, "after": after, "has": '%"signals":[%', "most": MOST_RESULTS},
    )
    signals: set[str] = set()
    by: dict[str, None] = {}
    for (content,) in rows:
        event = decode(content)
        # The text of a result may hold the very words that were looked for.
        if isinstance(event, ToolFinished | ChildEnded | MessageGiven) and event.signals:
            signals.update(event.signals)
            by[_source(event)] = None
    return Warned(tuple(sorted(signals)), tuple(by))


def _source(event: ToolFinished | ChildEnded | MessageGiven) -> str:
    match event:
        case ToolFinished(actor=actor):
            return actor.removeprefix("tool:")
        case ChildEnded():
            return "a child run"
        case MessageGiven():
            return "the caller"
