"""The doors of a daemon: everything that HTTP and gRPC offer, over one set of parts."""

import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from palyra.background.inspection import Inspection
from palyra.core.clock import Clock
from palyra.core.errors import PalyraError
from palyra.core.ids import IdSource
from palyra.daemon.current import Current
from palyra.daemon.home import Workspaces
from palyra.daemon.listen import tls_files
from palyra.gateway.auth import Auth
from palyra.gateway.connections import Connections, Slot
from palyra.gateway.grpc.agents import AgentMethods
from palyra.gateway.grpc.approvals import SERVICE as APPROVALS_SERVICE
from palyra.gateway.grpc.approvals import ApprovalMethods
from palyra.gateway.grpc.health import HealthMethods
from palyra.gateway.grpc.runs import RunMethods
from palyra.gateway.grpc.secrets import SERVICE as VAULT_SERVICE
from palyra.gateway.grpc.secrets import SecretMethods
from palyra.gateway.grpc.server import SERVICE, GrpcServer
from palyra.gateway.grpc.serving import Methods
from palyra.gateway.grpc.sessions import SessionMethods
from palyra.gateway.grpc.stops import SERVICE as STOP_SERVICE
from palyra.gateway.grpc.stops import StopMethods
from palyra.gateway.hosts import Hosts
from palyra.gateway.http import app
from palyra.gateway.http.admin import AdminRoutes
from palyra.gateway.http.agents import AgentRoutes
from palyra.gateway.http.approvals import ApprovalRoutes
from palyra.gateway.http.config import ConfigRoutes
from palyra.gateway.http.files import FileRoutes
from palyra.gateway.http.journal import JournalRoutes
from palyra.gateway.http.mcp import McpRoutes
from palyra.gateway.http.openai.parts import Parts
from palyra.gateway.http.openai.routes import V1Routes
from palyra.gateway.http.protocol import BoundedProtocol, bounded
from palyra.gateway.http.providers import ProviderRoutes
from palyra.gateway.http.runs import RunRoutes
from palyra.gateway.http.secrets import SecretRoutes
from palyra.gateway.http.sessions import SessionRoutes
from palyra.gateway.http.shadow import ShadowRoutes
from palyra.gateway.http.stops import StopRoutes
from palyra.gateway.http.tokens import TokenRoutes
from palyra.gateway.http.usage import UsageRoutes
from palyra.gateway.http.why import WhyRoutes
from palyra.gateway.listener import Listener
from palyra.gateway.rate import Rate
from palyra.gateway.records import Status
from palyra.gateway.streams import Streams
from palyra.journal.engine import Engine
from palyra.journal.tail import Tail
from palyra.policy.gate import Gate
from palyra.providers.remote import Remote
from palyra.providers.roster import Roster
from palyra.runs.agents import Agents
from palyra.runs.approvals import Approvals
from palyra.runs.control import Control
from palyra.runs.embeddings import Embeddings
from palyra.runs.files import Files
from palyra.runs.intake import Glance, Intake, Place
from palyra.runs.mcp import Mcp
from palyra.runs.providers import Providers
from palyra.runs.seals import Seals
from palyra.runs.secrets import Secrets
from palyra.runs.sessions import Sessions
from palyra.runs.shadow import Shadows
from palyra.runs.stops import Stops
from palyra.runs.tokens import Tokens
from palyra.runs.watch import Watch
from palyra.settings import Settings
from palyra.tools.toolbox import Toolbox

DRAIN_SECONDS = 5.0


class HttpServer(uvicorn.Server):
    """Uvicorn, which leaves the signals to the daemon, and connections to the budget that both APIs share."""

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
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

    def _protocol(self, slot: Slot) -> BoundedProtocol:
        kind = cast(type[BoundedProtocol], self.config.http_protocol_class)
        protocol = kind(self.config, self.server_state, self.lifespan.state)
        protocol.slot = slot
        return protocol


@dataclass(frozen=True, slots=True)
class Doors:
    """Both servers, not yet started."""

    http: HttpServer
    grpc: GrpcServer


def build(
    engine: Engine,
    tail: Tail,
    *,
    settings: Current,
    connections: Connections,
    clock: Clock,
    ids: IdSource,
    workspaces: Workspaces,
    inspection: Inspection,
    secrets: Secrets,
    seals: Seals,
    status: Callable[[], Awaitable[Status]],
    metrics: Callable[[], Awaitable[str]],
    ready: Callable[[], str | None],
    warning: Callable[[], str | None],
    place: Place,
    stops: Stops,
    shadows: Shadows,
    watch: Watch,
    toolbox: Toolbox,
    gate: Callable[[], Gate],
    roster: Roster,
    glance: Glance,
    remote: Callable[[str, str], Remote],
    embeddings: Embeddings,
    mcp: Mcp,
    providers: Providers,
) -> Doors:
    """Put both doors together."""
    rate = Rate(clock, lambda: (settings.now.gateway.requests_per_second, settings.now.gateway.request_burst))
    auth = Auth(engine, clock=clock, rate=rate, conceal=workspaces.conceal)
    streams = Streams(lambda: (settings.now.gateway.streams_per_token, settings.now.gateway.streams))
    intake = Intake(
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
    control = Control(engine, clock=clock, ids=ids)

    sessions = Sessions(engine, clock=clock, ids=ids)
    approvals = Approvals(engine, clock=clock, ids=ids, seals=seals, toolbox=toolbox)
    agents = Agents(
        engine, clock=clock, ids=ids, workspace=workspaces, toolbox=toolbox, limits=lambda: settings.now.limits
    )
    v1 = Parts(
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
        *FileRoutes(Files(engine, workspace=workspaces, clock=clock, ids=ids)).operations(),
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
        *TokenRoutes(auth, Tokens(engine, clock=clock, ids=ids)).operations(),
    ]
    methods = Methods(auth, streams)
    hosts = _hosts(settings.now)
    application = app.build(
        operations, auth=auth, hosts=hosts, ready=ready, warning=warning, stopped=lambda: stops.everything
    )
    return Doors(
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


def refusing(error: PalyraError, *, settings: Current, connections: Connections) -> HttpServer:
    """Return the HTTP server of a daemon that does not serve yet."""
    return _http_server(app.refusing(error, hosts=_hosts(settings.now)), settings, connections)


def _http_server(application: ASGIApp, settings: Current, connections: Connections) -> HttpServer:
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
        # Streams end when the runs are parked; cut off before that, they would end in the middle of a chunk.
        timeout_graceful_shutdown=int(DRAIN_SECONDS) + 2,
    )
    return HttpServer(config, connections)


def _hosts(settings: Settings) -> Hosts:
    http, grpc = settings.http, settings.grpc
    return Hosts((*http.names, http.host, grpc.host), origins=http.origins)


def _patience(settings: Current) -> float:
    return settings.now.gateway.slow_reader_seconds
