"""Runs the daemon: builds every part, starts them in order, stops them in reverse order."""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

import uvloop

from palyra import config, telemetry
from palyra.background import metrics
from palyra.background.anchoring import AnchorWriter
from palyra.background.jobs import approvals, children, cleanup, retention, title
from palyra.background.journal_inspection import JournalInspector
from palyra.background.metrics import Metrics
from palyra.background.queue import JobContext, TaskQueue
from palyra.background.verification import Verification
from palyra.core.errors import Unavailable
from palyra.core.version import VERSION
from palyra.daemon import (
    connection_limits,
    endpoints,
    journal,
    mcp,
    models,
)
from palyra.daemon import (
    status as standing,
)
from palyra.daemon import (
    worker as carrying,
)
from palyra.daemon.home_setup import Announcement, HomeLock, WorkspaceFolders, explain_write_errors, prepare_home
from palyra.daemon.live_config import LiveConfig
from palyra.daemon.ports import address, listen, tls_context, tls_files
from palyra.daemon.start_check import check_model
from palyra.daemon.stop_file import HomeStopFile
from palyra.daemon.system_clock import SystemClock, SystemIds
from palyra.daemon.waiting import RETRY_SECONDS, Waiting
from palyra.daemon.warm_up import warm_up
from palyra.gateway.grpc.server import GrpcServer, PortInUse
from palyra.gateway.records.daemon import DaemonPart, DaemonStatus
from palyra.home import Home
from palyra.journal.archive import backup
from palyra.journal.engines.base import StorageFull
from palyra.journal.storage_health import Storage
from palyra.journal.tail import Tail
from palyra.journal.vault.vault_key import VaultKeySource
from palyra.memory.prompt_assembly import PromptAssembler
from palyra.policy.current_policies import CurrentPolicies
from palyra.providers.local.llama import LlamaRuntime
from palyra.providers.prices import CurrentPrices
from palyra.providers.transport.http import ProviderHttpClient
from palyra.runs.engine.attester import ExecutionAttester
from palyra.runs.services.approval_watch import ApprovalWatch
from palyra.runs.services.approvers import ApproverPresence
from palyra.runs.services.budgets import BudgetService
from palyra.runs.services.embeddings import EmbeddingsService
from palyra.runs.services.emergency_stops import StopService
from palyra.runs.services.mcp import McpService
from palyra.runs.services.policy_shadow import PolicyShadowService
from palyra.runs.services.providers import ProviderService
from palyra.runs.services.sealing import SecretSealer
from palyra.runs.services.secrets import SecretService, UsedSecrets
from palyra.runs.services.settings_secrets import SettingsSecrets
from palyra.sandbox.processes import cgroups
from palyra.sandbox.processes import process as sandbox
from palyra.sandbox.wasm.runner import IDLE_WORKERS, WasmRunner
from palyra.settings import DEFAULT_PORT, Settings
from palyra.threads import Threads
from palyra.tools.plugins.current import CurrentPlugins
from palyra.tools.toolbox import Toolbox

GRPC_PORT = 7718
THREADS = 64
COLLECT = (10_000, 20, 20)

log = logging.getLogger(__name__)


def serve(home: Home, settings: Settings, *, ready: Callable[[str], None]) -> int:
    """Run the daemon until it gets a signal to stop; `ready` is called with its address once it serves."""
    os.umask(0o077)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(home, settings, ready=ready))


