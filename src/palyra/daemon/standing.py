"""How the parts of a daemon stand, as its status tells."""

from palyra.gateway.records import Part
from palyra.journal import agents, migrate, runs, tasks
from palyra.journal.engine import Connection
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


def worker_part(carrying: int, *, parked: int) -> Part:
    """Say how many runs are worked on, and how many are set aside because their tape cannot be read."""
    detail = f"carries {carrying} runs"
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


def counts(conn: Connection) -> tuple[str, int, int, dict[str, int], dict[str, int]]:
    """Return the engine, its schema, and how many agents, runs and tasks there are."""
    return conn.dialect.name, migrate.current(conn), agents.count(conn), runs.counts(conn), tasks.counts(conn)
