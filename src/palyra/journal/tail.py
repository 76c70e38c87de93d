"""Streams new entries to the followers of a session, in sequence and without gaps.

The tail keeps the last entries of each followed session as they are committed. A follower takes them from there, and
reads the database only to catch up; so a thousand followers cost no reads while none falls behind. A lost notification
only costs time: every few seconds the ends of all followed tapes are read in one query.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec import structs

from palyra.core.errors import Unavailable
from palyra.core.events import Entry
from palyra.core.ids import RunId, SessionId
from palyra.journal import tape
from palyra.journal.engines.base import Connection, Engine, Fact

RECENT_ENTRIES = 256
RECENT = 1024
REMEMBERED_BYTES = 4096
RECHECK_SECONDS = 2.0


@dataclass(slots=True, eq=False)
class _Watched:
    entries: deque[Entry] = field(default_factory=lambda: deque(maxlen=RECENT_ENTRIES))
    """Consecutive entries without a gap, newest last."""
    end: int = 0
    """The highest sequence number that is known to be committed."""
    followers: set["TapeReader"] = field(default_factory=set)


class Tail:
    """See the module."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watched: dict[SessionId, _Watched] = {}
        self._recent: deque[Entry] = deque(maxlen=RECENT)
        engine.subscribe(self._notice)

    def follow(self, session_id: SessionId, *, after_seq: int, run_id: RunId | None = None) -> "TapeReader":
        """Start to follow a session, or one run of it, from a position of the session's tape. Close it afterwards."""
        watched = self._watched.get(session_id)
        if watched is None:
            watched = self._watched[session_id] = self._remembered(session_id, after_seq)
        follower = TapeReader(self._engine, self, session_id, watched, after_seq=after_seq, run_id=run_id)
        watched.followers.add(follower)
        return follower

    def _remembered(self, session_id: SessionId, after_seq: int) -> _Watched:
        """Start with the latest commits: a client that follows what it has just sent needs no database read."""
        watched = _Watched()
        for entry in reversed(self._recent):
            if entry.session_id == session_id:
                watched.end = max(watched.end, entry.tape_seq)
                if not entry.content or (watched.entries and entry.tape_seq != watched.entries[0].tape_seq - 1):
                    break
                watched.entries.appendleft(entry)
                if entry.tape_seq <= after_seq + 1:
                    break
        return watched

    @property
    def followed(self) -> int:
        """How many sessions have followers."""
        return len(self._watched)

    def is_followed(self, session_id: SessionId) -> bool:
        """Return whether the session has followers."""
        return session_id in self._watched

    def leave(self, session_id: SessionId, follower: "TapeReader") -> None:
        """Stop following."""
        watched = self._watched.get(session_id)
        if watched is not None:
            watched.followers.discard(follower)
            if not watched.followers:
                del self._watched[session_id]

    async def recheck(self) -> None:
        """Find entries whose notification was lost, until the daemon stops."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            # A journal that cannot be read now is read the next time.
            with suppress(Unavailable):
                await self._poll()

    async def _poll(self) -> None:
        session_ids = list(self._watched)
        for start in range(0, len(session_ids), RECENT_ENTRIES):
            part = session_ids[start : start + RECENT_ENTRIES]
            ends = await self._engine.read(lambda conn, part=part: tape.ends(conn, part))  # type: ignore[misc]
            for session_id, end in ends.items():
                self._reach(session_id, end)

    def close(self) -> None:
        """End every follower: the daemon is stopping."""
        for watched in list(self._watched.values()):
            for follower in list(watched.followers):
                follower.close()

    def _notice(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            if not isinstance(fact, Entry):
                continue
            # Of a long entry only its position is kept.
            self._recent.append(fact if len(fact.content) <= REMEMBERED_BYTES else structs.replace(fact, content=""))
            watched = self._watched.get(fact.session_id)
            if watched is None:
                continue
            if watched.entries and fact.tape_seq != watched.entries[-1].tape_seq + 1:
                if fact.tape_seq <= watched.entries[-1].tape_seq:
                    continue
                watched.entries.clear()  # a gap: followers catch up from the database
            watched.entries.append(fact)
            self._reach(fact.session_id, fact.tape_seq)

    def _reach(self, session_id: SessionId, end: int) -> None:
        watched = self._watched.get(session_id)
        if watched is not None and end > watched.end:
            watched.end = end
            for follower in watched.followers:
                follower.wake()


class TapeReader:
    """One reader of one tape."""

    def __init__(
        self,
        engine: Engine,
        tail: Tail,
        session_id: SessionId,
        watched: _Watched,
        *,
        after_seq: int,
        run_id: RunId | None,
    ) -> None:
        self._engine = engine
        self._tail = tail
        self._session_id = session_id
        self._watched = watched
        self._run_id = run_id
        self._fresh = asyncio.Event()
        self._closed = False
        self._caught_up = bool(watched.entries) and watched.entries[0].tape_seq <= after_seq + 1
        self.after_seq = after_seq
        """Everything up to here has been returned."""

    async def next(self, *, seconds: float) -> list[Entry]:
        """Return the next entries, at least one; none after the timeout or when the reader is closed."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not self._closed:
            self._fresh.clear()
            entries = self._take() if self._caught_up else await self._catch_up()
            mine = [entry for entry in entries if self._run_id in (None, entry.run_id)]
            if mine:
                return mine
            if not self._caught_up or self.after_seq < self._watched.end:
                self._caught_up = False
                continue
            try:
                async with asyncio.timeout_at(deadline):
                    await self._fresh.wait()
            except TimeoutError:
                return []
        return []

    @property
    def closed(self) -> bool:
        """Whether no more entries will follow."""
        return self._closed

    def wake(self) -> None:
        """Notify the follower that there may be new entries."""
        self._fresh.set()

    def close(self) -> None:
        """Stop; a waiting `next` returns at once."""
        if not self._closed:
            self._closed = True
            self._tail.leave(self._session_id, self)
            self._fresh.set()

    def _take(self) -> list[Entry]:
        """Return the entries that the tail has kept after our position, if they follow it without a gap."""
        stored_entries = self._watched.entries
        if not stored_entries or stored_entries[0].tape_seq > self.after_seq + 1:
            return []
        entries: list[Entry] = []
        for entry in reversed(stored_entries):
            if entry.tape_seq <= self.after_seq:
                break
            entries.append(entry)
        if entries:
            self.after_seq = entries[0].tape_seq
        entries.reverse()
        return entries

    async def _catch_up(self) -> list[Entry]:
        entries, self.after_seq, end = await self._engine.read(self._page)
        # Entries committed since that read are in the tail, or have moved the end that it knows.
        self._caught_up = self.after_seq >= max(end, self._watched.end)
        return entries

    def _page(self, conn: Connection) -> tuple[list[Entry], int, int]:
        """Return the next entries, the position up to which there are no others for us, and the tape's end."""
        end = tape.end(conn, self._session_id)
        if self._run_id is None:
            entries = tape.page(conn, self._session_id, after_seq=self.after_seq)
        else:
            entries = tape.page_of_run(conn, self._run_id, after_seq=self.after_seq)
        return entries, entries[-1].tape_seq if entries else max(self.after_seq, end), end
