"""The journal of a daemon: opened, brought up to date, and made to know who this daemon is."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from palyra import config
from palyra.background.jobs import retention, upkeep
from palyra.background.queue import LONGEST_WAIT_MS
from palyra.core.clock import Clock, to_ms
from palyra.core.errors import Broken
from palyra.core.ids import IdSource, PrincipalId, TaskId, TokenId
from palyra.daemon.home import token, writing
from palyra.home import Home
from palyra.journal import embeddings, leases, meta, migrate, runs, signing, tasks, tokens
from palyra.journal.engine import Connection, Engine, StorageFull, Unit
from palyra.journal.sqlite import SqliteEngine
from palyra.journal.tokens import TokenRecord
from palyra.references import secret_of
from palyra.runs.tokens import welcome
from palyra.settings import Settings, SettingsInvalid

OWNER = PrincipalId("user:owner")

log = logging.getLogger(__name__)


class JournalMissing(Broken):
    """The journal file is missing, though there was one. Restore it from a backup."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this daemon is to the journal."""

    journal_id: str
    owner: str
    signer: signing.KeySigner
    begin: Unit[str] | None
    """What a full disk kept from being written. No run may be worked on before it is."""


@asynccontextmanager
async def opened(home: Home, settings: Settings) -> AsyncIterator[Engine]:
    """Open the journal that the settings name."""
    crash = _crash_after(config.crash_after())
    engine: Engine
    if settings.journal.database_url is not None:
        require_driver()
        from palyra.journal.postgres import PostgresClaim, PostgresEngine

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
    """Refuse to begin an empty journal where there was one: the key is made after the journal and outlives it."""
    is_there = home.journal.exists() and home.journal.stat().st_size > 0
    if home.key.exists() and not is_there:
        raise JournalMissing(
            f"{home.journal} is missing or empty, but {home.key.name} shows that there was a journal. Restore it from a"
            f" backup (`palyra backup restore`). To begin an empty journal, move {home.key.name} away first."
        )


def require_key(home: Home, public_key: str | None) -> None:
    """Refuse a key that is not the one that signed the journal so far: a new one could never verify it."""
    found = signing.public_key(home.key)
    if public_key is None or found == public_key:
        return
    if found is None:
        raise signing.JournalKeyMissing(
            f"{home.key} is missing. The journal is signed with it, so no other key can take its place. Restore it from"
            " your copy or from a backup. Nothing was changed."
        )
    raise signing.JournalKeyDiffers(
        f"{home.key} is not the key that signed this journal. Restore the right one from your copy or from a backup."
        " Nothing was changed."
    )


def require_driver() -> None:
    """Refuse settings that name a PostgreSQL where its driver, an extra, is not installed."""
    try:
        import palyra.journal.postgres  # noqa: F401
    except ImportError as error:
        raise SettingsInvalid(
            "journal.database_url is set, but the PostgreSQL driver is missing. Install palyra[postgres]."
        ) from error


def _crash_after(commits: int | None) -> Callable[[], None] | None:
    """Return what kills this process right after so many commits, for the tests that need every such moment."""
    if commits is None:
        return None
    left = iter(range(commits - 1, -1, -1))

    def count() -> None:
        if next(left, 0) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return count


def _is_spent(conn: Connection, secret: str, *, now_ms: int) -> bool:
    """Tell whether a token was good once and is not any more."""
    digest = tokens.digest(secret)
    holder = tokens.principal_of(conn, digest)
    return (holder is not None and holder.has_expired(now_ms=now_ms)) or tokens.is_revoked(conn, digest)


async def update(engine: Engine, *, clock: Clock) -> None:
    """Bring the schema up to date."""
    now_ms = to_ms(clock.now())
    at, known = await engine.read(lambda conn: (migrate.current(conn), migrate.steps(conn.dialect.name)[-1].number))
    try:
        taken = await engine.write(lambda conn: migrate.migrate(conn, now_ms=now_ms))
    except StorageFull as error:
        raise StorageFull(
            f"The journal has schema {at} and must be migrated to {known}, but the disk that holds it is full."
            " Free some space; the start goes on then."
        ) from error
    for step in taken:
        log.info("schema %04d %s", step.number, step.name)


async def introduce(engine: Engine, home: Home, settings: Settings, *, clock: Clock, ids: IdSource) -> Identity:
    """Make sure that there is a key, an owner with a token, and an agent, and that no dead daemon holds a run.

    A journal that an earlier daemon has used can be read before that is written.
    """
    now_ms = to_ms(clock.now())
    require_key(home, await engine.read(lambda conn: meta.get(conn, "public_key")))
    with writing(home):
        signer = signing.load_or_create(home.key)
        secret = token(home)
    if await engine.read(lambda conn: _is_spent(conn, secret, now_ms=now_ms)):
        # Whoever revoked the home's own token meant that copy of it; the owner of the home gets another.
        with writing(home):
            home.token.unlink()
            secret = token(home)
    house = signer.public_key[:16]

    def unit(conn: Connection) -> str:
        # The home's file lock proves that every earlier daemon of this home is dead.
        leases.void(conn, leases.RUNS, home=house)
        leases.void(conn, leases.TASKS, home=house)
        embeddings.void(conn, home=house)
        runs.unpark(conn)
        tasks.hasten(conn, now_ms=now_ms, longest_ms=LONGEST_WAIT_MS)
        if tokens.principal_of(conn, tokens.digest(secret)) is None:
            record = TokenRecord(TokenId(ids.new()), OWNER, "made at first start", now_ms)
            tokens.insert(conn, record, secret)
        welcome(conn, OWNER, ids=ids)
        upkeep.plan(conn, TaskId(ids.new()), now_ms=now_ms, at_ms=now_ms + upkeep.EVERY_MS)
        if settings.retention.archived_days > 0:
            retention.plan(conn, TaskId(ids.new()), now_ms=now_ms, at_ms=now_ms)
        meta.set_once(conn, "public_key", signer.public_key)
        return meta.set_once(conn, "journal_id", ids.new())

    owner = f"{house}:{ids.new()}"
    try:
        return Identity(await engine.write(unit), owner, signer, begin=None)
    except StorageFull:
        journal_id = await engine.read(lambda conn: meta.get(conn, "journal_id"))
        if journal_id is None:
            raise
        return Identity(journal_id, owner, signer, begin=unit)
