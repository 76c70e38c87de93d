"""Long reads of the journal of a running daemon: counting, verifying, exporting.

Each has its own connection, snapshot and thread. The engine has few readers, and clients that follow a tape need
them.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from palyra.core.clock import Clock
from palyra.core.errors import Conflict, NotFound, PalyraError
from palyra.core.ids import SessionId
from palyra.exhaustion import ResourcesExhausted, is_exhausted
from palyra.home import Home
from palyra.journal import stats
from palyra.journal.engines.base import Connection, JournalDamaged, JournalError
from palyra.journal.engines.throttled import PAUSE_SECONDS, JournalReadCancelled, ThrottledConnection
from palyra.journal.projection import replay_check
from palyra.journal.proof import anchors, export
from palyra.journal.proof.anchors import Anchor
from palyra.journal.proof.tape_proof import ProofReport
from palyra.journal.snapshot import open_snapshot
from palyra.journal.stats import Stats
from palyra.settings import Settings

PIECE_BYTES = 64 * 1024
KINDS = ("stats", "verify", "background", "export")
BACKGROUND_PAUSE_SECONDS = 0.005

T = TypeVar("T")


class VerifyInProgress(Conflict):
    """The journal is already being verified. Wait until that has finished, then try again."""


class ExportInProgress(Conflict):
    """The journal is already being exported. Wait until that download has finished, then try again."""


class AnchorNotFound(NotFound):
    """The journal has no anchor with this number."""


class JournalInspector:
    """Reads the journal for clients; one read of each kind at a time."""

    def __init__(self, home: Home, settings: Settings, *, clock: Clock) -> None:
        self._home = home
        self._settings = settings
        self._clock = clock
        # One thread per kind: a second read waits, and an export is closed by the thread that reads it.
        self._threads = {kind: ThreadPoolExecutor(1, thread_name_prefix=f"journal-{kind}") for kind in KINDS}
        self._under_way: dict[str, threading.Event] = {}
        self._closed = False

    async def stats(self) -> Stats:
        """Count what the journal holds."""
        return await self._run("stats", threading.Event(), lambda conn: stats.gather(conn, self._home))

    async def verify(self, saved: Anchor | None = None) -> ProofReport:
        """Verify every tape and anchor, and the archive; `saved` is an anchor that was kept elsewhere."""
        with self._alone("verify", VerifyInProgress) as stop, _damage_named():
            return await self._run("verify", stop, lambda conn: replay_check.verify_all(conn, self._home, saved=saved))

    async def verify_in_background(self) -> ProofReport:
        """Do the same more slowly, for the daemon itself."""
        with self._alone("background", VerifyInProgress) as stop, _damage_named():
            return await self._run(
                "background",
                stop,
                lambda conn: replay_check.verify_all(conn, self._home),
                pause_seconds=BACKGROUND_PAUSE_SECONDS,
            )

    async def export(
        self, *, session_id: SessionId | None = None, since: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield an export of one snapshot in pieces; nothing is read ahead of the consumer. Close it afterwards.

        `since` is the number of the anchor after which the export begins. An unknown anchor raises at the first piece.
        """
        with self._alone("export", ExportInProgress) as stop:
            pieces = self._pieces(stop, session_id=session_id, since=since)
            thread = self._threads["export"]
            try:
                while piece := await self._in(thread, lambda: next(pieces, b"")):
                    yield piece
            finally:
                # Not awaited, since we may be cancelled; the thread closes it after its last piece.
                stop.set()
                if not self._closed:
                    thread.submit(pieces.close)

    def close(self) -> None:
        """Cancel every read in progress: the daemon is stopping."""
        self._closed = True
        for stop in self._under_way.values():
            stop.set()
        for thread in self._threads.values():
            thread.shutdown(wait=False)

    @contextmanager
    def _alone(self, kind: str, refusal: type[Conflict]) -> Iterator[threading.Event]:
        if kind in self._under_way:
            raise refusal
        stop = self._under_way[kind] = threading.Event()
        try:
            yield stop
        finally:
            del self._under_way[kind]

    async def _run(
        self,
        kind: str,
        stop: threading.Event,
        look: Callable[[Connection], T],
        *,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> T:
        def work() -> T:
            with open_snapshot(self._home, self._settings) as conn:
                return look(ThrottledConnection(conn, stop, pause_seconds=pause_seconds))

        try:
            return await self._in(self._threads[kind], work)
        finally:
            # If the client has disconnected, the rest is not needed.
            stop.set()

    async def _in(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        if self._closed:
            raise JournalReadCancelled
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, work)
        except Exception as error:
            # The thread is started for the first read, and the system may have none left to give.
            if is_exhausted(error):
                raise ResourcesExhausted from error
            raise

    def _pieces(
        self, stop: threading.Event, *, session_id: SessionId | None, since: int | None
    ) -> Generator[bytes, None, None]:
        made_at = self._clock.now()
        gathered = bytearray()
        with open_snapshot(self._home, self._settings) as raw:
            conn = ThrottledConnection(raw, stop)
            anchor = anchors.get(conn, since) if since is not None else None
            if since is not None and anchor is None:
                raise AnchorNotFound(f"The journal has no anchor {since}. `GET /admin/v1/journal/anchors` lists them.")
            for line in export.lines(conn, made_at=made_at, session_id=session_id, since=anchor):
                gathered += line
                if len(gathered) >= PIECE_BYTES:
                    yield bytes(gathered)
                    gathered.clear()
        yield bytes(gathered)


@contextmanager
def _damage_named() -> Iterator[None]:
    """Raise `JournalDamaged` for what the database or a decoder reports; not for a database that cannot be reached."""
    try:
        yield
    except Exception as error:
        # A damaged file makes the database fail in many ways, and all of them mean the same here.
        if isinstance(error, PalyraError) and not isinstance(error, JournalError):
            raise
        raise JournalDamaged from error
