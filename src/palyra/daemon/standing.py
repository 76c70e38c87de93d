"""How the parts of a daemon stand, as its status tells."""

from palyra.exhaustion import ResourcesExhausted
from palyra.gateway.records import Part
from palyra.journal import agents, migrate, runs, tasks
from palyra.journal.engine import Connection, Engine, JournalReplaced
from palyra.journal.storage import Storage
from palyra.runs.stops import Stops
from palyra.tools.plugins.current import CurrentPlugins


def plugin_parts(plugins: CurrentPlugins) -> list[Part]:
    """Say how the plugins stand, if there are any."""
    found = plugins.now
    if not found.plugins and not found.faulty:
        return []
    left_out = ", ".join(faulty.name for faulty in found.faulty)
    return [
        Part(
            name="plugins",
            status="plugins_left_out" if left_out else "ok",
            detail=f"{len(found.plugins)} in force{f', left out: {left_out}' if left_out else ''}",
        )
    ]


def journal_part(storage: Storage, engine: str, schema: int) -> Part:
    """Say what the journal is, and what keeps it from being written, with what to do about it."""
    described = f"{engine}, schema {schema}"
    if storage.trouble is None:
        return Part(name="journal", status="ok", detail=described)
    return Part(name="journal", status=storage.trouble, detail=f"{described}: {storage.detail}")


def worker_part(carrying: int, *, parked: int, starved: int) -> Part:
    """Say how many runs are worked on, how many of them wait for resources of the system, and how many are set aside
    because their tape cannot be read."""
    detail = f"carries {carrying} runs"
    if starved:
        return Part(
            name="worker",
            status=ResourcesExhausted.code,
            detail=f"{detail}, {starved} of them wait: {ResourcesExhausted().detail}",
        )
    if not parked:
        return Part(name="worker", status="ok", detail=detail)
    return Part(
        name="worker",
        status="runs_parked",
        detail=f"{detail}, {parked} parked: `palyra runs list` shows why; `palyra journal verify` proves the tape",
    )


def stop_part(stops: Stops) -> Part:
    """Say what is stopped. Anybody with a token reads it, so whose work is stopped is told of all only."""
    if (stop := stops.everything) is not None:
        return Part(name="stop", status="stopped", detail=f"{stop.told} `palyra resume` lets work go on.")
    people = len({stop.principal for stop in stops.standing})
    return Part(
        name="stop", status="ok", detail=f"the work of {people} principals is stopped" if people else "nothing is"
    )


Counts = tuple[str, int, int, dict[str, int], dict[str, int]]
"""The engine, its schema, and how many agents, runs and tasks there are."""


async def counts(engine: Engine, *, name: str) -> Counts:
    """Count what the journal holds; of one that was replaced, and cannot be read any more, only the name is known."""
    try:
        return await engine.read(_counts)
    except JournalReplaced:
        return name, 0, 0, {}, {}


def _counts(conn: Connection) -> Counts:
    return conn.dialect.name, migrate.current(conn), agents.count(conn), runs.counts(conn), tasks.counts(conn)
