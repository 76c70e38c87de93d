"""The settings: frozen structs, one for each section of the file."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from palyra.core.budget import MAX_BUDGETS, Budget
from palyra.core.errors import Invalid
from palyra.core.limits import Limits
from palyra.core.mcp import MAX_SERVERS, McpServer
from palyra.core.model import MAX_PROVIDERS, ModelProvider, Rule
from palyra.core.routing import RoutingMode

DEFAULT_PORT = 7717
DEFAULT_GRPC_PORT = 7718
MAX_RULES = 64

Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=1, le=100_000)]
Rate = Annotated[int, Meta(ge=1, le=10_000_000)]
HostName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]+$", max_length=253)]
Origin = Annotated[str, Meta(pattern=r"^https?://[^/\s]+$", max_length=300)]


class SettingsInvalid(Invalid):
    """The settings can not be used."""


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all sections have in common: no key that nobody knows."""


class HttpSettings(Section, frozen=True, kw_only=True):
    """Where the HTTP door is, and who may knock."""

    host: str = "127.0.0.1"
    """The address to answer at. One that other machines can reach needs TLS, and `allow_remote`."""
    port: Port | None = None
    """A port that must be had; None takes 7717, or any free one if that is taken."""
    tls_certificate: str | None = None
    """A file with the certificate, and those that it is signed by; HTTP and gRPC then speak TLS only."""
    tls_key: str | None = None
    """The file with the certificate's key."""
    allow_remote: bool = False
    """Other machines may connect. Said once by the host, and once more here."""
    names: tuple[HostName, ...] = ()
    """Further names and addresses by which clients reach the daemon, over HTTP and gRPC. Its own addresses and
    `localhost` need not be named; a request for any other host is refused."""
    origins: tuple[Origin, ...] = ()
    """Web pages that may send requests, as `https://app.example.com`; those of every other origin are refused."""


class GrpcSettings(Section, frozen=True, kw_only=True):
    """Where the gRPC door is; it has the certificate of the HTTP door."""

    host: str = "127.0.0.1"
    """The address to answer at. One that other machines can reach needs what it needs in [http]."""
    port: Port | None = None
    """A port that must be had; None takes 7718, or any free one if that is taken."""


class GatewaySettings(Section, frozen=True, kw_only=True):
    """How much the doors take on, HTTP and gRPC together."""

    streams_per_token: Count = 64
    """Streams that one token may have open."""
    streams: Count = 2048
    """Streams that may be open in all."""
    requests_per_second: Rate = 2000
    """Requests of one principal, over time."""
    request_burst: Rate = 4000
    """Requests of one principal, at once after a pause."""
    connections: Annotated[int, Meta(ge=16, le=100_000)] = 4096
    """Connections that may be open; fewer if the machine allows fewer file descriptors. A quarter is for clients that
    have not shown a valid token, and half of that quarter for those of one address."""
    connect_seconds: Annotated[int, Meta(ge=1, le=600)] = 10
    """Seconds that a client has to show a valid token, and to send the head of a request."""
    slow_reader_seconds: Annotated[int, Meta(ge=1, le=3600)] = 30
    """Seconds for which a client may leave unread what is sent to it; it is then cut off, and can resume."""


class JournalSettings(Section, frozen=True, kw_only=True):
    """Where the journal is kept."""

    database_url: str | None = None
    """A PostgreSQL address, or where it stands (`env:NAME`, `file:/path`, `keyring:SERVICE/NAME`); SQLite in the home
    if there is none."""


class VaultSettings(Section, frozen=True, kw_only=True):
    """How secrets are kept."""

    key: str | None = None
    """Where the vault's key stands (`env:NAME`, `file:/path`, `keyring:SERVICE/NAME`), as 64 hexadecimal digits; a file
    of the home, `vault.key`, made at first use, if none is named."""


