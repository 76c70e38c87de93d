"""Runs the daemon: builds every part, starts them in order, stops them in reverse order."""

import asyncio
import gc
import logging
import os
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial

import uvloop

from palyra.background.jobs import retention
from palyra.core.errors import Unavailable
from palyra.daemon.endpoints import Endpoints, build_endpoints
from palyra.daemon.parts.daemon_parts import DaemonParts
from palyra.daemon.parts.guards import build_guards
from palyra.daemon.parts.home import HomeParts, open_home
from palyra.daemon.parts.journal import build_checks, build_journal
from palyra.daemon.parts.mcp import build_mcp
from palyra.daemon.parts.models import build_models
from palyra.daemon.parts.runs import build_runs
from palyra.daemon.parts.services import build_services
from palyra.daemon.parts.subsystems import Subsystems
from palyra.daemon.parts.tools import build_tools, find_control_group
from palyra.daemon.parts.vault import build_vault
from palyra.daemon.process.http_server import DRAIN_SECONDS
from palyra.daemon.process.listener import ListenerParts, open_listener, start_grpc
from palyra.daemon.process.live_config import LiveConfig
from palyra.daemon.process.signals import reload_signal, stop_signal
from palyra.daemon.process.system_clock import SystemClock, SystemIds
from palyra.daemon.process.waiting import Waiting
from palyra.daemon.status import StatusReport
from palyra.daemon.tasks import HTTP, background_tasks, start_tasks
from palyra.home import Home
from palyra.runs.system import System
from palyra.settings import Settings
from palyra.threads import Threads

THREADS = 64
COLLECT = (10_000, 20, 20)

log = logging.getLogger(__name__)


def serve(home: Home, settings: Settings, *, ready: Callable[[str], None]) -> int:
    """Run the daemon until it gets a signal to stop; `ready` is called with its address once it serves."""
    os.umask(0o077)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(home, settings, ready=ready))


async def _serve(home: Home, settings: Settings, *, ready: Callable[[str], None]) -> int:
    await _start_threads()
    clock = SystemClock()
    config = LiveConfig(home, settings)
    system = System(clock, SystemIds(clock), config)
    async with AsyncExitStack() as stack:
        files = await open_home(home, config, stack, clock=clock)
        listener = open_listener(home, system, stack)
        serving = partial(ready, listener.addresses.http)
        waiting = await stack.enter_async_context(Waiting(home, config, listener, began=serving))
        parts = await _build(files, system, listener, waiting, stack)
        endpoints = build_endpoints(parts, StatusReport(parts))
        await start_grpc(endpoints.grpc, listener.addresses, settings, stack)
        await waiting.over()
        # Before the address is published: a client that knows the daemon may stop it at once.
        stop, reload = stop_signal(), reload_signal()
        announced = _announce(parts, stack)
        async with asyncio.TaskGroup() as group:
            tasks = start_tasks(group, background_tasks(parts, endpoints, reload, announced=announced))
            _collect_rarely()
            log.info("ready at %s and %s", listener.addresses.http, listener.addresses.grpc)
            serving()
            await stop.wait()
            await _drain(parts, endpoints, tasks)
        with suppress(Unavailable):
            await parts.checks.anchors.drop()
    log.info("stopped")
    return 0


async def _start_threads() -> None:
    # On few cores the default pool has few threads, and a search occupies one for seconds.
    asyncio.get_running_loop().set_default_executor(Threads(THREADS, name="work"))
    # Starts the threads for DNS lookups now: the event loop ends the whole process if it cannot start them later.
    await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 0)


async def _build(
    files: HomeParts, system: System, listener: ListenerParts, waiting: Waiting, stack: AsyncExitStack
) -> DaemonParts:
    """Build the subsystems, each on those before it; the stack closes them in reverse order."""
    home, settings = files.home, system.config.now
    journal = await build_journal(home, system, waiting, stack, started_at=listener.started_at)
    engine = journal.engine
    vault = build_vault(home, system, engine, files.used_secrets)
    models = await build_models(home, files.config, system, engine, vault, stack)
    control_group = await find_control_group()
    mcp = build_mcp(
        files,
        system,
        engine,
        vault.settings_secrets,
        control_group=control_group,
        own_ports=listener.addresses.ports,
    )
    tools = build_tools(files, system, mcp, stack, control_group=control_group)
    guards = await build_guards(home, system, journal, waiting, stack)
    subsystems = Subsystems(system, journal, vault, models, tools, guards)
    runs = build_runs(subsystems, jobs=retention.jobs(home.path, archived_days=settings.retention.archived_days))
    services = build_services(subsystems, runs.worker)
    checks = await build_checks(home, system, journal)
    return DaemonParts(files, listener, subsystems, mcp, runs, services, checks)


def _announce(parts: DaemonParts, stack: AsyncExitStack) -> bool:
    """Publish the addresses; return False if the disk is full."""
    announcement, verification = parts.listener.announcement, parts.checks.verification
    announced = announcement.publish(grpc=parts.listener.addresses.grpc, waiting="", warning=verification.found)
    # Runs first at shutdown, so that no client is sent to a daemon that is stopping.
    stack.callback(announcement.withdraw)
    verification.warn = announcement.warn
    return announced


def _collect_rarely() -> None:
    # Objects loaded so far are permanent, and most new ones are short-lived: few collections find anything.
    gc.freeze()
    gc.set_threshold(*COLLECT)


async def _drain(parts: DaemonParts, endpoints: Endpoints, tasks: dict[str, asyncio.Task[None]]) -> None:
    """Shut down: accept nothing new, park the runs, end the streams, then stop the servers and the tasks."""
    log.info("stopping")
    endpoints.http.should_exit = True
    parts.checks.inspector.close()
    await parts.runs.worker.park(seconds=DRAIN_SECONDS)
    parts.subsystems.journal.tail.close()
    parts.runs.approval_watch.close()
    await endpoints.grpc.stop(seconds=1.0)
    await tasks[HTTP]
    for task in tasks.values():
        task.cancel()
