"""Builds the journal of a daemon, and what checks it."""

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime

from palyra.background.anchoring import AnchorWriter
from palyra.background.journal_inspection import JournalInspector
from palyra.background.metrics import Metrics
from palyra.background.verification import Verification
from palyra.daemon.parts.journal_setup import JournalIdentity, open_journal, prepare_journal, update
from palyra.daemon.process.waiting import Waiting
from palyra.home import Home
from palyra.journal.archive import backup
from palyra.journal.engines.base import Engine
from palyra.journal.storage_health import Storage
from palyra.journal.tail import Tail
from palyra.runs.system import System

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JournalParts:
    """The journal, its tail and its health."""

    engine: Engine
    storage: Storage
    identity: JournalIdentity
    tail: Tail
    metrics: Metrics
    shared: bool
    """Whether other daemons may use the same journal."""


async def build_journal(
    home: Home, system: System, waiting: Waiting, stack: AsyncExitStack, *, started_at: datetime
) -> JournalParts:
    """Open the journal until the stack is closed: back it up, then migrate it, then register this daemon in it."""
    clock, settings = system.clock, system.config.now
    path = await waiting.for_space(
        lambda: asyncio.to_thread(backup.before_migration, home, settings, made_at=started_at)
    )
    if path is not None:
        log.info("the journal from before the migration is in %s", path)
    engine = await waiting.for_space(lambda: stack.enter_async_context(open_journal(home, settings)))
    await waiting.for_space(lambda: update(engine, clock=clock))
    storage = Storage(engine, clock=clock)
    identity = await waiting.for_space(lambda: prepare_journal(engine, home, settings, clock=clock, ids=system.ids))
    shared = settings.journal.database_url is not None
    return JournalParts(engine, storage, identity, Tail(engine), Metrics(engine), shared)


@dataclass(frozen=True, slots=True)
class CheckParts:
    """What proves that the journal is what was written."""

    anchors: AnchorWriter
    inspector: JournalInspector
    verification: Verification


async def build_checks(home: Home, system: System, journal: JournalParts) -> CheckParts:
    """Return the checks of the journal; the last anchor has been checked."""
    identity = journal.identity
    anchors = AnchorWriter(journal.engine, journal_id=identity.journal_id, signer=identity.signer, clock=system.clock)
    inspector = JournalInspector(home, system.config.now, clock=system.clock)
    verification = Verification(journal.engine, inspector, key=identity.signer.public_key)
    await verification.check_ends()
    return CheckParts(anchors, inspector, verification)
