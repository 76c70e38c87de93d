"""The status of each part of a daemon."""

from palyra.exhaustion import ResourcesExhausted
from palyra.gateway.records.daemon import DaemonPart
from palyra.journal import migrate
from palyra.journal.engines.base import Connection, Engine, JournalReplaced
from palyra.journal.storage_health import Storage
from palyra.journal.stores import agents, runs, tasks
from palyra.runs.services.emergency_stops import StopService
from palyra.tools.plugins.current import CurrentPlugins


def plugin_status(plugins: CurrentPlugins) -> list[DaemonPart]:
    """Return the status of the plugins, if there are any."""
    found = plugins.now
    if not found.plugins and not found.faulty:
        return []
    left_out = ", ".join(faulty.name for faulty in found.faulty)
    return [
        DaemonPart(
            name="plugins",
            status="plugins_left_out" if left_out else "ok",
            detail=f"{len(found.plugins)} in force{f', left out: {left_out}' if left_out else ''}",
        )
    ]


def journal_part(storage: Storage, engine: str, schema: int) -> DaemonPart:
    """Return the engine and schema of the journal, and why it cannot be written, with what to do about it."""
    described = f"{engine}, schema {schema}"
    if storage.trouble is None:
        return DaemonPart(name="journal", status="ok", detail=described)
    return DaemonPart(name="journal", status=storage.trouble, detail=f"{described}: {storage.detail}")


def worker_status(carrying: int, *, parked: int, starved: int) -> DaemonPart:
    """Return how many runs are executed, how many of them wait for system resources, and how many are parked because
    their tape cannot be read."""
    detail = f"carries {carrying} runs"
    if starved:
        return DaemonPart(
            name="worker",
            status=ResourcesExhausted.code,
            detail=f"{detail}, {starved} of them wait: {ResourcesExhausted().detail}",
        )
    if not parked:
        return DaemonPart(name="worker", status="ok", detail=detail)
    return DaemonPart(
        name="worker",
        status="runs_parked",
        detail=f"{detail}, {parked} parked: `palyra runs list` shows why; `palyra journal verify` proves the tape",
    )


def stop_status(stops: StopService) -> DaemonPart:
    """Return what is stopped. Every token can read it, so stops of single principals are only counted."""
    if (stop := stops.everything) is not None:
        return DaemonPart(name="stop", status="stopped", detail=f"{stop.description} `palyra resume` lets work go on.")
    people = len({stop.principal for stop in stops.in_force})
    return DaemonPart(
        name="stop", status="ok", detail=f"the work of {people} principals is stopped" if people else "nothing is"
    )


Counts = tuple[str, int, int, dict[str, int], dict[str, int]]
"""The engine, its schema, and how many agents, runs and tasks there are."""


async def counts(engine: Engine, *, name: str) -> Counts:
    """Count what the journal holds; return only the name for one that was replaced and cannot be read any more."""
    try:
        return await engine.read(_counts)
    except JournalReplaced:
        return name, 0, 0, {}, {}


def _counts(conn: Connection) -> Counts:
    return conn.dialect.name, migrate.current(conn), agents.count(conn), runs.counts(conn), tasks.counts(conn)
