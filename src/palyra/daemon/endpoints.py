"""The APIs of a daemon: builds the HTTP and gRPC servers over one set of services."""

from dataclasses import dataclass

from palyra.daemon.parts.daemon_parts import DaemonParts
from palyra.daemon.parts.journal_setup import OWNER
from palyra.daemon.process.http_server import HttpServer, allowed_hosts, build_http_server
from palyra.daemon.status import StatusReport
from palyra.gateway.auth import Auth
from palyra.gateway.grpc.agents import AgentMethods
from palyra.gateway.grpc.approvals import SERVICE as APPROVALS_SERVICE
from palyra.gateway.grpc.approvals import ApprovalMethods
from palyra.gateway.grpc.daemon_status import HealthMethods
from palyra.gateway.grpc.methods import Handler, Methods
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
from palyra.gateway.http.operation import Operation
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
from palyra.gateway.rate_limit import RateLimiter
from palyra.gateway.stream_limit import StreamLimiter
from palyra.runs.services.file_checkpoints import FileCheckpointService
from palyra.runs.services.mcp import McpService
from palyra.runs.services.providers import ProviderService
from palyra.runs.services.tokens import TokenService
from palyra.settings import GatewaySettings


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Both servers, not yet started."""

    http: HttpServer
    grpc: GrpcServer


def build_endpoints(parts: DaemonParts, report: StatusReport) -> Endpoints:
    """Return both servers. They share the tokens, the limits and the services."""
    base, config = parts.subsystems, parts.files.config

    def gateway() -> GatewaySettings:
        return config.now.gateway

    rate = RateLimiter(base.system.clock, lambda: (gateway().requests_per_second, gateway().request_burst))
    auth = Auth(base.journal.engine, clock=base.system.clock, rate=rate, conceal=parts.files.workspaces.conceal)
    streams = StreamLimiter(lambda: (gateway().max_streams_per_token, gateway().max_streams))
    hosts, connections = allowed_hosts(config.now), parts.listener.connections
    application = app.build(
        _operations(parts, report, auth, streams),
        auth=auth,
        hosts=hosts,
        ready=report.problem,
        warning=report.warning,
        stopped=lambda: base.guards.stops.everything,
    )
    return Endpoints(
        http=build_http_server(application, config, connections),
        grpc=GrpcServer(_methods(parts, report, auth, streams), connections, hosts, ready=report.problem),
    )


def _operations(parts: DaemonParts, report: StatusReport, auth: Auth, streams: StreamLimiter) -> list[Operation]:
    """Return the operations of the HTTP API, noun by noun."""
    base, services, config = parts.subsystems, parts.services, parts.files.config
    engine, tail, clock, ids = base.journal.engine, base.journal.tail, base.system.clock, base.system.ids
    vault, guards, workspaces = base.vault, base.guards, base.tools.workspaces
    intake, control = services.intake, services.cancellation
    return [
        *V1Routes(_v1_services(parts, streams)).operations(),
        *RunRoutes(engine, tail, streams=streams, intake=intake, control=control).operations(),
        *SessionRoutes(engine, tail, streams=streams, sessions=services.sessions).operations(),
        *AgentRoutes(services.agents).operations(),
        *FileRoutes(FileCheckpointService(engine, workspace=workspaces, clock=clock, ids=ids)).operations(),
        *ApprovalRoutes(services.approvals, parts.runs.approval_watch, intake=intake, streams=streams).operations(),
        *StopRoutes(guards.stops).operations(),
        *ShadowRoutes(guards.shadows).operations(),
        *WhyRoutes(engine, clock=clock, workspace=workspaces).operations(),
        *UsageRoutes(engine, lambda: config.now.spending, clock=clock).operations(),
        *AdminRoutes(auth, report.status, report.metrics).operations(),
        *ConfigRoutes(lambda: config.now, config.reload).operations(),
        *JournalRoutes(engine, parts.checks.inspector).operations(),
        *SecretRoutes(vault.secrets, vault.sealer).operations(),
        *McpRoutes(McpService(engine, parts.mcp, clock=clock)).operations(),
        *ProviderRoutes(_provider_service(parts), intake=intake).operations(),
        *TokenRoutes(auth, TokenService(engine, clock=clock, ids=ids)).operations(),
    ]


def _methods(
    parts: DaemonParts, report: StatusReport, auth: Auth, streams: StreamLimiter
) -> dict[str, dict[str, Handler]]:
    """Return the methods of the gRPC API, service by service."""
    base, services, config = parts.subsystems, parts.services, parts.files.config
    engine, intake = base.journal.engine, services.intake
    methods = Methods(auth, streams)

    def slow_reader_seconds() -> float:
        return config.now.gateway.write_timeout_seconds

    return {
        SERVICE: {
            **HealthMethods(auth, report.status, ready=report.problem).handlers(),
            **RunMethods(
                engine,
                base.journal.tail,
                intake=intake,
                control=services.cancellation,
                timeout=slow_reader_seconds,
            ).handlers(methods),
            **SessionMethods(engine, sessions=services.sessions).handlers(methods),
            **AgentMethods(services.agents).handlers(methods),
        },
        APPROVALS_SERVICE: ApprovalMethods(
            services.approvals, parts.runs.approval_watch, intake=intake, timeout=slow_reader_seconds
        ).handlers(methods),
        VAULT_SERVICE: SecretMethods(base.vault.secrets, base.vault.sealer).handlers(methods),
        STOP_SERVICE: StopMethods(base.guards.stops).handlers(methods),
    }


def _v1_services(parts: DaemonParts, streams: StreamLimiter) -> V1Services:
    base, services, config = parts.subsystems, parts.services, parts.files.config
    return V1Services(
        engine=base.journal.engine,
        tail=base.journal.tail,
        streams=streams,
        intake=services.intake,
        control=services.cancellation,
        agents=services.agents,
        toolbox=base.tools.toolbox,
        gate=base.tools.gate,
        roster=base.models.pool,
        remote=base.models.remote,
        embeddings=parts.runs.embeddings,
        settings=lambda: config.now.model,
        clock=base.system.clock,
    )


def _provider_service(parts: DaemonParts) -> ProviderService:
    base, files = parts.subsystems, parts.files
    return ProviderService(
        lambda: files.config.now.model,
        roster=base.models.pool,
        remote=base.models.remote,
        secrets=base.vault.secrets,
        home=files.home,
        owner=OWNER,
    )
