"""Full-text search over messages: the one store with two query builders."""

import re
from dataclasses import dataclass
from unicodedata import normalize

from palyra.core.errors import SearchQueryEmpty
from palyra.core.ids import PrincipalId, SessionId
from palyra.journal.engines.base import Connection

MAX_WORDS = 16

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class MessageHit:
    """A message that was found."""

    session_id: SessionId
    tape_seq: int
    text: str


def add(conn: Connection, session_id: SessionId, tape_seq: int, *, principal: PrincipalId, text: str) -> None:
    """Add a message to the search index."""
    if conn.dialect.name == "postgres":
        # PostgreSQL's own parser would take a path or an address for one word, which only the full text would find.
        text = " ".join(word.lower() for word in _words(text))
    conn.execute(
        "INSERT INTO message_words (session_id, tape_seq, principal, text)"
        " VALUES (:session_id, :tape_seq, :principal, :text)",
        {"session_id": session_id, "tape_seq": tape_seq, "principal": principal, "text": text},
    )


def find(conn: Connection, principal: PrincipalId, query: str, *, limit: int, offset: int = 0) -> list[MessageHit]:
    """Return the principal's messages with every word of the query (the last may be a prefix), best first.

    The first `offset` of them are left out.
    """
    words = _words(query)[:MAX_WORDS]
    if not words:
        raise SearchQueryEmpty
    if conn.dialect.name == "sqlite":
        # Each word is quoted, so that nothing in it is read as an operator of the query language.
        match = " ".join(f'"{word}"' for word in words) + "*"
        sql = (
            "SELECT session_id, tape_seq, text FROM message_words WHERE message_words MATCH :match"
            " AND principal = :principal ORDER BY rank, rowid LIMIT :limit OFFSET :offset"
        )
    else:
        match = " & ".join(f"'{word.lower()}'" for word in words) + ":*"
        sql = (
            "SELECT m.session_id, m.tape_seq, m.text FROM to_tsquery('simple', :match) AS asked"
            " JOIN message_words w ON w.words @@ asked"
            " JOIN messages m ON m.session_id = w.session_id AND m.tape_seq = w.tape_seq"
            " WHERE w.principal = :principal"
            " ORDER BY ts_rank(w.words, asked) DESC, m.session_id, m.tape_seq LIMIT :limit OFFSET :offset"
        )
    rows = conn.fetch(sql, {"match": match, "principal": principal, "limit": limit, "offset": offset})
    return [MessageHit(SessionId(row[0]), row[1], row[2]) for row in rows]


def _words(text: str) -> list[str]:
    # Composed; otherwise an accent that is a separate character would split its word.
    return _WORD.findall(normalize("NFC", text))
