"""The doctor's checks of the journal: its schema, its tapes, its times and its secrets."""

import calendar
import time
from collections.abc import Iterator

from palyra.cli.doctor.check import FAIL, OK, WARN, Check, error_text
from palyra.cli.journal.commands import walk
from palyra.cli.options import Invocation
from palyra.cli.terminal.output import date_time, plural
from palyra.config import references
from palyra.core.clock import MAX_AHEAD_MS, from_ms
from palyra.core.errors import PalyraError
from palyra.gateway.client.target import find_daemon
from palyra.home import Home
from palyra.journal import migrate
from palyra.journal.snapshot import open_snapshot
from palyra.journal.stores import sessions
from palyra.journal.vault import secrets
from palyra.journal.vault.vault_key import VaultKeySource
from palyra.settings import Settings

QUICK_BYTES = 64 * 1024 * 1024
"""A journal up to this size is verified within a few seconds."""


def check_journal(home: Home, settings: Settings) -> Iterator[Check]:
    """Check that the journal can be read, has a known schema, and verifies."""
    where = "PostgreSQL" if settings.journal.database_url else "journal"
    if not settings.journal.database_url and not home.journal.exists():
        if home.key.exists():
            # The key is created after the journal, and outlives it.
            remedy = "Restore it from a backup: `palyra backup restore`."
            yield Check("journal", FAIL, f"{home.journal} is missing, but its key exists", remedy)
        else:
            yield Check("journal", OK, "does not exist yet", "The first start creates it.")
        return
    try:
        with open_snapshot(home, settings) as conn:
            schema, known_count = migrate.current(conn), migrate.steps(conn.dialect.name)[-1].number
            newest_ms = sessions.newest_ms(conn) if schema == known_count else 0
    except Exception as error:
        # The doctor continues whatever it finds, and a damaged file makes the database fail in many ways.
        yield Check(where, FAIL, error_text(error), "See `palyra logs`. If the file is damaged, restore a backup.")
        return
    yield _check_schema(where, schema, known_count=known_count)
    if schema == known_count:
        yield from check_times(newest_ms)
        yield _check_chain(home, settings)
        yield from check_vault(home, settings)


def check_tapes(invocation: Invocation) -> Iterator[Check]:
    """Report what the daemon found when it verified the tapes, if something does not verify."""
    daemon = find_daemon(invocation.home)
    if daemon is not None and daemon.warning is not None:
        yield Check("tapes", FAIL, daemon.warning)


def check_times(newest_ms: int) -> Iterator[Check]:
    """Check whether entries were recorded while the clock was ahead: by the current clock they are in the future."""
    # This checks the machine's own clock, so it is read directly.
    if newest_ms > calendar.timegm(time.gmtime()) * 1000 + MAX_AHEAD_MS:
        yield Check(
            "times",
            WARN,
            f"the newest entry is from {date_time(from_ms(newest_ms))}, which is in the future",
            "If the clock is wrong, set it. If it is correct now, it was ahead then: those sessions and runs are listed"
            " last, and approvals given then for a limited time are requested again.",
        )


def check_vault(home: Home, settings: Settings) -> Iterator[Check]:
    """Check that the stored secrets can be decrypted."""
    try:
        with open_snapshot(home, settings) as conn:
            sealed = secrets.keys(conn)
        if not sealed:
            return
        vault_key_source = VaultKeySource(home.vault_key, reference=references(settings).get("vault.key"))
        if (key := vault_key_source.load()) is None:
            raise vault_key_source.missing()
    except PalyraError as error:
        yield Check("secrets", FAIL, error.detail)
        return
    count = sum(sealed.values())
    if lost := count - sealed.get(key.key_id, 0):
        remedy = (
            "Restore the previous key, or set the secrets again (`palyra secrets` lists them). Without that key,"
            " secrets that were sealed in messages (`palyra secrets sealed`) can only be deleted."
        )
        yield Check(
            "secrets", FAIL, f"{lost} of {plural(count, 'secret')} cannot be decrypted with the vault key", remedy
        )
    else:
        yield Check("secrets", OK, f"{plural(count, 'secret')} can be decrypted")


def _check_schema(where: str, schema: int, *, known_count: int) -> Check:
    if schema > known_count:
        what = f"schema {schema} is newer than this version supports ({known_count})"
        return Check(where, FAIL, what, "Use the version of Palyra that wrote it, or a newer one.")
    if schema < known_count:
        return Check(where, WARN, f"schema {schema}; the next start migrates it to {known_count}")
    return Check(where, OK, f"readable, schema {schema}")


def _check_chain(home: Home, settings: Settings) -> Check:
    if settings.journal.database_url or home.journal.stat().st_size > QUICK_BYTES:
        return Check(
            "tapes", OK, "not verified here, because it takes long", "Verify them with `palyra journal verify`."
        )
    try:
        report = walk(home, settings)
    except Exception as error:
        return Check("tapes", FAIL, error_text(error), "Restore a backup of the journal.")
    if not report.ok:
        what = f"verification failed: {report.problems[0].what}"
        return Check("tapes", FAIL, what, "See `palyra journal verify`.")
    return Check("tapes", OK, f"verified: {plural(report.sessions, 'session')}, {plural(report.entries, 'entry')}")
