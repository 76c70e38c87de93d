"""The status of a daemon and of each of its parts, and its metrics."""

import os

from palyra.background.metrics import exposition
from palyra.core.version import VERSION
from palyra.daemon.parts.daemon_parts import DaemonParts
from palyra.daemon.parts.journal_setup import OWNER
from palyra.daemon.parts.mcp import mcp_status
from palyra.daemon.parts.models import model_status
from palyra.daemon.process import connection_limits
from palyra.exhaustion import ResourcesExhausted
from palyra.gateway.records.daemon import DaemonPart, DaemonStatus
from palyra.journal import migrate
from palyra.journal.engines.base import Connection, Engine, JournalReplaced, StorageFull
from palyra.journal.storage_health import Storage
from palyra.journal.stores import agents, runs, tasks
from palyra.runs.services.emergency_stops import StopService
from palyra.tools.plugins.current import CurrentPlugins


class StatusReport:
    """Reports how a daemon is."""

    def __init__(self, parts: DaemonParts) -> None:
        self._parts = parts

    def problem(self) -> str | None:
        """Return the code of a problem that keeps the daemon from working; None if there is none."""
        return self._parts.subsystems.journal.storage.trouble

    def warning(self) -> str | None:
        """Return the code of a problem with which the daemon still works; None if there is none."""
        return self._parts.checks.verification.code

    async def status(self) -> DaemonStatus:
        """Return the status of the daemon and of each part."""
        parts, base = self._parts, self._parts.subsystems
        journal, pool, stops = base.journal, base.models.pool, base.guards.stops
        verification, worker = parts.checks.verification, parts.runs.worker
        engine_name, schema, agent_count, run_counts, task_counts = await counts(
            journal.engine, name="postgres" if journal.shared else "sqlite"
        )
        return DaemonStatus(
            version=VERSION,
            pid=os.getpid(),
            home=str(parts.files.home.path),
            started_at=parts.listener.started_at,
            engine=engine_name,
            schema=schema,
            provider=pool.default.name,
            model=pool.default.model,
            workspace=str(parts.files.workspaces(OWNER).roots[0].trusted),
            storage=journal.storage.trouble or "ok",
            settings_hash=base.system.config.hash,
            grpc=parts.listener.addresses.grpc,
            runs=run_counts,
            tasks=task_counts,
            counters=dict(journal.metrics.counters),
            connections=await connection_limits.figures(parts.listener.connections),
            parts=[
                journal_part(journal.storage, engine_name, schema),
                DaemonPart(name="tapes", status=verification.code or "ok", detail=verification.detail),
                model_status(pool),
                DaemonPart(
                    name="agents", status="ok", detail=f"{agent_count} {'agent' if agent_count == 1 else 'agents'}"
                ),
                worker_status(worker.active_runs, parked=run_counts.get("parked", 0), starved=worker.starved),
                stop_status(stops),
                queue_status(task_counts),
                *plugin_status(parts.files.plugins),
                *mcp_status(parts.mcp),
            ],
        )

    async def metrics(self) -> str:
        """Return the metrics in the Prometheus text format."""
        parts, journal = self._parts, self._parts.subsystems.journal
        trouble = journal.storage.trouble
        return exposition(
            journal.metrics.counters,
            {
                "runs_active": ("Runs that are being executed.", parts.runs.worker.active_runs),
                "sessions_followed": ("Sessions that clients follow.", journal.tail.followed),
                "journal_writable": ("1 while the journal can be written, else 0.", trouble is None),
                "storage_full": ("1 while the disk of the journal is full, else 0.", trouble == StorageFull.code),
                **connection_limits.metrics(await connection_limits.figures(parts.listener.connections)),
            },
        )


def plugin_status(plugins: CurrentPlugins) -> list[DaemonPart]:
    """Return the status of the plugins, if there are any."""
    loaded_plugins = plugins.now
    if not loaded_plugins.plugins and not loaded_plugins.faulty:
        return []
    skipped = ", ".join(faulty.name for faulty in loaded_plugins.faulty)
    return [
        DaemonPart(
            name="plugins",
            status="plugins_skipped" if skipped else "ok",
            detail=f"{len(loaded_plugins.plugins)} in force{f', skipped: {skipped}' if skipped else ''}",
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
    detail = f"{carrying} active {'run' if carrying == 1 else 'runs'}"
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
        detail=f"{detail}, {parked} parked: `palyra runs list` shows why; `palyra journal verify` checks the tape",
    )


def queue_status(counts: dict[str, int]) -> DaemonPart:
    """Return how many background tasks wait, and how many were given up."""
    pending, parked = counts.get("pending", 0), counts.get("parked", 0)
    status = "tasks_parked" if parked else "ok"
    return DaemonPart(name="queue", status=status, detail=f"{pending} pending, {parked} parked")


def stop_status(stops: StopService) -> DaemonPart:
    """Return what is stopped. Every token can read it, so stops of single principals are only counted."""
    if (stop := stops.everything) is not None:
        return DaemonPart(name="stop", status="stopped", detail=f"{stop.description} `palyra resume` ends the stop.")
    people = len({stop.principal for stop in stops.in_force})
    return DaemonPart(
        name="stop",
        status="ok",
        detail=f"the work of {people} {'principal' if people == 1 else 'principals'} is stopped"
        if people
        else "not stopped",
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
