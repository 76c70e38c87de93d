"""Messages as rows: the conversation, one finished message each, from which every prompt is made.

A projection of the tape: it holds nothing that the tape does not, and is read newest first, so that a turn costs the
same after ten thousand others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from palyra.core.ids import PrincipalId, RunId, SessionId
from palyra.core.prompt import Image, Message, Reasoning, Role, estimate_tokens
from palyra.core.tokens import most_tokens
from palyra.core.tool import ToolCall
from palyra.journal import search
from palyra.journal.engine import Connection, Row


class _Beside(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a message has beside its text, where that is more than calls."""

    calls: tuple[ToolCall, ...] = ()
    images: tuple[Image, ...] = ()
    reasoning: tuple[Reasoning, ...] = ()
    given: bool = False


_encode = msgspec.json.Encoder()
_beside: msgspec.json.Decoder[tuple[ToolCall, ...] | _Beside] = msgspec.json.Decoder(tuple[ToolCall, ...] | _Beside)

_COLUMNS = "tape_seq, run_id, role, text, calls, call_id, tokens, labels, at_ms"

SLICE = 64
MESSAGE_TOKENS = 4
"""What a message costs beside its text: role and separators."""
IMAGE_TOKENS = 1600
"""What a picture costs: what the makers say of one of a million points, beyond which they scale it down."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A message and where on the tape it stands."""

    tape_seq: int
    run_id: RunId
    message: Message
    tokens: int
    labels: tuple[str, ...]
    at_ms: int


def tokens_of(message: Message) -> int:
    """Guess what the message takes in a prompt."""
    return _tokens(message, estimate_tokens)


def most_tokens_of(message: Message) -> int:
    """Return what the message takes in a prompt at the most."""
    return _tokens(message, most_tokens)


def _tokens(message: Message, count: Callable[[str], int]) -> int:
    tokens = count(message.text) + MESSAGE_TOKENS + IMAGE_TOKENS * len(message.images)
    if message.calls:
        tokens += count(_encode.encode(message.calls).decode())
    if message.reasoning:
        tokens += count(_encode.encode(message.reasoning).decode())
    return tokens


def insert(conn: Connection, session_id: SessionId, principal: PrincipalId, *, kept: Sequence[Kept]) -> None:
    """Add messages to the conversation and to its full-text index."""
    put(conn, session_id, principal, kept=kept)
    for item in kept:
        if item.message.role is not Role.TOOL and item.message.text:
            search.add(conn, session_id, item.tape_seq, principal=principal, text=item.message.text)


def put(conn: Connection, session_id: SessionId, principal: PrincipalId, *, kept: Sequence[Kept]) -> None:
    """Add messages to the conversation alone."""
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
            for item in kept
        ],
    )


def newest(conn: Connection, session_id: SessionId, *, after_seq: int, tokens: int) -> list[Kept]:
    """Return the latest messages behind a boundary that fit into so many tokens, oldest first.

    The newest message is always there, however long it is.
    """
    found: list[Kept] = []
    room = tokens
    before: int | None = None
    while True:
        page = _page(conn, session_id, after_seq=after_seq, before=before, limit=SLICE)
        for kept in page:
            room -= kept.tokens
            if room < 0 and found:
                return found[::-1]
            found.append(kept)
        if len(page) < SLICE:
            return found[::-1]
        before = page[-1].tape_seq


def transcript(conn: Connection, session_id: SessionId, *, before: int | None, limit: int) -> list[Kept]:
    """Return a session's messages, latest first, from before a position."""
    return _page(conn, session_id, after_seq=0, before=before, limit=limit)


def following(conn: Connection, session_id: SessionId, *, after_seq: int, limit: int) -> list[Kept]:
    """Return a session's messages from a position on, oldest first."""
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM messages WHERE session_id = :session_id AND tape_seq > :after_seq"
        " ORDER BY tape_seq LIMIT :limit",
        {"session_id": session_id, "after_seq": after_seq, "limit": limit},
    )
    return [_kept(row) for row in rows]


def owned(conn: Connection, session_id: SessionId, *, after_seq: int, limit: int) -> list[tuple[PrincipalId, Kept]]:
    """Return a session's messages from a position on, oldest first, each with whose it is."""
    rows = conn.fetch(
        f"SELECT {_COLUMNS}, principal FROM messages WHERE session_id = :session_id AND tape_seq > :after_seq"
        " ORDER BY tape_seq LIMIT :limit",
        {"session_id": session_id, "after_seq": after_seq, "limit": limit},
    )
    return [(PrincipalId(row[9]), _kept(row)) for row in rows]


def answer_of(conn: Connection, session_id: SessionId, run_id: RunId) -> str:
    """Return the last thing that the assistant said in a run, empty if it said nothing."""
    row = conn.fetch_one(
        "SELECT text FROM messages WHERE session_id = :session_id AND run_id = :run_id AND role = 'assistant'"
        " ORDER BY tape_seq DESC LIMIT 1",
        {"session_id": session_id, "run_id": run_id},
    )
    return row[0] if row else ""


def first_input(conn: Connection, session_id: SessionId) -> str | None:
    """Return the first thing that a person said in the session."""
    row = conn.fetch_one(
        "SELECT text FROM messages WHERE session_id = :session_id AND role = 'user' ORDER BY tape_seq LIMIT 1",
        {"session_id": session_id},
    )
    return row[0] if row else None


def _page(conn: Connection, session_id: SessionId, *, after_seq: int, before: int | None, limit: int) -> list[Kept]:
    params: dict[str, object] = {"session_id": session_id, "after_seq": after_seq, "limit": limit}
    place = ""
    if before is not None:
        place = " AND tape_seq < :before"
        params["before"] = before
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM messages"
        f" WHERE session_id = :session_id AND tape_seq > :after_seq{place} ORDER BY tape_seq DESC LIMIT :limit",
        params,
    )
    return [_kept(row) for row in rows]


def _beside_text(message: Message) -> str:
    if not message.images and not message.reasoning and not message.given:
        return _encode.encode(message.calls).decode()
    beside = _Beside(calls=message.calls, images=message.images, reasoning=message.reasoning, given=message.given)
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
        given=beside.given,
    )


def _kept(row: Row) -> Kept:
    return Kept(
        tape_seq=row[0],
        run_id=RunId(row[1]),
        message=_message(row),
        tokens=row[6],
        labels=tuple(row[7].split(",")) if row[7] else (),
        at_ms=row[8],
    )
