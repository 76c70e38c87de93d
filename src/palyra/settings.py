"""The settings: frozen structs, one for each section of the file."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from palyra.core.errors import Invalid
from palyra.core.limits import Limits
from palyra.core.mcp import MAX_SERVERS, McpServer
from palyra.core.model.catalog import MAX_PROVIDERS, ModelProvider, RoutingRule
from palyra.core.model.routing_plan import RoutingMode
from palyra.core.spending.budget import MAX_BUDGETS, Budget

DEFAULT_PORT = 7717
MAX_RULES = 64

Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=1, le=100_000)]
Rate = Annotated[int, Meta(ge=1, le=10_000_000)]
HostName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]+$", max_length=253)]
Origin = Annotated[str, Meta(pattern=r"^https?://[^/\s]+$", max_length=300)]


class SettingsInvalid(Invalid):
    """The settings are not valid."""


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all sections: unknown keys are refused."""


class HttpSettings(Section, frozen=True, kw_only=True):
    """The HTTP API: its address, and which clients may connect."""

    host: str = "127.0.0.1"
    """The address to listen on. An address that other machines can reach needs TLS and `allow_remote`."""
    port: Port | None = None
    """The port to listen on; it must be free. None uses 7717, or any free port if 7717 is in use."""
    tls_certificate: str | None = None
    """The file with the certificate and its chain; HTTP and gRPC then accept TLS only."""
    tls_key: str | None = None
    """The file with the certificate's private key."""
    allow_remote: bool = False
    """Allow other machines to connect. Required in addition to a `host` that they can reach."""
    allowed_hosts: tuple[HostName, ...] = ()
    """Additional names and addresses by which clients reach the daemon, over HTTP and gRPC. Its own addresses and
    `localhost` are always accepted; a request for any other host is refused."""
    allowed_origins: tuple[Origin, ...] = ()
    """Web origins that may send requests, such as `https://app.example.com`; all other origins are refused."""


class GrpcSettings(Section, frozen=True, kw_only=True):
    """The gRPC API: its address. It uses the certificate of the HTTP API."""

    host: str = "127.0.0.1"
    """The address to listen on. An address that other machines can reach has the same requirements as in [http]."""
    port: Port | None = None
    """The port to listen on; it must be free. None uses 7718, or any free port if 7718 is in use."""


class GatewaySettings(Section, frozen=True, kw_only=True):
    """Limits of the HTTP and gRPC APIs together."""

    max_streams_per_token: Count = 64
    """Maximum number of open streams per token."""
    max_streams: Count = 2048
    """Maximum number of open streams in total."""
    requests_per_second: Rate = 2000
    """Sustained request rate per principal."""
    request_burst: Rate = 4000
    """Maximum burst of requests per principal."""
    max_connections: Annotated[int, Meta(ge=16, le=100_000)] = 4096
    """Maximum number of open connections; fewer if the machine allows fewer file descriptors. A quarter is for clients
    that have not shown a valid token, and half of that quarter for those of one address."""
    connect_timeout_seconds: Annotated[int, Meta(ge=1, le=600)] = 10
    """Seconds that a client has to send a valid token, and to send the head of a request."""
    write_timeout_seconds: Annotated[int, Meta(ge=1, le=3600)] = 30
    """Seconds that a client may take to read what is sent to it; then it is disconnected, and can resume."""


class JournalSettings(Section, frozen=True, kw_only=True):
    """Where the journal is stored."""

    database_url: str | None = None
    """A PostgreSQL address, or a reference to it (`env:NAME`, `file:/path`, `keyring:SERVICE/NAME`); SQLite in the home
    if it is not set."""


class VaultSettings(Section, frozen=True, kw_only=True):
    """How secrets are stored."""

    key: str | None = None
    """A reference to the vault key (`env:NAME`, `file:/path`, `keyring:SERVICE/NAME`), which has 64 hexadecimal digits.
    If it is not set, the key is in the file `vault.key` of the home, created at first use."""


