"""MCP servers: what the owner says about one, what it offers, and what was accepted of that."""

import hashlib
import json
import re
from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct

from palyra.core.tool import JsonObject, Risk

MAX_SERVERS = 32

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_URL = re.compile(r"https?://[^\s/@\\]+(/[^\s\\]*)?")
_VALUE = re.compile(r"([?&][^=&#]*=)[^&#]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_FOR_PROGRAMS = ("args", "env", "cwd", "sandbox", "network")
_FOR_URLS = ("headers", "allow_private")


class McpServer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server as the configuration names it: a program to start, or a URL."""

    command: str | None = None
    """The program of a server that is spoken to over pipes; looked for in `env.PATH`, or in the usual folders."""
    args: tuple[str, ...] = ()
    """What the program is given. Others on this machine can see it, so it must hold no secret."""
    env: dict[str, str] = {}
    """All that the program finds in its environment, besides PATH, HOME, USER, LANG and TMPDIR. A value may say where a
    secret is: `env:NAME`, `file:/path`, `keyring:SERVICE/NAME`, `vault:NAME`."""
    cwd: str | None = None
    """The folder that the program starts in; the agent's workspace if none is named."""
    sandbox: Literal["strict", "off"] = "strict"
    """`strict`: Palyra's own files and all other processes are out of the program's reach. `off`: it may do what you
    may do, and so may the agent through it."""
    writable: tuple[str, ...] = ()
    """Folders and files that the program may change in `strict`, besides temporary folders, the agent's workspace and
    a cache of its own. Everything else is read-only for it."""
    network: bool = True
    """The program may use the network."""
    url: str | None = None
    """The address of a server that speaks streamable HTTP."""
    headers: dict[str, str] = {}
    """Headers of every request to it; a value may say where a secret is, as in `env`."""
    allow_private: bool = False
    """Its address may be this machine's, or one of a private network. Palyra's own is refused all the same."""
    enabled: bool = True
    """Off keeps what was accepted, and starts nothing."""
    timeout_seconds: Annotated[int, Meta(ge=1, le=3600)] = 60
    """Seconds that one call may take."""
    tools: tuple[str, ...] | None = None
    """The tools that may be used, by the server's own names; all that are accepted if none are named."""
    risk: Risk | None = None
    """The risk of its calls at the least; `high` if nothing is said, `medium` for tools that claim to read only."""
    risks: dict[str, Risk] = {}
    """The risk of single tools, by the server's own names."""
    principals: tuple[str, ...] = ()
    """Who may use it besides the owner; `*` stands for everybody. Its credentials are the owner's."""


class ServerState(StrEnum):
    """How a server stands."""

    DISABLED = "disabled"
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    """It is tried again after a while."""


class ToolState(StrEnum):
    """Whether a tool is offered, and if not, why."""

    ACCEPTED = "accepted"
    NEW = "new"
    """Nobody has looked at it yet."""
    CHANGED = "changed"
    """It is not what was accepted any more."""
    REFUSED = "refused"
    UNUSABLE = "unusable"
    """Its definition can not be used."""
    LEFT_OUT = "left_out"
    """The configuration names other tools."""
    GONE = "gone"
    """It was accepted, and the server has it no more."""


class Definition(Struct, frozen=True, kw_only=True):
    """A tool as its server describes it, cleaned for models and people to read."""

    name: str
    """The server's own."""
    description: str
    parameters: JsonObject
    reads_only: bool = False
    """What the server claims; a hint."""
    digest: str
    """Of everything that the server says of it, before it was cleaned."""


class Pin(Struct, frozen=True, kw_only=True):
    """What the owner has decided about one tool of a server."""

    server: str
    place: str
    """Which program or URL the server was: another one is another server, whatever it is called."""
    definition: Definition
    accepted: bool
    decided_at: datetime
    decided_by: str


class McpTool(Struct, frozen=True, kw_only=True):
    """A tool of a server as it stands."""

    name: str
    """As agents and policies call it."""
    tool: str
    """The server's own name."""
    state: ToolState
    reason: str = ""
    """Why it can not be used, if so."""
    digest: str = ""
    risk: Risk = Risk.HIGH
    description: str = ""
    parameters: JsonObject = {}
    reads_only: bool = False
    """What the server claims; it never lowers the risk below medium."""
    diff: tuple[str, ...] = ()
    """From what was accepted to what it is now, line by line."""


class McpStanding(Struct, frozen=True, kw_only=True):
    """A server as it stands."""

    name: str
    transport: Literal["stdio", "http"]
    place: str
    """The command line, or the URL."""
    state: ServerState
    reason: str = ""
    """What went wrong last."""
    says: str = ""
    """What the server calls itself."""
    protocol: str = ""
    restarts: int = 0
    """How often it had to be started again."""
    retry_in_seconds: float | None = None
    tools: tuple[McpTool, ...] = ()

    def count(self, *states: ToolState) -> int:
        """Return how many of its tools are in one of these states."""
        return sum(tool.state in states for tool in self.tools)


def faults(name: str, server: McpServer) -> Iterator[tuple[str, str, str]]:
    """Say what is wrong with a server's settings: the key, what, and the remedy."""
    if not _NAME.fullmatch(name):
        yield "", f"{name[:60]!r} is no name for a server.", "Use up to 32 of a-z, 0-9, '-' and '_'."
    if (server.command is None) == (server.url is None):
        what = "has both a command and a url." if server.command is not None else "has neither a command nor a url."
        yield "command", what, "Name a program to start, or the address of a server, and not both."
    unfit = _FOR_URLS if server.command is not None else _FOR_PROGRAMS
    for key in unfit:
        if getattr(server, key) != getattr(_PLAIN, key):
            kind = "a url" if key in _FOR_URLS else "a command"
            yield key, f"{key} is only for a server with {kind}.", "Leave it out."
    if server.url is not None and not _URL.fullmatch(server.url):
        yield "url", "url is no address.", "Write it as https://example.org/mcp, without a name or password in it."
    if server.command is not None and (not server.command or "\0" in server.command + "".join(server.args)):
        yield "command", "command is empty, or holds a NUL.", "Name the program to start."
    yield from ((f"env.{key}", f"{key[:60]!r} is no variable.", "Name it A_B.") for key in server.env if _odd(key))
    for key, value in server.headers.items():
        if not _HEADER.fullmatch(key) or not value.isprintable():
            yield f"headers.{key[:60]}", f"the header {key[:60]!r} can not be sent.", "Use printable characters only."


def _odd(variable: str) -> bool:
    return not _VARIABLE.fullmatch(variable)


_PLAIN = McpServer()


def place_of(server: McpServer) -> str:
    """Return what a person is shown of where a server is."""
    return shown_url(server.url) if server.url is not None else " ".join((server.command or "", *server.args))


def shown_url(url: str) -> str:
    """Return an address as it may be shown: many a server takes its key in the query."""
    return _VALUE.sub(r"\1***", url)


def place_digest(server: McpServer) -> str:
    """Return what tells this program or URL from another."""
    parts = [server.url, server.command, *server.args]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def is_same_program(one: McpServer, other: McpServer) -> bool:
    """Tell whether a server need not be started again for its changed settings."""
    of_program = ("command", "args", "env", "cwd", "sandbox", "writable", "network")
    of_url = ("url", "headers", "allow_private")
    return all(getattr(one, key) == getattr(other, key) for key in (*of_program, *of_url, "enabled"))


def full_name(server: str, tool: str) -> str:
    """Return the name by which agents and policies know a tool."""
    return f"mcp.{server}.{tool}"


def risk_of(server: McpServer, definition: Definition) -> Risk:
    """Return how risky a call is at the least. A server's own word never lowers it below medium."""
    said = server.risks.get(definition.name, server.risk)
    return said if said is not None else Risk.MEDIUM if definition.reads_only else Risk.HIGH
