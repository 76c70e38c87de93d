"""A journal in this process, while no daemon has it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from palyra.daemon.process.system_clock import SystemClock, SystemIds
from palyra.journal.engines.base import Engine
from palyra.journal.engines.postgres_engine import PostgresEngine
from palyra.journal.engines.sqlite_engine import SqliteEngine
from tests.support.daemon import Daemon


@dataclass(slots=True)
class Commits:
    """Counts what an engine commits."""

    count: int = 0

    def add(self) -> None:
        self.count += 1


@dataclass(frozen=True, slots=True)
class Journal:
    """An engine on the journal of a home, and what its units need."""

    engine: Engine
    commits: Commits
    clock: SystemClock
    ids: SystemIds


@asynccontextmanager
async def opened(daemon: Daemon) -> AsyncIterator[Journal]:
    """Open the journal of a home whose daemon is not running; it has an owner and an agent, if need be made now."""
    if not daemon.home.token.exists():
        daemon.start().stop()
    clock, commits = SystemClock(), Commits()
    engine: Engine
    if daemon.database_url is not None:
        engine = PostgresEngine(daemon.database_url, after_commit=commits.add)
    else:
        engine = SqliteEngine(daemon.home.journal, after_commit=commits.add)
    try:
        yield Journal(engine, commits, clock, SystemIds(clock))
    finally:
        await engine.close()
