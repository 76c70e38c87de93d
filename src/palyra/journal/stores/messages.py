"""Messages as rows: the conversation, one complete message per row, from which every prompt is built.

A projection of the tape: it holds nothing that the tape does not, and is read newest first, so that a turn costs the
same after ten thousand others.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct, field

from palyra.core.ids import PrincipalId, RunId, SessionId
from palyra.core.model.prompt import Image, Message, Reasoning, Role
from palyra.core.projection.changes import MessageAdded, StoredMessage
from palyra.core.tool import ToolCall
from palyra.journal.engines.base import Connection, Row
from palyra.journal.stores import search


class _MessageExtras(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parts of a message other than its text, if it has more than calls."""

    calls: tuple[ToolCall, ...] = ()
    images: tuple[Image, ...] = ()
    reasoning: tuple[Reasoning, ...] = ()
    attached: bool = field(default=False, name="given")


_encode = msgspec.json.Encoder()
_beside: msgspec.json.Decoder[tuple[ToolCall, ...] | _MessageExtras] = msgspec.json.Decoder(
    tuple[ToolCall, ...] | _MessageExtras
)

_COLUMNS = "tape_seq, run_id, role, text, calls, call_id, tokens, labels, at_ms"

SLICE = 64


def insert(
    conn: Connection, session_id: SessionId, principal: PrincipalId, *, messages: Sequence[StoredMessage]
) -> None:
    """Add messages to the conversation and to its full-text index."""
    put(conn, session_id, principal, messages=messages)
    for item in messages:
        if item.message.role is not Role.TOOL and item.message.text:
            search.add(conn, session_id, item.tape_seq, principal=principal, text=item.message.text)


def put(conn: Connection, session_id: SessionId, principal: PrincipalId, *, messages: Sequence[StoredMessage]) -> None:
    """Add messages to the conversation only, not to the index."""
    conn.execute_many(
        "INSERT INTO messages (session_id, tape_seq, run_id, principal, role, text, calls, call_id, tokens, labels,"
        " at_ms) VALUES (:session_id, :tape_seq, :run_id, :principal, :role, :text, :calls, :call_id, :tokens,"
        " :labels, :at_ms)",
        [
            {
                "session_id": session_id,
                "tape_seq": item.tape_seq,
                "run_id": item.run_id,
                "principal": principal,
                "role": item.message.role.value,
                "text": item.message.text,
                "calls": _beside_text(item.message),
                "call_id": item.message.call_id,
                "tokens": item.tokens,
                "labels": ",".join(item.labels),
                "at_ms": item.at_ms,
            }
            for item in messages
        ],
    )


def remove(conn: Connection, session_id: SessionId) -> None:
    """Delete the messages of a session, for a rebuild."""
    conn.execute("DELETE FROM messages WHERE session_id = :session_id", {"session_id": session_id})


def newest(conn: Connection, session_id: SessionId, *, after_seq: int, tokens: int) -> list[StoredMessage]:
    """Return the latest messages after a boundary that fit into so many tokens, oldest first.

    The newest message is always included, however long it is.
    """
    messages: list[StoredMessage] = []
    room = tokens
    before: int | None = None
    while True:
        page = _page(conn, session_id, after_seq=after_seq, before=before, limit=SLICE)
        for message in page:
            room -= message.tokens
            if room < 0 and messages:
                return messages[::-1]
            messages.append(message)
        if len(page) < SLICE:
            return messages[::-1]
        before = page[-1].tape_seq


def transcript(conn: Connection, session_id: SessionId, *, before: int | None, limit: int) -> list[StoredMessage]:
    """Return a session's messages, latest first, from before a position."""
    return _page(conn, session_id, after_seq=0, before=before, limit=limit)


def following(conn: Connection, session_id: SessionId, *, after_seq: int, limit: int) -> list[StoredMessage]:
    """Return a session's messages from a position on, oldest first."""
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM messages WHERE session_id = :session_id AND tape_seq > :after_seq"
        " ORDER BY tape_seq LIMIT :limit",
        {"session_id": session_id, "after_seq": after_seq, "limit": limit},
    )
    return [_stored_message(row) for row in rows]


def owned(conn: Connection, session_id: SessionId, *, after_seq: int, limit: int) -> list[MessageAdded]:
    """Return a session's messages from a position on, oldest first, each with its principal."""
    rows = conn.fetch(
        f"SELECT {_COLUMNS}, principal FROM messages WHERE session_id = :session_id AND tape_seq > :after_seq"
        " ORDER BY tape_seq LIMIT :limit",
        {"session_id": session_id, "after_seq": after_seq, "limit": limit},
    )
    return [MessageAdded(PrincipalId(row[9]), _stored_message(row)) for row in rows]


def answer_of(conn: Connection, session_id: SessionId, run_id: RunId) -> str:
    """Return the last text of the assistant in a run, empty if there is none."""
    row = conn.fetch_one(
        "SELECT text FROM messages WHERE session_id = :session_id AND run_id = :run_id AND role = 'assistant'"
        " ORDER BY tape_seq DESC LIMIT 1",
        {"session_id": session_id, "run_id": run_id},
    )
    return row[0] if row else ""


def first_input(conn: Connection, session_id: SessionId) -> str | None:
    """Return the first message of a person in the session."""
    row = conn.fetch_one(
        "SELECT text FROM messages WHERE session_id = :session_id AND role = 'user' ORDER BY tape_seq LIMIT 1",
        {"session_id": session_id},
    )
    return row[0] if row else None


def _page(
    conn: Connection, session_id: SessionId, *, after_seq: int, before: int | None, limit: int
) -> list[StoredMessage]:
    params: dict[str, object] = {"session_id": session_id, "after_seq": after_seq, "limit": limit}
    location = ""
    if before is not None:
        location = " AND tape_seq < :before"
        params["before"] = before
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM messages"
        f" WHERE session_id = :session_id AND tape_seq > :after_seq{location} ORDER BY tape_seq DESC LIMIT :limit",
        params,
    )
    return [_stored_message(row) for row in rows]


def _beside_text(message: Message) -> str:
    if not message.images and not message.reasoning and not message.attached:
        return _encode.encode(message.calls).decode()
    beside = _MessageExtras(
        calls=message.calls, images=message.images, reasoning=message.reasoning, attached=message.attached
    )
    return _encode.encode(beside).decode()


def _message(row: Row) -> Message:
    role, text, call_id, beside = Role(row[2]), row[3], row[5], _beside.decode(row[4])
    if isinstance(beside, tuple):
        return Message(role=role, text=text, calls=beside, call_id=call_id)
    return Message(
        role=role,
        text=text,
        calls=beside.calls,
        call_id=call_id,
        images=beside.images,
        reasoning=beside.reasoning,
        attached=beside.attached,
    )


def _stored_message(row: Row) -> StoredMessage:
    return StoredMessage(
        tape_seq=row[0],
        run_id=RunId(row[1]),
        message=_message(row),
        tokens=row[6],
        labels=tuple(row[7].split(",")) if row[7] else (),
        at_ms=row[8],
    )
