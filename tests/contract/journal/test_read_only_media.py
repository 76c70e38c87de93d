"""A journal where nothing can be written: on a CD, a mount that is read-only, or without the right to write."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from palyra.home import Home
from palyra.journal.archive import backup
from palyra.journal.engines.sqlite import JournalLogNotReadable
from palyra.journal.projection import replay_check
from palyra.journal.proof import journal_proof, signing_key
from palyra.journal.proof.signing_key import KeySigner
from palyra.journal.proof.tape_proof import ProofReport
from palyra.settings import Settings
from tests.contract.database import SqliteDatabase, migrated
from tests.contract.journal.builders import a_session_id, a_title, write_down
from tests.contract.journal.proof.test_journal_proof import write_journal
from tests.support.builders import AT
from tests.support.needs import skip

ENTRIES = 4


@pytest.fixture
async def written(file: SqliteDatabase, tmp_path: Path) -> Home:
    """A home with a journal that was closed in order, and the files that a kill would have left."""
    home = Home(tmp_path / "home #1?")
    home.path.mkdir(mode=0o700)
    signer: KeySigner = await asyncio.to_thread(signing_key.load_or_create, home.key)
    file.path = home.journal
    engine = await migrated(file)
    await engine.write(lambda conn: write_journal(conn, signer))
    await engine.write(lambda conn: write_down(conn, a_session_id(), a_title()))
    # As a daemon leaves it that is killed.
    for suffix in ("", "-wal", "-shm"):
        await asyncio.to_thread(shutil.copyfile, f"{home.journal}{suffix}", home.path / f"killed{suffix}")
    await engine.close()
    return home


def leave_killed(home: Home, *suffixes: str) -> None:
    """Put these files of a daemon that was killed, and none of one that stopped, into their places."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{home.journal}{suffix}").unlink(missing_ok=True)
    for suffix in suffixes:
        (home.path / f"killed{suffix}").rename(f"{home.journal}{suffix}")


@contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """Let nobody write there: by a mount if we may, since no mode keeps out root, else by modes."""
    done = subprocess.run(["mount", "--bind", str(folder), str(folder)], capture_output=True, check=False)
    if done.returncode == 0:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
        return
    if os.geteuid() == 0:
        skip("right to mount", "and root may write everywhere else")
    modes = {path: path.stat().st_mode for path in (*folder.rglob("*"), folder)}
    for path in modes:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        yield
    finally:
        for path, mode in reversed(modes.items()):
            path.chmod(mode)


def listed(home: Home) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in home.path.iterdir()}


def proved(home: Home) -> ProofReport:
    return replay_check.verify_with_archive(home, Settings())


def test_a_journal_without_a_log_is_verified(written: Home) -> None:
    for suffix in ("-wal", "-shm"):
        Path(f"{written.journal}{suffix}").unlink(missing_ok=True)
    before = listed(written)
    with unwritable(written.path):
        report = proved(written)

    assert (report.ok, report.entries) == (True, ENTRIES)
    assert listed(written) == before


def test_a_journal_with_an_empty_log_is_verified(written: Home) -> None:
    Path(f"{written.journal}-wal").touch()
    with unwritable(written.path):
        assert proved(written).entries == ENTRIES


def test_a_log_with_its_index_is_read(written: Home) -> None:
    leave_killed(written, "", "-wal", "-shm")
    with unwritable(written.path):
        report = proved(written)

    assert (report.ok, report.entries) == (True, ENTRIES)


def test_a_log_that_cannot_be_read_is_never_ignored(written: Home) -> None:
    leave_killed(written, "", "-wal")
    with unwritable(written.path), pytest.raises(JournalLogNotReadable, match="writable"):
        proved(written)

    # The advice helps.
    assert proved(written).entries == ENTRIES


def test_what_was_changed_is_named_there_too(written: Home, file: SqliteDatabase) -> None:
    file.change("UPDATE tape SET content = '{}' WHERE tape_seq = 2")
    with unwritable(written.path):
        (problem,) = proved(written).problems

    assert problem.tape_seq == 2


def test_a_backup_can_be_made_from_there_and_verified_there(written: Home, tmp_path: Path) -> None:
    with unwritable(written.path):
        backup.create(written, Settings(), target=tmp_path / "backup", made_at=AT)
    with unwritable(tmp_path / "backup"):
        assert backup.check(tmp_path / "backup").ok


def test_its_last_anchor_can_be_printed_there(written: Home) -> None:
    with unwritable(written.path):
        assert journal_proof.latest_anchor(written, Settings()) is not None
