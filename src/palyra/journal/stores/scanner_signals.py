"""Signals that the scanners found in the results that a session has read."""

from msgspec import Struct

from palyra.core.events import ChildEnded, HistoryAttached, ToolFinished, decode
from palyra.core.ids import SessionId
from palyra.core.upcast import stored_tags
from palyra.journal.engines.base import Connection

MAX_ENTRIES_BACK = 2_000
"""How many entries back results are searched: older ones are hardly in the prompt any more."""
MAX_RESULTS = 50

_KINDS = ", ".join(f"'{tag}'" for tag in stored_tags(["tool_finished", "child_ended", "history_attached"]))


class SignalSource(Struct, frozen=True):
    """The signals, and the sources of the results that have them."""

    signals: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    """The tools, the latest first; `a child run` for a child's result, `the caller` for attached history."""


def of_session(conn: Connection, session_id: SessionId, *, after_seq: int) -> SignalSource:
    """Return the signals in the results after a boundary."""
    head = conn.fetch_one("SELECT tape_seq FROM heads WHERE session_id = :session_id", {"session_id": session_id})
    after = max(after_seq, (head[0] if head is not None else 0) - MAX_ENTRIES_BACK)
    rows = conn.fetch(
        "SELECT content FROM tape WHERE session_id = :session_id AND tape_seq > :after"
        f" AND kind IN ({_KINDS}) AND content LIKE :has"
        " ORDER BY tape_seq DESC LIMIT :most",
        {"session_id": session_id, "after": after, "has": '%"signals":[%', "most": MAX_RESULTS},
    )
    signals: set[str] = set()
    by: dict[str, None] = {}
    for (content,) in rows:
        event = decode(content)
        # The text of a result may contain the words of the query.
        if isinstance(event, ToolFinished | ChildEnded | HistoryAttached) and event.signals:
            signals.update(event.signals)
            by[_source(event)] = None
    return SignalSource(tuple(sorted(signals)), tuple(by))


def _source(event: ToolFinished | ChildEnded | HistoryAttached) -> str:
    match event:
        case ToolFinished(actor=actor):
            return actor.removeprefix("tool:")
        case ChildEnded():
            return "a child run"
        case HistoryAttached():
            return "the client"
