"""The APIs of a daemon: builds the HTTP and gRPC servers over one set of services."""

import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from palyra.background.journal_inspection import JournalInspector
from palyra.core.clock import Clock
from palyra.core.errors import PalyraError
from palyra.core.ids import IdSource
from palyra.daemon.home_setup import WorkspaceFolders
from palyra.daemon.live_config import LiveConfig
from palyra.daemon.ports import tls_files
from palyra.gateway.allowed_hosts import AllowedHosts
from palyra.gateway.auth import Auth
from palyra.gateway.connections import ConnectionBudget, ConnectionSlot
from palyra.gateway.grpc.agents import AgentMethods
from palyra.gateway.grpc.approvals import SERVICE as APPROVALS_SERVICE
from palyra.gateway.grpc.approvals import ApprovalMethods
from palyra.gateway.grpc.daemon_status import HealthMethods
from palyra.gateway.grpc.methods import Methods
from palyra.gateway.grpc.runs import RunMethods
from palyra.gateway.grpc.secrets import SERVICE as VAULT_SERVICE
from palyra.gateway.grpc.secrets import SecretMethods
from palyra.gateway.grpc.server import SERVICE, GrpcServer
from palyra.gateway.grpc.sessions import SessionMethods
from palyra.gateway.grpc.stops import SERVICE as STOP_SERVICE
from palyra.gateway.grpc.stops import StopMethods
from palyra.gateway.http import app
from palyra.gateway.http.openai.routes import V1Routes
from palyra.gateway.http.openai.services import V1Services
from palyra.gateway.http.protocol import BoundedProtocol, bounded
from palyra.gateway.http.routes.admin import AdminRoutes
from palyra.gateway.http.routes.agents import AgentRoutes
from palyra.gateway.http.routes.approvals import ApprovalRoutes
from palyra.gateway.http.routes.config import ConfigRoutes
from palyra.gateway.http.routes.files import FileRoutes
from palyra.gateway.http.routes.journal import JournalRoutes
from palyra.gateway.http.routes.mcp import McpRoutes
from palyra.gateway.http.routes.policy_shadow import ShadowRoutes
from palyra.gateway.http.routes.providers import ProviderRoutes
from palyra.gateway.http.routes.runs import RunRoutes
from palyra.gateway.http.routes.secrets import SecretRoutes
from palyra.gateway.http.routes.sessions import SessionRoutes
from palyra.gateway.http.routes.stops import StopRoutes
from palyra.gateway.http.routes.tokens import TokenRoutes
from palyra.gateway.http.routes.usage import UsageRoutes
from palyra.gateway.http.routes.why import WhyRoutes
from palyra.gateway.listener import Listener
from palyra.gateway.rate_limit import RateLimiter
from palyra.gateway.records.daemon import DaemonStatus
from palyra.gateway.stream_limit import StreamLimiter
from palyra.journal.engines.base import Engine
from palyra.journal.tail import Tail
from palyra.policy.gate import Gate
from palyra.providers.model_pool import ModelPool
from palyra.providers.transport.remote_provider import RemoteProvider
from palyra.runs.services.agents import AgentService
from palyra.runs.services.approval_watch import ApprovalWatch
from palyra.runs.services.approvals import ApprovalService
from palyra.runs.services.cancellation import CancellationService
from palyra.runs.services.embeddings import EmbeddingsService
from palyra.runs.services.emergency_stops import StopService
from palyra.runs.services.file_checkpoints import FileCheckpointService
from palyra.runs.services.intake import MessageIntake, Place, Prefetch
from palyra.runs.services.mcp import McpService
from palyra.runs.services.policy_shadow import PolicyShadowService
from palyra.runs.services.providers import ProviderService
from palyra.runs.services.sealing import SecretSealer
from palyra.runs.services.secrets import SecretService
from palyra.runs.services.sessions import SessionService
from palyra.runs.services.tokens import TokenService
from palyra.settings import Settings
from palyra.tools.toolbox import Toolbox

DRAIN_SECONDS = 5.0