class ModelSettings(Section, frozen=True, kw_only=True):
    """Which models are used."""

    provider: str = "embedded"
    """The model: `PROVIDER` or `PROVIDER/MODEL` of a provider below, `embedded` (the small built-in helper), or
    `scripted` (plays a file)."""
    fallback: tuple[str, ...] = ()
    """The models to try, in this order, when the first one is unavailable."""
    routing: RoutingMode = RoutingMode.SUGGEST
    """`suggest`: the rules below only record which model they would choose. `enforce`: they choose it."""
    rules: Annotated[tuple[RoutingRule, ...], Meta(max_length=MAX_RULES)] = ()
    """Which model to use for which requests, `[[model.rules]]`; the first rule that matches applies."""
    max_output_tokens: Annotated[int, Meta(ge=16, le=1_000_000)] = 8192
    """Maximum length of an answer, in tokens; the maximum cost of a turn depends on it."""
    embeddings: str | None = None
    """`PROVIDER/MODEL` that serves `/v1/embeddings`, of a provider below with the dialect `openai` or `responses`."""
    script: str | None = None
    """The file that the `scripted` provider plays."""
    providers: Annotated[dict[str, ModelProvider], Meta(max_length=MAX_PROVIDERS)] = {}
    """One table per provider, `[model.providers.NAME]`; `palyra providers add` writes it."""


class SpendingSettings(Section, frozen=True, kw_only=True):
    """Prices and budgets of models."""

    currency: Annotated[str, Meta(pattern="^[A-Z]{3}$")] = "USD"
    """The currency of the prices; the built-in prices are in US dollars."""
    budgets: Annotated[dict[str, Budget], Meta(max_length=MAX_BUDGETS)] = {}
    """One table per budget, `[spending.budgets.NAME]`; `palyra usage` shows their status."""


class WorkspaceSettings(Section, frozen=True, kw_only=True):
    """Where the agent works."""

    root: str | None = None
    """The folder that tools can access; `workspace` in the home folder if it is not set."""


class ApprovalSettings(Section, frozen=True, kw_only=True):
    """Approval requests: calls of an agent that wait for a person."""

    timeout_seconds: Annotated[int, Meta(ge=10, le=30 * 86400)] = 86400
    """Seconds until an approval request expires; then the call is denied and the run continues."""
    inbox: bool = False
    """A person checks `palyra approvals` regularly, so dangerous calls may wait there; without it they are denied when
    no client is attached."""


class SandboxSettings(Section, frozen=True, kw_only=True):
    """The sandbox for programs that an agent runs."""

    tier: Literal["strict", "guarded", "off"] = "strict"
    """`strict` (bubblewrap), `guarded` (Landlock), or `off`, where a program may do what you may do. A tier that is not
    available is refused, not replaced; `palyra sandbox check` lists the available ones."""
    memory_mb: Annotated[int, Meta(ge=64, le=1_048_576)] = 4096
    """Maximum memory of a program and all its child processes, in mebibytes."""
    processes: Annotated[int, Meta(ge=8, le=32_768)] = 256
    """Maximum number of processes of a program, with all its child processes."""
    file_mb: Annotated[int, Meta(ge=1, le=1_048_576)] = 512
    """Maximum size of a file that a program writes, in mebibytes."""


class McpSettings(Section, frozen=True, kw_only=True):
    """MCP servers, whose tools agents may use once you have accepted them."""

    servers: Annotated[dict[str, McpServer], Meta(max_length=MAX_SERVERS)] = {}
    """One table per server, `[mcp.servers.NAME]`, with `command` or `url`; `palyra mcp list` shows their status."""


class RetentionSettings(Section, frozen=True, kw_only=True):
    """How long data is kept."""

    archived_days: Annotated[int, Meta(ge=0, le=36_500)] = 0
    """Days after which the tape of an archived session moves to the archive; 0 means never."""


class RunSettings(Section, frozen=True, kw_only=True):
    """How many runs and messages are accepted at once."""

    max_concurrent: Count = 64
    """Runs that are executed at the same time; further ones wait. Each principal may always have a sixteenth of them,
    at least one, even when others use all; while runs wait, the principal with the fewest running is next."""
    max_queued_inputs: Count = 16
    """Maximum number of waiting messages per session; further ones are refused."""
    max_open_runs: Count = 1000
    """Maximum number of unfinished runs per principal, including those that wait for an approval; further messages are
    refused."""


class Settings(Section, frozen=True, kw_only=True):
    """All sections."""

    http: HttpSettings = HttpSettings()
    grpc: GrpcSettings = GrpcSettings()
    gateway: GatewaySettings = GatewaySettings()
    journal: JournalSettings = JournalSettings()
    vault: VaultSettings = VaultSettings()
    model: ModelSettings = ModelSettings()
    spending: SpendingSettings = SpendingSettings()
    workspace: WorkspaceSettings = WorkspaceSettings()
    sandbox: SandboxSettings = SandboxSettings()
    mcp: McpSettings = McpSettings()
    runs: RunSettings = RunSettings()
    approvals: ApprovalSettings = ApprovalSettings()
    retention: RetentionSettings = RetentionSettings()
    limits: Limits = Limits()
