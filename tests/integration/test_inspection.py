"""Long looks at a journal that is in use: one of each kind at a time, and none that outlives its use."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.requests import ClientDisconnect

from palyra.background import journal_inspection as module
from palyra.background.journal_inspection import AnchorNotFound, ExportInProgress, JournalInspector, VerifyInProgress
from palyra.core.ids import SessionId
from palyra.core.session import SessionNotFound
from palyra.exhaustion import NO_THREAD, ResourcesExhausted
from palyra.gateway.http.client_presence import while_connected
from palyra.home import Home
from palyra.journal.engines import sqlite
from palyra.journal.engines.base import Connection, StorageUnavailable
from palyra.journal.engines.throttled import JournalReadCancelled, ThrottledConnection
from palyra.journal.projection import replay_check
from palyra.settings import JournalSettings, Settings
from tests.support.clock import FakeClock
from tests.support.daemon import Daemon
from tests.support.eventually import eventually


@pytest.fixture
async def inspection(tmp_path: Path) -> AsyncIterator[JournalInspector]:
    """Somebody who looks at the journal of a daemon that has stopped; its looks are the same beside one that runs."""
    daemon = Daemon(tmp_path / "home")

    def fill() -> None:
        daemon.start()
        for number in range(8):
            daemon.finished(daemon.send("long " * 4000, session={"key": str(number)})["run_id"])
        daemon.stop()

    await asyncio.to_thread(fill)
    inspection = JournalInspector(Home(tmp_path / "home"), Settings(), clock=FakeClock())
    yield inspection
    inspection.close()
    await asyncio.to_thread(daemon.close)


async def test_a_second_verification_is_refused_until_the_first_has_ended(inspection: JournalInspector) -> None:
    async with asyncio.TaskGroup() as group:
        first = group.create_task(inspection.verify())
        await asyncio.sleep(0)
        with pytest.raises(VerifyInProgress):
            await inspection.verify()
        # Another kind of look does not have to wait.
        assert (await inspection.stats()).sessions == 8
    assert first.result().ok
    assert (await inspection.verify()).ok


async def test_a_verification_that_was_given_up_makes_room_for_the_next(inspection: JournalInspector) -> None:
    task = asyncio.create_task(inspection.verify())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await inspection.verify()).ok


async def test_a_look_for_which_there_is_no_thread_is_refused_and_can_be_repeated(
    inspection: JournalInspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError(NO_THREAD)

    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", refuse)
        # The daemon's own verification waits when it gets this, instead of ending the daemon.
        with pytest.raises(ResourcesExhausted):
            await inspection.verify_in_background()
    assert (await inspection.verify()).ok


async def test_a_database_that_is_away_for_a_moment_is_not_reported_as_damaged(
    postgres_journal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_connection(conn: Connection, home: Home) -> None:
        conn.fetch("SELECT pg_terminate_backend(pg_backend_pid())")

    monkeypatch.setattr(replay_check, "verify_all", end_connection)
    settings = Settings(journal=JournalSettings(database_url=postgres_journal))
    inspection = JournalInspector(Home(tmp_path), settings, clock=FakeClock())
    # The daemon's own verification waits when it gets this, and reports no problem.
    with pytest.raises(StorageUnavailable):
        await inspection.verify_in_background()
    inspection.close()


async def test_an_export_is_read_no_faster_than_it_is_taken(inspection: JournalInspector) -> None:
    pieces = inspection.export()
    first = await anext(pieces)
    assert len(first) < 2 * module.PIECE_BYTES
    with pytest.raises(ExportInProgress):
        await anext(inspection.export())
    await pieces.aclose()
    whole = [piece async for piece in inspection.export()]
    assert len(whole) > 1
    assert b"".join(whole).splitlines()[-1].startswith(b'{"line":"footer"')


async def test_what_is_not_there_is_said_before_the_first_piece(inspection: JournalInspector) -> None:
    with pytest.raises(SessionNotFound):
        await anext(inspection.export(session_id=SessionId("01ARZ3NDEKTSV4RRFFQ69G5FAV")))
    with pytest.raises(AnchorNotFound):
        await anext(inspection.export(since=4711))


async def test_a_daemon_that_stops_breaks_looks_off(inspection: JournalInspector) -> None:
    pieces = inspection.export()
    await anext(pieces)
    inspection.close()
    with pytest.raises(JournalReadCancelled):
        await anext(pieces)
    with pytest.raises(JournalReadCancelled):
        await inspection.verify()
    with pytest.raises(JournalReadCancelled):
        await inspection.stats()
    await eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("journal-export")])


async def test_no_read_follows_the_word_to_stop(inspection: JournalInspector, tmp_path: Path) -> None:
    stop = threading.Event()

    def look() -> None:
        with sqlite.open_snapshot(tmp_path / "home" / "journal.db") as conn:
            paced = ThrottledConnection(conn, stop)
            assert paced.fetch("SELECT COUNT(*) FROM sessions") == [(8,)]
            assert paced.fetch_one("SELECT 1") == (1,)
            stop.set()
            with pytest.raises(JournalReadCancelled):
                paced.fetch_one("SELECT 1")

    await asyncio.to_thread(look)


async def test_work_is_broken_off_when_the_client_leaves() -> None:
    leave = asyncio.Event()

    async def receive() -> dict[str, str]:
        await leave.wait()
        return {"type": "http.disconnect"}

    async def work(error: Exception | None) -> None:
        async with while_connected(receive):
            if error is not None:
                raise error
            leave.set()
            await asyncio.Event().wait()

    with pytest.raises(VerifyInProgress):
        await work(VerifyInProgress())
    with pytest.raises(ClientDisconnect):
        await work(None)
