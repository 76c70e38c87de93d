"""The journal of a daemon: opens it, updates its schema, and registers this daemon and its owner."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from palyra import config
from palyra.background.jobs import cleanup, retention
from palyra.background.queue import MAX_WAIT_MS
from palyra.core.clock import Clock, to_ms
from palyra.core.errors import Internal
from palyra.core.ids import IdSource, PrincipalId, TaskId, TokenId
from palyra.daemon.process.home_setup import explain_write_errors, owner_token
from palyra.home import Home
from palyra.journal import migrate
from palyra.journal.engines.base import Connection, Engine, StorageFull, Unit
from palyra.journal.engines.sqlite_engine import SqliteEngine
from palyra.journal.ledger import embeddings
from palyra.journal.proof import signing_key
from palyra.journal.stores import leases, meta, runs, tasks, tokens
from palyra.journal.stores.tokens import TokenRecord
from palyra.runs.services.tokens import welcome
from palyra.secret_references import secret_of
from palyra.settings import Settings, SettingsInvalid

OWNER = PrincipalId("user:owner")

log = logging.getLogger(__name__)


class JournalMissing(Internal):
    """The journal file is missing, although there was one. Restore it from a backup."""


@dataclass(frozen=True, slots=True)
class JournalIdentity:
    """The identity of this daemon in the journal."""

    journal_id: str
    owner: str
    signer: signing_key.KeySigner
    begin: Unit[str] | None
    """The unit that a full disk kept from being written. It must be written before any run is executed."""


@asynccontextmanager
async def open_journal(home: Home, settings: Settings) -> AsyncIterator[Engine]:
    """Open the journal that the settings name."""
    crash = _crash_after(config.crash_after())
    engine: Engine
    if settings.journal.database_url is not None:
        require_driver()
        from palyra.journal.engines.postgres_claim import PostgresClaim
        from palyra.journal.engines.postgres_engine import PostgresEngine

        address = await asyncio.to_thread(secret_of, settings.journal.database_url, base=home.path)
        claim = await asyncio.to_thread(PostgresClaim, address)
        try:
            engine = PostgresEngine(address, after_commit=crash, claim=claim)
            try:
                yield engine
            finally:
                await engine.close()
        finally:
            claim.close()
        return
    require_journal(home)
    engine = SqliteEngine(home.journal, after_commit=crash)
    try:
        yield engine
    finally:
        await engine.close()


def require_journal(home: Home) -> None:
    """Refuse to create an empty journal where there was one: the key is created after the journal and outlives it."""
    is_there = home.journal.exists() and home.journal.stat().st_size > 0
    if home.key.exists() and not is_there:
        raise JournalMissing(
            f"{home.journal} is missing or empty, but {home.key.name} shows that there was a journal. "
            "Restore it from a backup (`palyra backup restore`). To start with an empty journal, move "
            f"{home.key.name} away first."
        )


def require_key(home: Home, public_key: str | None) -> None:
    """Refuse a key other than the one that signed the journal so far: a new key could never verify it."""
    match = signing_key.public_key(home.key)
    if public_key is None or match == public_key:
        return
    if match is None:
        raise signing_key.JournalKeyMissing(
            f"{home.key} is missing. The journal is signed with it, so no other key can take its place. Restore it from"
            " your copy or from a backup. Nothing was changed."
        )
    raise signing_key.JournalKeyMismatch(
        f"{home.key} is not the key that signed this journal. Restore the right one from your copy or from a backup."
        " Nothing was changed."
    )


def require_driver() -> None:
    """Refuse settings that name a PostgreSQL database if the driver, an extra, is not installed."""
    try:
        import palyra.journal.engines.postgres  # noqa: F401
    except ImportError as error:
        raise SettingsInvalid(
            "journal.database_url is set, but the PostgreSQL driver is missing. Install palyra[postgres]."
        ) from error


def _crash_after(commits: int | None) -> Callable[[], None] | None:
    """Return a function that kills this process after so many commits, for tests that need a crash at each of them."""
    if commits is None:
        return None
    left = iter(range(commits - 1, -1, -1))

    def count() -> None:
        if next(left, 0) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return count


def _is_spent(conn: Connection, secret: str, *, now_ms: int) -> bool:
    """Return whether a token was valid once and no longer is."""
    digest = tokens.digest(secret)
    holder = tokens.principal_of(conn, digest)
    return (holder is not None and holder.has_expired(now_ms=now_ms)) or tokens.is_revoked(conn, digest)


async def update(engine: Engine, *, clock: Clock) -> None:
    """Bring the schema up to date."""
    now_ms = to_ms(clock.now())
    at, known_count = await engine.read(
        lambda conn: (migrate.current(conn), migrate.steps(conn.dialect.name)[-1].number)
    )
    try:
        migrations = await engine.write(lambda conn: migrate.migrate(conn, now_ms=now_ms))
    except StorageFull as error:
        raise StorageFull(
            f"The journal has schema {at} and must be migrated to {known_count}, but the disk that holds it "
            "is full. Free some space; the start then continues by itself."
        ) from error
    for step in migrations:
        log.info("schema %04d %s", step.number, step.name)


async def prepare_journal(
    engine: Engine, home: Home, settings: Settings, *, clock: Clock, ids: IdSource
) -> JournalIdentity:
    """Make sure that a key, an owner with a token, and an agent exist, and that no dead daemon holds a lease.

    If the disk is full, a journal that an earlier daemon has used can be read before this is written.
    """
    now_ms = to_ms(clock.now())
    require_key(home, await engine.read(lambda conn: meta.get(conn, "public_key")))
    with explain_write_errors(home):
        signer = signing_key.load_or_create(home.key)
        secret = owner_token(home)
    if await engine.read(lambda conn: _is_spent(conn, secret, now_ms=now_ms)):
        # Revoking the home's own token was meant for that copy; the owner of the home gets a new token.
        with explain_write_errors(home):
            home.token.unlink()
            secret = owner_token(home)
    house = signer.public_key[:16]

    def unit(conn: Connection) -> str:
        # The home's file lock proves that every earlier daemon of this home is dead.
        leases.release_dead_owners(conn, leases.RUNS, home=house)
        leases.release_dead_owners(conn, leases.TASKS, home=house)
        embeddings.release_dead_owners(conn, home=house)
        runs.unpark(conn)
        tasks.hasten(conn, now_ms=now_ms, longest_ms=MAX_WAIT_MS)
        if tokens.principal_of(conn, tokens.digest(secret)) is None:
            record = TokenRecord(TokenId(ids.new()), OWNER, "made at first start", now_ms)
            tokens.insert(conn, record, secret)
        welcome(conn, OWNER, ids=ids)
        tasks.plan(conn, TaskId(ids.new()), cleanup.KIND, now_ms=now_ms, at_ms=now_ms + cleanup.EVERY_MS)
        if settings.retention.archived_days > 0:
            tasks.plan(conn, TaskId(ids.new()), retention.KIND, now_ms=now_ms, at_ms=now_ms)
        meta.set_once(conn, "public_key", signer.public_key)
        return meta.set_once(conn, "journal_id", ids.new())

    owner = f"{house}:{ids.new()}"
    try:
        return JournalIdentity(await engine.write(unit), owner, signer, begin=None)
    except StorageFull:
        journal_id = await engine.read(lambda conn: meta.get(conn, "journal_id"))
        if journal_id is None:
            raise
        return JournalIdentity(journal_id, owner, signer, begin=unit)