class ModelSettings(Section, frozen=True, kw_only=True):
    """Which model answers."""

    provider: str = "embedded"
    """Who answers: `PROVIDER` or `PROVIDER/MODEL` of a provider below, `embedded`, the small built-in helper, or
    `scripted`, which plays a file."""
    fallback: tuple[str, ...] = ()
    """Who answers when that one can not, in this order."""
    routing: RoutingMode = RoutingMode.SUGGEST
    """`suggest`: the rules below only say whom they would choose. `enforce`: they choose."""
    rules: Annotated[tuple[Rule, ...], Meta(max_length=MAX_RULES)] = ()
    """Whom to ask for what, `[[model.rules]]`; the first that fits holds."""
    max_output_tokens: Annotated[int, Meta(ge=16, le=1_000_000)] = 8192
    """The longest answer that is asked for; what a turn may cost depends on it."""
    embeddings: str | None = None
    """`PROVIDER/MODEL` that `/v1/embeddings` asks, of a provider below with the dialect `openai` or `responses`."""
    script: str | None = None
    """The file that the `scripted` provider plays."""
    providers: Annotated[dict[str, ModelProvider], Meta(max_length=MAX_PROVIDERS)] = {}
    """One table for each, `[model.providers.NAME]`; `palyra providers add` writes it."""


class SpendingSettings(Section, frozen=True, kw_only=True):
    """What models may cost."""

    currency: Annotated[str, Meta(pattern="^[A-Z]{3}$")] = "USD"
    """What the prices are in; the ones that come along are in US dollars."""
    budgets: Annotated[dict[str, Budget], Meta(max_length=MAX_BUDGETS)] = {}
    """One table for each, `[spending.budgets.NAME]`; `palyra usage` shows how they stand."""


class WorkspaceSettings(Section, frozen=True, kw_only=True):
    """Where the agent works."""

    root: str | None = None
    """The folder that tools may see; `workspace` in the home folder if none is given."""


class ApprovalSettings(Section, frozen=True, kw_only=True):
    """Questions to the owner about what an agent wants to do."""

    expire_seconds: Annotated[int, Meta(ge=10, le=30 * 86400)] = 86400
    """Seconds for which a question stays open; then the call is denied and the run goes on."""
    inbox: bool = False
    """Somebody looks into `palyra approvals` from time to time, so that dangerous calls may wait there; without it they
    are denied when no client is attached."""


class SandboxSettings(Section, frozen=True, kw_only=True):
    """What the programs that an agent runs are kept from."""

    tier: Literal["strict", "guarded", "off"] = "strict"
    """`strict` (bubblewrap), `guarded` (Landlock), or `off`, where a program may do what you may do. A tier that this
    machine lacks is refused, not replaced; `palyra sandbox check` says which ones it has."""
    memory_mb: Annotated[int, Meta(ge=64, le=1_048_576)] = 4096
    """Mebibytes of memory for a program and all that it starts."""
    processes: Annotated[int, Meta(ge=8, le=32_768)] = 256
    """Processes for a program and all that it starts."""
    file_mb: Annotated[int, Meta(ge=1, le=1_048_576)] = 512
    """Mebibytes of the largest file that a program may write."""


class McpSettings(Section, frozen=True, kw_only=True):
    """MCP servers, whose tools agents may use once you have accepted them."""

    servers: Annotated[dict[str, McpServer], Meta(max_length=MAX_SERVERS)] = {}
    """One table for each, `[mcp.servers.NAME]`, with `command` or `url`; `palyra mcp list` shows how they stand."""


class RetentionSettings(Section, frozen=True, kw_only=True):
    """How long things are kept."""

    archived_days: Annotated[int, Meta(ge=0, le=36_500)] = 0
    """Days after which the tape of an archived session moves to the archive; 0 keeps it for ever."""


class RunSettings(Section, frozen=True, kw_only=True):
    """How much is done at once."""

    concurrency: Count = 64
    """Runs that are carried at the same time; further ones wait. Each principal has a sixteenth of them for itself, one
    at the least, also when others have taken all; while runs wait, the principal with the fewest running is next."""
    queued_inputs: Count = 16
    """Messages that may wait in one session; further ones are refused."""
    open_runs: Count = 1000
    """Runs of one principal that have not ended, those that wait for an answer included; further messages are
    refused."""


class Settings(Section, frozen=True, kw_only=True):
    """All of them."""

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
