"""What can be done with a session: resolve, reset, rename, archive, clean up."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from palyra.core.clock import Clock, to_ms
from palyra.core.errors import Conflict, NotFound
from palyra.core.events import (
    CancelRequested,
    RunCancelled,
    SessionArchived,
    SessionRenamed,
    SessionReset,
    SessionUnarchived,
)
from palyra.core.ids import IdSource, PrincipalId, RunId, SessionId, parse_ulid
from palyra.core.marker import without_secrets
from palyra.core.message import clean_text
from palyra.core.session import (
    MAX_KEY_CHARS,
    MAX_LABEL_CHARS,
    Session,
    SessionNameInvalid,
    SessionRef,
    new_session,
)
from palyra.journal import runs, sessions
from palyra.journal.engine import Connection, Engine
from palyra.runs.book import Book
from palyra.runs.replay import replay

MAX_TITLE_CHARS = 120


class SessionNotFound(NotFound):
    """There is no such session among yours. `palyra sessions` lists them."""


class SessionMismatch(Conflict):
    """The id, key and label given name different sessions. Give one of them."""


class SessionPutAway(Conflict):
    """The session is archived. Unarchive it first, or start another."""


class SessionBusy(Conflict):
    """A run is active in this session. Cancel it or wait for its end, then try again."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A session that was found or made, and the book of its tape."""

    session: Session
    created: bool
    book: Book


def resolve(
    conn: Connection,
    principal: PrincipalId,
    *,
    ref: SessionRef,
    ids: IdSource,
    at: datetime,
) -> Resolved:
    """Find the session that `ref` names, or make it, and hold its tape; reset it if asked."""
    _check_names(ref)
    found = _find(conn, principal, ref)
    if found is None and ref.require_existing:
        raise SessionNotFound
    if found is None:
        made = _make(conn, principal, ref=ref, ids=ids, at=at)
        # Somebody else may have made it in the same moment.
        if made is not None:
            return made
        found = _find(conn, principal, ref)
        if found is None:
            # The key is new, but the label is another session's.
            raise SessionMismatch
    book = Book.open(conn, found.session_id, ids=ids)
    if ref.reset:
        _reset(conn, book, found, at=at)
    # Only now that its tape is held does the session stand still: it may have been archived since it was found.
    return Resolved(sessions.get(conn, found.session_id, principal) or found, False, book)


def _check_names(ref: SessionRef) -> None:
    for name, value, most in (("key", ref.key, MAX_KEY_CHARS), ("label", ref.label, MAX_LABEL_CHARS)):
        if value is not None:
            clean_text(value, what=name)
            if not value.strip() or len(value) > most:
                raise SessionNameInvalid(f"A session's {name} has 1 to {most} characters; this one has {len(value)}.")


def _find(conn: Connection, principal: PrincipalId, ref: SessionRef) -> Session | None:
    """Return the session named, None if it may be made. An id is never chosen by a caller: unknown is unknown."""
    if ref.session_id is not None:
        found = sessions.get(conn, SessionId(parse_ulid(ref.session_id, "session id")), principal)
        if found is None:
            raise SessionNotFound
    elif ref.key is not None:
        found = sessions.by_key(conn, ref.key, principal)
    elif ref.label is not None:
        found = sessions.by_label(conn, ref.label, principal)
    else:
        return None
    if found is not None and (ref.key not in (None, found.key) or ref.label not in (None, found.label)):
        raise SessionMismatch
    return found


def _make(
    conn: Connection,
    principal: PrincipalId,
    *,
    ref: SessionRef,
    ids: IdSource,
    at: datetime,
) -> Resolved | None:
    session = new_session(SessionId(ids.new()), principal, at=at, key=ref.key, label=ref.label)
    book = Book.create(conn, session, parent=None, ids=ids)
    return Resolved(session, True, book) if book is not None else None


def _reset(conn: Connection, book: Book, session: Session, *, at: datetime) -> None:
    if runs.open_in(conn, session.session_id):
        raise SessionBusy
    book.note(SessionReset(at=at, actor=session.principal))
    sessions.set_reset(conn, session.session_id, at=at, seq=book.seq)


