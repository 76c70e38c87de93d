"""The background tasks of a daemon: which there are, and how the failure of one is reported."""

import asyncio
import logging
from collections.abc import Awaitable, Mapping

from palyra.daemon.endpoints import Endpoints
from palyra.daemon.parts.daemon_parts import DaemonParts
from palyra.daemon.process.home_setup import Announcement
from palyra.daemon.process.live_config import LiveConfig
from palyra.daemon.process.waiting import RETRY_SECONDS
from palyra.daemon.process.warm_up import warm_up

log = logging.getLogger(__name__)

HTTP = "http"
"""The task that serves HTTP: it ends by itself when the server was told to stop."""


def background_tasks(
    parts: DaemonParts, endpoints: Endpoints, reload: asyncio.Event, *, announced: bool
) -> dict[str, Awaitable[None]]:
    """Return the tasks by name, in the order in which they start."""
    listener, base = parts.listener, parts.subsystems
    announcement = {} if announced else {"announcement": _publish_later(listener.announcement)}
    return {
        "work": _work(parts),
        "connections": listener.connections.watch(),
        "mcp": parts.mcp.run(),
        "stops": base.guards.stops.watch(),
        "shadow policies": base.guards.shadows.watch(),
        "verification": parts.checks.verification.run(),
        "tail": base.journal.tail.recheck(),
        **announcement,
        "reload": _reload_on_signal(parts.files.config, reload),
        HTTP: endpoints.http.serve(sockets=[listener.socket]),
        "warm-up": warm_up(base.system.config.now),
    }


def start_tasks(group: asyncio.TaskGroup, tasks: Mapping[str, Awaitable[None]]) -> dict[str, asyncio.Task[None]]:
    """Start the tasks in the group. If one fails, the log and the traceback name it."""
    return {name: group.create_task(_named(name, task), name=name) for name, task in tasks.items()}


async def _named(name: str, task: Awaitable[None]) -> None:
    try:
        await task
    except Exception as error:
        error.add_note(f"Background task: {name}")
        log.error("the background task %s failed: %s", name, error)
        raise


async def _work(parts: DaemonParts) -> None:
    """Execute runs and tasks, once it is recorded that no dead daemon holds them."""
    journal, runs = parts.subsystems.journal, parts.runs
    if journal.identity.begin is not None:
        log.error("the start is not complete: reads work, but no work is done until there is disk space")
        await journal.storage.catch_up(journal.identity.begin)
        log.warning("there is disk space again; the start is complete")
    async with asyncio.TaskGroup() as group:
        start_tasks(
            group,
            {
                "worker": runs.worker.run(),
                "queue": runs.queue.run(),
                "embeddings": runs.embeddings.keep(),
                "anchors": parts.checks.anchors.run(),
            },
        )


async def _publish_later(announcement: Announcement) -> None:
    """Publish the addresses when there is space for their record."""
    while True:
        await asyncio.sleep(RETRY_SECONDS)
        if announcement.publish():
            return


async def _reload_on_signal(config: LiveConfig, reload: asyncio.Event) -> None:
    while True:
        await reload.wait()
        reload.clear()
        await config.reload_or_log()
