"""Exports a session as one document: JSON for programs, Markdown for people."""

from collections.abc import AsyncIterator

import msgspec

from palyra.core.clock import from_ms
from palyra.core.model.prompt import Role
from palyra.core.projection.changes import StoredMessage
from palyra.core.session import Session
from palyra.journal import tape
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import messages

SLICE = 200

_encode = msgspec.json.Encoder()


async def as_json(engine: Engine, session: Session) -> AsyncIterator[str]:
    """Yield the session and its tape, entry by entry as stored."""
    yield '{"session":' + _encode.encode(session).decode() + ',"tape":['
    after = 0
    while page := await engine.read(lambda conn, after=after: tape.page(conn, session.session_id, after_seq=after)):  # type: ignore[misc]
        listed = ",".join(entry.to_json() for entry in page)
        yield listed if after == 0 else "," + listed
        after = page[-1].tape_seq
    yield "]}\n"


async def as_markdown(engine: Engine, session: Session) -> AsyncIterator[str]:
    """Yield the conversation as a reader would see it."""
    begun = f"{session.created_at:%Y-%m-%d}"
    yield f"# {session.title or 'Untitled session'}\n\nSession {session.session_id}, begun {begun}\n"
    after = 0
    while page := await engine.read(lambda conn, after=after: _following(conn, session, after)):  # type: ignore[misc]
        for message in page:
            yield _section(message)
        after = page[-1].tape_seq


def _following(conn: Connection, session: Session, after: int) -> list[StoredMessage]:
    return messages.following(conn, session.session_id, after_seq=after, limit=SLICE)


def _section(stored_message: StoredMessage) -> str:
    message, at = stored_message.message, from_ms(stored_message.at_ms)
    who = {Role.USER: "You", Role.ASSISTANT: "Palyra", Role.TOOL: "Tool"}[message.role]
    text = message.text
    if message.role is Role.TOOL:
        fence = "`" * max(3, _longest_fence(text) + 1)
        text = f"{fence}\n{text}\n{fence}"
    calls = "".join(
        f"\n- calls `{call.tool}` with `{_encode.encode(call.arguments).decode()}`" for call in message.calls
    )
    return f"\n## {who}, {at:%Y-%m-%d %H:%M:%S} UTC\n\n{text}{calls}\n"


def _longest_fence(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest
