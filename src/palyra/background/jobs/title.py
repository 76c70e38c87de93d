"""Gives a session a title after its first exchange: the first message of the user, shortened."""

import re

from palyra.background.queue import JobContext
from palyra.core.ids import SessionId
from palyra.core.session_events import SessionRenamed
from palyra.core.tool import JsonObject
from palyra.journal.engines.base import Connection
from palyra.journal.stores import messages, sessions
from palyra.runs.recording.session_writer import SESSION_TITLE, SessionWriter

TITLE_CHARS = 60

_SPACE = re.compile(r"\s+")
_END = re.compile(r"(?<=[.!?])\s")


def title_of(text: str) -> str:
    """Return the first sentence of a message, on one line, cut at a word."""
    line = _END.split(_SPACE.sub(" ", text).strip(), maxsplit=1)[0]
    if len(line) <= TITLE_CHARS:
        return line
    cut = line[:TITLE_CHARS].rsplit(" ", 1)[0]
    return (cut if len(cut) > TITLE_CHARS // 2 else line[:TITLE_CHARS]).rstrip(" ,;:") + "…"


async def run(payload: JsonObject, context: JobContext) -> None:
    """Set the session's title, unless it has one by now."""
    session_id = SessionId(payload["session_id"])
    at = context.clock.now()

    def unit(conn: Connection) -> None:
        writer = SessionWriter.open(conn, session_id, ids=context.ids)
        text = messages.first_input(conn, session_id)
        if text is None or sessions.titled(conn, session_id):
            return
        writer.note(SessionRenamed(at=at, title=title_of(text)))
        writer.close()

    await context.engine.write(unit)


JOBS = {SESSION_TITLE: run}