class HttpServer(uvicorn.Server):
    """Uvicorn without its own signal handling and connection limits: the daemon and the shared budget do those."""

    def __init__(self, config: uvicorn.Config, connections: ConnectionBudget) -> None:
        super().__init__(config)
        self._connections = connections

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        self.servers = []
        for listening in sockets or ():
            listener = Listener(listening, self._connections, self._protocol, tls=self.config.ssl)
            await listener.start()
            self.servers.append(listener)  # type: ignore[arg-type]
        self.started = True

    def _protocol(self, slot: ConnectionSlot) -> BoundedProtocol:
        kind = cast(type[BoundedProtocol], self.config.http_protocol_class)
        protocol = kind(self.config, self.server_state, self.lifespan.state)
        protocol.slot = slot
        return protocol


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Both servers, not yet started."""

    http: HttpServer
    grpc: GrpcServer


def build(
    engine: Engine,
    tail: Tail,
    *,
    settings: LiveConfig,
    connections: ConnectionBudget,
    clock: Clock,
    ids: IdSource,
    workspaces: WorkspaceFolders,
    inspection: JournalInspector,
    secrets: SecretService,
    seals: SecretSealer,
    status: Callable[[], Awaitable[DaemonStatus]],
    metrics: Callable[[], Awaitable[str]],
    ready: Callable[[], str | None],
    warning: Callable[[], str | None],
    place: Place,
    stops: StopService,
    shadows: PolicyShadowService,
    watch: ApprovalWatch,
    toolbox: Toolbox,
    gate: Callable[[], Gate],
    roster: ModelPool,
    glance: Prefetch,
    remote: Callable[[str, str], RemoteProvider],
    embeddings: EmbeddingsService,
    mcp: McpService,
    providers: ProviderService,
) -> Endpoints:
    """Build both servers."""
    rate = RateLimiter(clock, lambda: (settings.now.gateway.requests_per_second, settings.now.gateway.request_burst))
    auth = Auth(engine, clock=clock, rate=rate, conceal=workspaces.conceal)
    streams = StreamLimiter(lambda: (settings.now.gateway.streams_per_token, settings.now.gateway.streams))
    intake = MessageIntake(
        engine,
        clock=clock,
        ids=ids,
        limits=settings.now.limits,
        bounds=settings.now.runs,
        stops=stops,
        meant=roster.meant,
        glance=glance,
        seals=seals,
        place=place,
    )
    settings.watch(lambda new: intake.adopt(new.limits, new.runs))
    control = CancellationService(engine, clock=clock, ids=ids)

    sessions = SessionService(engine, clock=clock, ids=ids)
    approvals = ApprovalService(engine, clock=clock, ids=ids, seals=seals, toolbox=toolbox)
    agents = AgentService(
        engine, clock=clock, ids=ids, workspace=workspaces, toolbox=toolbox, limits=lambda: settings.now.limits
    )
    v1 = V1Services(
        engine=engine,
        tail=tail,
        streams=streams,
        intake=intake,
        control=control,
        agents=agents,
        toolbox=toolbox,
        gate=gate,
        roster=roster,
        remote=remote,
        embeddings=embeddings,
        settings=lambda: settings.now.model,
        clock=clock,
    )
    operations = [
        *V1Routes(v1).operations(),
        *RunRoutes(engine, tail, streams=streams, intake=intake, control=control).operations(),
        *SessionRoutes(engine, tail, streams=streams, sessions=sessions).operations(),
        *AgentRoutes(agents).operations(),
        *FileRoutes(FileCheckpointService(engine, workspace=workspaces, clock=clock, ids=ids)).operations(),
        *ApprovalRoutes(approvals, watch, intake=intake, streams=streams).operations(),
        *StopRoutes(stops).operations(),
        *ShadowRoutes(shadows).operations(),
        *WhyRoutes(engine, clock=clock, workspace=workspaces).operations(),
        *UsageRoutes(engine, lambda: settings.now.spending, clock=clock).operations(),
        *AdminRoutes(auth, status, metrics).operations(),
        *ConfigRoutes(lambda: settings.now, settings.reload).operations(),
        *JournalRoutes(engine, inspection).operations(),
        *SecretRoutes(secrets, seals).operations(),
        *McpRoutes(mcp).operations(),
        *ProviderRoutes(providers, intake=intake).operations(),
        *TokenRoutes(auth, TokenService(engine, clock=clock, ids=ids)).operations(),
    ]
    methods = Methods(auth, streams)
    hosts = _hosts(settings.now)
    application = app.build(
        operations, auth=auth, hosts=hosts, ready=ready, warning=warning, stopped=lambda: stops.everything
    )
    return Endpoints(
        http=_http_server(application, settings, connections),
        grpc=GrpcServer(
            {
                SERVICE: {
                    **HealthMethods(auth, status, ready=ready).handlers(),
                    **RunMethods(
                        engine, tail, intake=intake, control=control, patience=lambda: _patience(settings)
                    ).handlers(methods),
                    **SessionMethods(engine, doors=sessions).handlers(methods),
                    **AgentMethods(agents).handlers(methods),
                },
                APPROVALS_SERVICE: ApprovalMethods(
                    approvals, watch, intake=intake, patience=lambda: _patience(settings)
                ).handlers(methods),
                VAULT_SERVICE: SecretMethods(secrets, seals).handlers(methods),
                STOP_SERVICE: StopMethods(stops).handlers(methods),
            },
            connections,
            hosts,
            ready=ready,
        ),
    )


def refusing(error: PalyraError, *, settings: LiveConfig, connections: ConnectionBudget) -> HttpServer:
    """Return the HTTP server of a daemon that is not ready: it answers every request with the error."""
    return _http_server(app.refusing(error, hosts=_hosts(settings.now)), settings, connections)


def _http_server(application: ASGIApp, settings: LiveConfig, connections: ConnectionBudget) -> HttpServer:
    certificate, key = tls_files(settings.now.http) or (None, None)
    config = uvicorn.Config(
        application,
        loop="none",
        http=bounded(lambda: _patience(settings)),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        # Streams end when the runs are parked; closed before that, they would end in the middle of a chunk.
        timeout_graceful_shutdown=int(DRAIN_SECONDS) + 2,
    )
    return HttpServer(config, connections)


def _hosts(settings: Settings) -> AllowedHosts:
    http, grpc = settings.http, settings.grpc
    return AllowedHosts((*http.names, http.host, grpc.host), origins=http.origins)


def _patience(settings: LiveConfig) -> float:
    return settings.now.gateway.slow_reader_seconds
