"""MCP servers: their settings, the tools they offer, and the tools that were accepted."""

import hashlib
import json
import re
from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct

from palyra.core.errors import NotFound
from palyra.core.tool import JsonObject, Risk

MAX_SERVERS = 32

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_URL = re.compile(r"https?://[^\s/@\\]+(/[^\s\\]*)?")
_VALUE = re.compile(r"([?&][^=&#]*=)[^&#]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_FOR_PROGRAMS = ("args", "env", "cwd", "sandbox", "network")
_FOR_URLS = ("headers", "allow_private")


class McpToolNotFound(NotFound):
    """The MCP server has no such tool. `palyra mcp show` lists its tools."""


class McpServer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server as the configuration defines it: a program to start, or a URL."""

    command: str | None = None
    """The program of a server that uses stdio; searched in `env.PATH`, or in the usual folders."""
    args: tuple[str, ...] = ()
    """The program's arguments. Other users of this machine can see them, so they must not contain secrets."""
    env: dict[str, str] = {}
    """All of the program's environment besides PATH, HOME, USER, LANG and TMPDIR. A value may be a secret reference:
    `env:NAME`, `file:/path`, `keyring:SERVICE/NAME`, `vault:NAME`."""
    cwd: str | None = None
    """The program's working directory; the agent's workspace if none is set."""
    sandbox: Literal["strict", "off"] = "strict"
    """`strict`: the program cannot reach Palyra's own files or other processes. `off`: it may do what you may do, and
    so may the agent through it."""
    writable: tuple[str, ...] = ()
    """Folders and files that the program may change in `strict`, besides temporary folders, the agent's workspace and a
    cache of its own. Everything else is read-only."""
    network: bool = True
    """The program may use the network."""
    url: str | None = None
    """The URL of a server that uses streamable HTTP."""
    headers: dict[str, str] = {}
    """Headers of every request; a value may be a secret reference, as in `env`."""
    allow_private: bool = False
    """Its address may be on this machine or in a private network. Palyra's own address is refused in any case."""
    enabled: bool = True
    """When off, the server is not started, and accepted tools stay accepted."""
    timeout_seconds: Annotated[int, Meta(ge=1, le=3600)] = 60
    """The timeout of one call, in seconds."""
    tools: tuple[str, ...] | None = None
    """The tools that may be used, by the server's own names; all accepted tools if not set."""
    risk: Risk | None = None
    """The minimum risk of its calls; the default is `high`, and `medium` for tools that claim to be read-only."""
    risks: dict[str, Risk] = {}
    """The minimum risk of single tools, by the server's own names."""
    principals: tuple[str, ...] = ()
    """Who may use it besides the owner; `*` means everyone. It works with the owner's credentials."""


class McpServerState(StrEnum):
    """The state of a server."""

    DISABLED = "disabled"
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    """It failed, and is retried after a delay."""


class McpToolState(StrEnum):
    """Whether a tool is offered, and if not, why."""

    ACCEPTED = "accepted"
    NEW = "new"
    """The owner has not reviewed it yet."""
    CHANGED = "changed"
    """It changed since it was accepted."""
    REJECTED = "rejected"
    UNUSABLE = "unusable"
    """Its definition cannot be used."""
    HIDDEN = "hidden"
    """The configuration does not list it."""
    GONE = "gone"
    """It was accepted, and the server no longer has it."""


class McpToolDefinition(Struct, frozen=True, kw_only=True):
    """A tool as its server describes it, cleaned so that models and people can read it safely."""

    name: str
    """The server's own name for it."""
    description: str
    parameters: JsonObject
    reads_only: bool = False
    """What the server claims; only a hint."""
    digest: str
    """The digest of everything that the server says about it, before it was cleaned."""


class McpToolDecision(Struct, frozen=True, kw_only=True):
    """What the owner decided about one tool of a server."""

    server: str
    server_digest: str
    """The program or URL of the server: another program or URL is another server, whatever its name."""
    definition: McpToolDefinition
    accepted: bool
    decided_at: datetime
    decided_by: str


class McpTool(Struct, frozen=True, kw_only=True):
    """A tool of a server and its current state."""

    name: str
    """The name that agents and policies use."""
    tool: str
    """The server's own name."""
    state: McpToolState
    reason: str = ""
    """Why it cannot be used, if so."""
    digest: str = ""
    risk: Risk = Risk.HIGH
    description: str = ""
    parameters: JsonObject = {}
    reads_only: bool = False
    """What the server claims; it never lowers the risk below medium."""
    diff: tuple[str, ...] = ()
    """The diff from what was accepted to the current definition."""


class McpServerStatus(Struct, frozen=True, kw_only=True):
    """A server and its current state."""

    name: str
    transport: Literal["stdio", "http"]
    address: str
    """The command line, or the URL."""
    state: McpServerState
    reason: str = ""
    """The last error."""
    server_name: str = ""
    """What the server calls itself."""
    protocol: str = ""
    restarts: int = 0
    """How often it was restarted."""
    retry_in_seconds: float | None = None
    tools: tuple[McpTool, ...] = ()

    def count(self, *states: McpToolState) -> int:
        """Return how many of its tools are in one of these states."""
        return sum(tool.state in states for tool in self.tools)


def server_problems(name: str, server: McpServer) -> Iterator[tuple[str, str, str]]:
    """Yield what is wrong with a server's settings: the key, the problem and the fix."""
    if not _NAME.fullmatch(name):
        yield "", f"{name[:60]!r} is not a valid server name.", "Use up to 32 characters of a-z, 0-9, '-' and '_'."
    if (server.command is None) == (server.url is None):
        what = "has both a command and a url." if server.command is not None else "has neither a command nor a url."
        yield "command", what, "Set exactly one of the two: a program to start, or the URL of a server."
    unfit = _FOR_URLS if server.command is not None else _FOR_PROGRAMS
    for key in unfit:
        if getattr(server, key) != getattr(_PLAIN, key):
            kind = "a url" if key in _FOR_URLS else "a command"
            yield key, f"{key} applies only to a server with {kind}.", "Remove it."
    if server.url is not None and not _URL.fullmatch(server.url):
        yield "url", "url is not a valid URL.", "Write it as https://example.org/mcp, without a user name or password."
    if server.command is not None and (not server.command or "\0" in server.command + "".join(server.args)):
        yield "command", "command is empty or contains a NUL character.", "Set it to the program to start."
    yield from (
        (f"env.{key}", f"{key[:60]!r} is not a valid variable name.", "Write it like A_B.")
        for key in server.env
        if _odd(key)
    )
    for key, value in server.headers.items():
        if not _HEADER.fullmatch(key) or not value.isprintable():
            yield f"headers.{key[:60]}", f"the header {key[:60]!r} cannot be sent.", "Use printable characters only."


def _odd(variable: str) -> bool:
    return not _VARIABLE.fullmatch(variable)


_PLAIN = McpServer()


def server_address(server: McpServer) -> str:
    """Return the address of a server as it is shown to people."""
    return display_url(server.url) if server.url is not None else " ".join((server.command or "", *server.args))


def display_url(url: str) -> str:
    """Return a URL as it may be shown, with the values in its query hidden: many servers take their key there."""
    return _VALUE.sub(r"\1***", url)


def server_digest(server: McpServer) -> str:
    """Return the digest that distinguishes this program or URL from others."""
    parts = [server.url, server.command, *server.args]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def is_same_program(one: McpServer, other: McpServer) -> bool:
    """Return whether a server can keep running with its changed settings."""
    of_program = ("command", "args", "env", "cwd", "sandbox", "writable", "network")
    of_url = ("url", "headers", "allow_private")
    return all(getattr(one, key) == getattr(other, key) for key in (*of_program, *of_url, "enabled"))


def full_name(server: str, tool: str) -> str:
    """Return the name of a tool that agents and policies use."""
    return f"mcp.{server}.{tool}"


def risk_of(server: McpServer, definition: McpToolDefinition) -> Risk:
    """Return the minimum risk of a call. What a server claims never lowers it below medium."""
    risk = server.risks.get(definition.name, server.risk)
    return risk if risk is not None else Risk.MEDIUM if definition.reads_only else Risk.HIGH