class Sessions:
    """The doors to sessions, for whoever speaks for a principal."""

    def __init__(self, engine: Engine, *, clock: Clock, ids: IdSource) -> None:
        self._engine = engine
        self._clock = clock
        self._ids = ids

    async def resolve(self, principal: PrincipalId, ref: SessionRef) -> tuple[Session, bool]:
        """Find or make a session; say whether it was made."""
        at = self._clock.now()

        def unit(conn: Connection) -> tuple[Session, bool]:
            resolved = resolve(conn, principal, ref=ref, ids=self._ids, at=at)
            resolved.book.close()
            return resolved.session, resolved.created

        return await self._engine.write(unit)

    async def page(
        self, principal: PrincipalId, *, archived: bool, before: tuple[int, str] | None, limit: int
    ) -> list[Session]:
        """Return the principal's own conversations, the latest first."""
        now_ms = to_ms(self._clock.now())
        return await self._engine.read(
            lambda conn: sessions.page(conn, principal, archived=archived, before=before, limit=limit, now_ms=now_ms)
        )

    async def rename(self, principal: PrincipalId, session_id: str, title: str) -> Session:
        """Give the session a title of the person's choice."""
        title = clean_text(title, what="title").strip()
        if not title or len(title) > MAX_TITLE_CHARS:
            raise SessionNameInvalid(f"A title has 1 to {MAX_TITLE_CHARS} characters; this one has {len(title)}.")
        title = without_secrets(title)

        def change(conn: Connection, book: Book, session: Session, at: datetime) -> None:
            book.note(SessionRenamed(at=at, actor=principal, title=title))
            sessions.set_title(conn, session.session_id, title, at=at)

        return await self._change(principal, session_id, change)

    async def reset(self, principal: PrincipalId, session_id: str) -> Session:
        """Set a boundary: what was said before is no longer context."""
        return await self._change(
            principal, session_id, lambda conn, book, session, at: _reset(conn, book, session, at=at)
        )

    async def archive(self, principal: PrincipalId, session_id: str) -> Session:
        """Put the session away; its key stays its own."""

        def change(conn: Connection, book: Book, session: Session, at: datetime) -> None:
            if runs.open_in(conn, session.session_id):
                raise SessionBusy
            if session.archived_at is None:
                book.note(SessionArchived(at=at, actor=principal))
                sessions.set_archived(conn, session.session_id, at=at, archived=True, free_key=False)

        return await self._change(principal, session_id, change)

    async def unarchive(self, principal: PrincipalId, session_id: str) -> Session:
        """Take the session back into the list."""

        def change(conn: Connection, book: Book, session: Session, at: datetime) -> None:
            if session.archived_at is None:
                return
            if session.label is not None and sessions.by_label(conn, session.label, principal) is not None:
                raise SessionMismatch(
                    f"Another session has the label {session.label!r} by now. Archive that one first."
                )
            book.note(SessionUnarchived(at=at, actor=principal))
            sessions.set_archived(conn, session.session_id, at=at, archived=False, free_key=False)

        return await self._change(principal, session_id, change)

    async def cleanup(self, principal: PrincipalId, session_id: str) -> Session:
        """Cancel what is active or queued, archive the session, and free its key."""

        def change(conn: Connection, book: Book, session: Session, at: datetime) -> None:
            # The queue first, so that ending the active run starts nothing.
            for run_id, active in sorted(runs.open_in(conn, session.session_id), key=lambda item: item[1]):
                _cancel(conn, book, run_id, principal=principal, at=at, active=active)
            if session.archived_at is None or session.key is not None:
                book.note(SessionArchived(at=at, actor=principal, freed_key=session.key))
                sessions.set_archived(conn, session.session_id, at=at, archived=True, free_key=True)

        return await self._change(principal, session_id, change)

    async def _change(
        self,
        principal: PrincipalId,
        session_id: str,
        change: Callable[[Connection, Book, Session, datetime], None],
    ) -> Session:
        wanted = SessionId(parse_ulid(session_id, "session id"))
        at = self._clock.now()

        def unit(conn: Connection) -> Session:
            if sessions.get(conn, wanted, principal) is None:
                raise SessionNotFound
            book = Book.open(conn, wanted, ids=self._ids)
            # Looked at again now that the tape is held: it may have gone to the archive.
            session = sessions.get(conn, wanted, principal)
            if session is None:
                raise SessionNotFound
            change(conn, book, session, at)
            book.close()
            changed = sessions.get(conn, wanted, principal)
            assert changed is not None
            return changed

        return await self._engine.write(unit)


def _cancel(conn: Connection, book: Book, run_id: RunId, *, principal: PrincipalId, at: datetime, active: bool) -> None:
    reason = "the session was cleaned up"
    state = book.add(replay(conn, run_id), CancelRequested(at=at, actor=principal, reason=reason))
    if not active or not runs.is_carried(conn, run_id, now_ms=to_ms(at)):
        book.add(state, RunCancelled(at=at, actor=principal, reason=reason))
