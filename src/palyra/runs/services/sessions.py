"""Sessions: resolve, reset, rename, archive, clean up."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from palyra.core.clock import Clock, to_ms
from palyra.core.errors import Conflict
from palyra.core.events import CancelRequested, RunCancelled
from palyra.core.ids import IdSource, PrincipalId, RunId, SessionId, parse_ulid
from palyra.core.message import clean_text
from palyra.core.session import (
    MAX_KEY_CHARS,
    MAX_LABEL_CHARS,
    Session,
    SessionNameInvalid,
    SessionNotFound,
    SessionRef,
    new_session,
)
from palyra.core.session_events import SessionArchived, SessionRenamed, SessionReset, SessionUnarchived
from palyra.core.text.secret_markers import without_secrets
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import runs, sessions
from palyra.runs.recording.replay import replay
from palyra.runs.recording.session_writer import SessionWriter

MAX_TITLE_CHARS = 120


class SessionReferenceConflict(Conflict):
    """The id, key and label name different sessions. Give only one of them."""


class SessionBusy(Conflict):
    """The session has an active run. Cancel it or wait for its end, then try again."""


@dataclass(frozen=True, slots=True)
class ResolvedSession:
    """A session that was found or created, and the writer of its tape."""

    session: Session
    created: bool
    writer: SessionWriter


def resolve(
    conn: Connection,
    principal: PrincipalId,
    *,
    ref: SessionRef,
    ids: IdSource,
    at: datetime,
) -> ResolvedSession:
    """Find the session that `ref` names, or create it, and lock its tape; reset it if requested."""
    _check_names(ref)
    session = _find(conn, principal, ref)
    if session is None and ref.require_existing:
        raise SessionNotFound
    if session is None:
        made = _make(conn, principal, ref=ref, ids=ids, at=at)
        # Another request may have created it at the same time.
        if made is not None:
            return made
        session = _find(conn, principal, ref)
        if session is None:
            # The key is new, but the label is another session's.
            raise SessionReferenceConflict
    writer = SessionWriter.open(conn, session.session_id, ids=ids)
    if ref.reset:
        _reset(conn, writer, session, at=at)
    # Only with its tape locked is the session stable: it may have been archived since it was found.
    return ResolvedSession(sessions.get(conn, session.session_id, principal) or session, False, writer)


def _check_names(ref: SessionRef) -> None:
    for name, value, maximum in (("key", ref.key, MAX_KEY_CHARS), ("label", ref.label, MAX_LABEL_CHARS)):
        if value is not None:
            clean_text(value, what=name)
            if not value.strip() or len(value) > maximum:
                raise SessionNameInvalid(
                    f"The session's {name} must have 1 to {maximum} characters; this one has {len(value)}."
                )


def _find(conn: Connection, principal: PrincipalId, ref: SessionRef) -> Session | None:
    """Return the session named, None if it may be created. A caller never chooses an id: an unknown id is an error."""
    if ref.session_id is not None:
        session = sessions.get(conn, SessionId(parse_ulid(ref.session_id, "session id")), principal)
        if session is None:
            raise SessionNotFound
    elif ref.key is not None:
        session = sessions.by_key(conn, ref.key, principal)
    elif ref.label is not None:
        session = sessions.by_label(conn, ref.label, principal)
    else:
        return None
    if session is not None and (ref.key not in (None, session.key) or ref.label not in (None, session.label)):
        raise SessionReferenceConflict
    return session


def _make(
    conn: Connection,
    principal: PrincipalId,
    *,
    ref: SessionRef,
    ids: IdSource,
    at: datetime,
) -> ResolvedSession | None:
    session = new_session(SessionId(ids.new()), principal, at=at, key=ref.key, label=ref.label)
    writer = SessionWriter.create(conn, session, parent=None, ids=ids)
    return ResolvedSession(session, True, writer) if writer is not None else None


def _reset(conn: Connection, writer: SessionWriter, session: Session, *, at: datetime) -> None:
    if runs.open_in(conn, session.session_id):
        raise SessionBusy
    writer.note(SessionReset(at=at, actor=session.principal))


class SessionService:
    """Manages a principal's sessions."""

    def __init__(self, engine: Engine, *, clock: Clock, ids: IdSource) -> None:
        self._engine = engine
        self._clock = clock
        self._ids = ids

    async def resolve(self, principal: PrincipalId, ref: SessionRef) -> tuple[Session, bool]:
        """Find or create a session; say whether it was created."""
        at = self._clock.now()

        def unit(conn: Connection) -> tuple[Session, bool]:
            resolved = resolve(conn, principal, ref=ref, ids=self._ids, at=at)
            resolved.writer.close()
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
            raise SessionNameInvalid(
                f"The title must have 1 to {MAX_TITLE_CHARS} characters; this one has {len(title)}."
            )
        title = without_secrets(title)

        def change(conn: Connection, writer: SessionWriter, session: Session, at: datetime) -> None:
            writer.note(SessionRenamed(at=at, actor=principal, title=title))

        return await self._change(principal, session_id, change)

    async def reset(self, principal: PrincipalId, session_id: str) -> Session:
        """Set a boundary: what was said before is no longer context."""
        return await self._change(
            principal, session_id, lambda conn, writer, session, at: _reset(conn, writer, session, at=at)
        )

    async def archive(self, principal: PrincipalId, session_id: str) -> Session:
        """Archive the session; it keeps its key."""

        def change(conn: Connection, writer: SessionWriter, session: Session, at: datetime) -> None:
            if runs.open_in(conn, session.session_id):
                raise SessionBusy
            if session.archived_at is None:
                writer.note(SessionArchived(at=at, actor=principal))

        return await self._change(principal, session_id, change)

    async def unarchive(self, principal: PrincipalId, session_id: str) -> Session:
        """Take the session out of the archive."""

        def change(conn: Connection, writer: SessionWriter, session: Session, at: datetime) -> None:
            if session.archived_at is None:
                return
            if session.label is not None and sessions.by_label(conn, session.label, principal) is not None:
                raise SessionReferenceConflict(
                    f"Another session now has the label {session.label!r}. Archive that one first."
                )
            writer.note(SessionUnarchived(at=at, actor=principal))

        return await self._change(principal, session_id, change)

    async def cleanup(self, principal: PrincipalId, session_id: str) -> Session:
        """Cancel what is active or queued, archive the session, and free its key."""

        def change(conn: Connection, writer: SessionWriter, session: Session, at: datetime) -> None:
            # The queue first, so that the end of the active run starts nothing.
            for run_id, active in sorted(runs.open_in(conn, session.session_id), key=lambda item: item[1]):
                _cancel(conn, writer, run_id, principal=principal, at=at, active=active)
            if session.archived_at is None or session.key is not None:
                writer.note(SessionArchived(at=at, actor=principal, freed_key=session.key))

        return await self._change(principal, session_id, change)

    async def _change(
        self,
        principal: PrincipalId,
        session_id: str,
        change: Callable[[Connection, SessionWriter, Session, datetime], None],
    ) -> Session:
        requested_session_id = SessionId(parse_ulid(session_id, "session id"))
        at = self._clock.now()

        def unit(conn: Connection) -> Session:
            if sessions.get(conn, requested_session_id, principal) is None:
                raise SessionNotFound
            writer = SessionWriter.open(conn, requested_session_id, ids=self._ids)
            # Checked again now that the tape is locked: it may have been archived.
            session = sessions.get(conn, requested_session_id, principal)
            if session is None:
                raise SessionNotFound
            change(conn, writer, session, at)
            writer.close()
            changed = sessions.get(conn, requested_session_id, principal)
            assert changed is not None
            return changed

        return await self._engine.write(unit)


def _cancel(
    conn: Connection, writer: SessionWriter, run_id: RunId, *, principal: PrincipalId, at: datetime, active: bool
) -> None:
    reason = "the session was cleaned up"
    state = writer.add(replay(conn, run_id), CancelRequested(at=at, actor=principal, reason=reason))
    if not active or not runs.is_leased(conn, run_id, now_ms=to_ms(at)):
        writer.add(state, RunCancelled(at=at, actor=principal, reason=reason))