async def _serve(home: Home, settings: Settings, *, ready: Callable[[str], None]) -> int:
    # On few cores the default pool has few threads, and a search occupies one for seconds.
    asyncio.get_running_loop().set_default_executor(Threads(THREADS, name="work"))
    # Starts the threads for DNS lookups now: the event loop ends the whole process if it cannot start them later.
    await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 0)
    clock = SystemClock()
    ids = SystemIds(clock)
    current = LiveConfig(home, settings)
    used = UsedSecrets()
    async with AsyncExitStack() as stack:
        prepare_home(home)
        stack.enter_context(HomeLock(home))
        with explain_write_errors(home):
            telemetry.log_to(home.log, hide=used.hide)
        workspaces = WorkspaceFolders(home, settings, owner=journal.OWNER)
        policies = await asyncio.to_thread(CurrentPolicies, home)
        plugins = await asyncio.to_thread(CurrentPlugins, home)
        current.include(policies, plugins)
        current.refuse(lambda wanted: check_model(home, wanted, clock=clock))
        listener = stack.enter_context(listen(settings.http.host, settings.http.port, usual=DEFAULT_PORT))
        certificate, _ = tls_files(settings.http) or (None, None)
        at = address(listener, tls=certificate is not None)
        started_at = clock.now()
        announcement = Announcement(home, at, certificate=certificate, started_at=started_at)
        stack.callback(announcement.withdraw)
        budget = connection_limits.build(current, clock=clock)
        waiting = await stack.enter_async_context(
            Waiting(
                home,
                listener,
                server=lambda error: endpoints.refusing(error, settings=current, connections=budget),
                announcement=announcement,
                began=lambda: ready(at),
            )
        )
        kept = await waiting.for_space(
            lambda: asyncio.to_thread(backup.before_migration, home, settings, made_at=started_at)
        )
        if kept is not None:
            log.info("the journal as it was before the migration is kept in %s", kept)
        engine = await waiting.for_space(lambda: stack.enter_async_context(journal.open_journal(home, settings)))
        await waiting.for_space(lambda: journal.update(engine, clock=clock))
        storage = Storage(engine, clock=clock)
        identity = await waiting.for_space(
            lambda: journal.prepare_journal(engine, home, settings, clock=clock, ids=ids)
        )

        tail = Tail(engine)
        counted = Metrics(engine)
        channels = ApproverPresence(tail, inbox=lambda: current.now.approvals.inbox)
        watch = ApprovalWatch(engine, channels)
        vault_key = VaultKeySource(home.vault_key, reference=config.references(settings).get("vault.key"))
        secrets = SecretService(engine, vault_key, clock=clock, used=used)
        seals = SecretSealer(engine, vault_key, clock=clock, used=used)
        referred = SettingsSecrets(home, owner=journal.OWNER, secrets=secrets, used=used)
        outward = ProviderHttpClient()
        stack.push_async_callback(outward.close)
        prices = await asyncio.to_thread(CurrentPrices, home, lambda: current.now)
        current.include_prices(prices)
        llama = LlamaRuntime()
        stack.push_async_callback(llama.close)
        connect = models.connector(current, key=referred.value, http=outward, llama=llama)
        context = PromptAssembler(engine)
        roster = models.build(current, connect=connect, clock=clock)
        remote = models.embeddings_router(current, key=referred.value, http=outward)
        grpc_at = ""
        control = await asyncio.to_thread(cgroups.take)
        log.info("memory of programs is counted by %s", control.base or f"the supervisor: {control.reason}")
        mcp_servers = mcp.build(
            engine,
            home,
            current,
            referred=referred,
            clock=clock,
            folder=workspaces(journal.OWNER).roots[0].trusted,
            base=control.base,
            own_ports=lambda: (listener.getsockname()[1], int(grpc_at.rpartition(":")[2] or 0)),
        )
        toolbox = Toolbox(plugins.tools, mcp_servers.tools)
        modules = WasmRunner(keep=IDLE_WORKERS)
        stack.push_async_callback(modules.close)
        shared = settings.journal.database_url is not None
        stops = StopService(engine, clock=clock, ids=ids, file=HomeStopFile(home.stop), shared=shared)
        await stops.load()
        shadows = PolicyShadowService(engine, clock=clock, ids=ids, shared=shared)
        await waiting.for_space(shadows.load)
        stack.push_async_callback(shadows.flush)
        attester = ExecutionAttester(identity.signer)
        budgets = BudgetService(lambda: current.now.spending, prices)
        embeddings = EmbeddingsService(
            engine,
            budgets=budgets,
            stops=stops,
            clock=clock,
            ids=ids,
            owner=identity.owner,
            settings_hash=lambda: current.hash,
        )
        worker = carrying.build(
            engine,
            current,
            context=context,
            roster=roster,
            budgets=budgets,
            workspaces=workspaces,
            sandbox=sandbox.build(home, settings.sandbox, base=control.base),
            modules=modules,
            secrets=secrets,
            seals=seals,
            toolbox=toolbox,
            policies=policies,
            shadows=shadows,
            channels=channels,
            stops=stops,
            storage=storage,
            attester=attester,
            clock=clock,
            ids=ids,
            owner=identity.owner,
        )
        archiving = retention.jobs(home.path, archived_days=settings.retention.archived_days)
        jobs = {**approvals.JOBS, **children.jobs(attester), **title.JOBS, **cleanup.JOBS, **archiving}
        queue = TaskQueue(JobContext(engine, clock, ids), jobs, owner=identity.owner)
        anchoring = AnchorWriter(engine, journal_id=identity.journal_id, signer=identity.signer, clock=clock)
        inspection = JournalInspector(home, settings, clock=clock)
        verification = Verification(engine, inspection, key=identity.signer.public_key)
        await verification.check_ends()

        async def status() -> DaemonStatus:
            engine_name, schema, agent_count, run_counts, task_counts = await standing.counts(
                engine, name="postgres" if shared else "sqlite"
            )
            return DaemonStatus(
                version=VERSION,
                pid=os.getpid(),
                home=str(home.path),
                started_at=started_at,
                engine=engine_name,
                schema=schema,
                provider=roster.default.name,
                model=roster.default.model,
                workspace=str(workspaces(journal.OWNER).roots[0].trusted),
                storage=storage.trouble or "ok",
                settings_hash=current.hash,
                grpc=grpc_at,
                runs=run_counts,
                tasks=task_counts,
                counters=dict(counted.counters),
                connections=await connection_limits.figures(budget),
                parts=[
                    standing.journal_part(storage, engine_name, schema),
                    DaemonPart(name="tapes", status=verification.code or "ok", detail=verification.detail),
                    models.model_status(roster),
                    DaemonPart(name="agents", status="ok", detail=f"{agent_count} in all"),
                    standing.worker_status(
                        worker.active_runs, parked=run_counts.get("parked", 0), starved=worker.starved
                    ),
                    standing.stop_status(stops),
                    DaemonPart(
                        name="queue",
                        status="ok" if not task_counts.get("parked") else "tasks_parked",
                        detail=f"{task_counts.get('pending', 0)} pending, {task_counts.get('parked', 0)} parked",
                    ),
                    *standing.plugin_status(plugins),
                    *mcp.mcp_status(mcp_servers),
                ],
            )

        async def figures() -> str:
            return metrics.exposition(
                counted.counters,
                {
                    "runs_carried": ("Runs that are being carried.", worker.active_runs),
                    "tapes_followed": ("Sessions that somebody follows.", tail.followed),
                    "storage_ok": ("1 while the journal can be written.", storage.trouble is None),
                    "storage_full": (
                        "1 while the disk that holds the journal is full.",
                        storage.trouble == StorageFull.code,
                    ),
                    **connection_limits.gauges(await connection_limits.figures(budget)),
                },
            )

        both = endpoints.build(
            engine,
            tail,
            settings=current,
            connections=budget,
            clock=clock,
            ids=ids,
            workspaces=workspaces,
            inspection=inspection,
            secrets=secrets,
            seals=seals,
            status=status,
            metrics=figures,
            ready=lambda: storage.trouble,
            warning=lambda: verification.code,
            place=worker.reserve_slot,
            stops=stops,
            shadows=shadows,
            watch=watch,
            toolbox=toolbox,
            gate=lambda: policies.gate,
            roster=roster,
            glance=context.prefetch,
            remote=remote,
            embeddings=embeddings,
            mcp=McpService(engine, mcp_servers, clock=clock),
            providers=ProviderService(
                lambda: current.now.model,
                roster=roster,
                remote=remote,
                secrets=secrets,
                home=home,
                owner=journal.OWNER,
            ),
        )
        grpc_at = await _start_grpc(both.grpc, settings)
        stack.push_async_callback(both.grpc.stop, seconds=0.0)
        await waiting.over()

        async def work() -> None:
            """Execute runs and tasks, once it is recorded that no dead daemon holds them."""
            if identity.begin is not None:
                log.error("the start is not complete: reads are served, nothing is worked on until there is space")
                await storage.catch_up(identity.begin)
                log.warning("there is space again; the start is complete")
            async with asyncio.TaskGroup() as group:
                for part in (worker.run(), queue.run(), embeddings.keep(), anchoring.run()):
                    group.create_task(part)

        async def announce() -> None:
            while True:
                await asyncio.sleep(RETRY_SECONDS)
                if announcement.publish():
                    return

        # Before the address is published: a client that knows the daemon may stop it at once.
        stop, reload = _stop_signal(), _reload_signal()
        announced = announcement.publish(grpc=grpc_at, waiting="", warning=verification.found)
        # Runs first at shutdown, so that no client is sent to a daemon that is stopping.
        stack.callback(announcement.withdraw)
        verification.warn = announcement.warn
        async with asyncio.TaskGroup() as group:
            parts = [
                group.create_task(part)
                for part in (
                    work(),
                    budget.watch(),
                    mcp_servers.run(),
                    stops.watch(),
                    shadows.watch(),
                    verification.run(),
                    tail.recheck(),
                    *(() if announced else (announce(),)),
                    _reload_on_signal(current, reload),
                )
            ]
            http = group.create_task(both.http.serve(sockets=[listener]))
            # Objects loaded so far are permanent, and most new ones are short-lived: few collections find anything.
            gc.freeze()
            gc.set_threshold(*COLLECT)
            log.info("ready at %s and %s", at, grpc_at)
            ready(at)
            parts.append(group.create_task(warm_up(settings)))
            await stop.wait()
            log.info("stopping")
            both.http.should_exit = True
            inspection.close()
            await worker.park(seconds=endpoints.DRAIN_SECONDS)
            tail.close()
            watch.close()
            await both.grpc.stop(seconds=1.0)
            await http
            for part in parts:
                part.cancel()
        with suppress(Unavailable):
            await anchoring.drop()
    log.info("stopped")
    return 0


async def _start_grpc(server: GrpcServer, settings: Settings) -> str:
    host, port = settings.grpc.host, settings.grpc.port
    tls = tls_context(settings.http)
    if port is not None:
        port = await server.start(host, port, tls=tls)
    else:
        try:
            port = await server.start(host, GRPC_PORT, tls=tls)
        except PortInUse:
            port = await server.start(host, 0, tls=tls)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _stop_signal() -> asyncio.Event:
    """Return an event that is set by the first signal to stop; the second signal ends the process at once."""
    stop = asyncio.Event()

    def word() -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()

    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, word)
    return stop


def _reload_signal() -> asyncio.Event:
    """Return an event that is set by the signal to reload the settings."""
    reload = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.set)
    return reload


async def _reload_on_signal(current: LiveConfig, reload: asyncio.Event) -> None:
    while True:
        await reload.wait()
        reload.clear()
        await current.reload_or_log()
