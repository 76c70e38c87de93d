"""Secrets: their names, their scopes, and values that do not print themselves."""

import re
from datetime import datetime

from msgspec import Struct

from palyra.core.errors import Invalid
from palyra.core.ids import AgentId, PrincipalId, parse_ulid

MAX_VALUE_BYTES = 64 * 1024
MAX_HEADER_BYTES = 8 * 1024
MAX_ENTRIES = 50
"""The maximum number of hosts, agents or tools in one scope."""
MAX_PORT = 65535
VALUE_PLACEHOLDER = "{}"
"""The placeholder for the value in a format."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_TOOL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}")
_PRINTABLE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")

# Headers that control the transport; they do not identify the sender.
_CARRIED = frozenset(
    "accept-encoding connection content-length expect host keep-alive te trailer transfer-encoding upgrade via".split()
)


class SecretNameInvalid(Invalid):
    """The secret's name is not valid. Use 1 to 64 letters, digits and . _ -, beginning with a letter or a digit."""


class SecretValueInvalid(Invalid):
    """The value cannot be stored as this secret."""


class SecretScopeInvalid(Invalid):
    """The scope of the secret is not valid."""


class SecretScope(Struct, frozen=True, kw_only=True):
    """What a secret may be used for. Without a host no tool ever gets it: only the configuration can refer to it."""

    hosts: tuple[str, ...] = ()
    """The hosts to which a tool may send it, each with its full name, and with its port if that is not 443."""
    header: str = "Authorization"
    """The header in which it is sent."""
    format: str = "Bearer {}"
    """The format of the header; `{}` is the placeholder for the value."""
    agents: tuple[AgentId, ...] = ()
    """The agents that may use it; every agent of its owner if empty."""
    tools: tuple[str, ...] = ()
    """The tools that may use it; every tool that takes credentials if empty."""


class SecretRecord(Struct, frozen=True, kw_only=True):
    """A secret without its value."""

    name: str
    principal: PrincipalId
    version: int
    """How often it was set."""
    scope: SecretScope
    created_at: datetime
    updated_at: datetime
    last_used_at: datetime | None = None


class SealedRecord(Struct, frozen=True, kw_only=True):
    """A secret that was found in a text, without its value."""

    sealed_id: str
    origins: tuple[str, ...]
    """Where it came from: `message`, `file:PATH`, `tool:NAME`, or a call that contained it."""
    created_at: datetime


class SecretValue:
    """A secret value that prints its name, never itself."""

    __slots__ = ("_value", "name")

    def __init__(self, name: str, value: bytes) -> None:
        self.name = name
        self._value = value

    def reveal(self) -> bytes:
        """Return the value itself. Only the code that sends it may use it."""
        return self._value

    def __repr__(self) -> str:
        return f"SecretValue({self.name!r})"


def check_name(name: str) -> str:
    """Return the name if it is valid for a secret."""
    if not NAME.fullmatch(name):
        raise SecretNameInvalid
    return name


def check_scope(scope: SecretScope) -> SecretScope:
    """Return the scope in canonical form, or raise and say what is wrong with it."""
    for what, entries in (("hosts", scope.hosts), ("agents", scope.agents), ("tools", scope.tools)):
        if len(entries) > MAX_ENTRIES:
            raise SecretScopeInvalid(f"A secret may name at most {MAX_ENTRIES} {what}; this one names {len(entries)}.")
    header = scope.header.lower()
    if not _HEADER.fullmatch(scope.header) or header in _CARRIED or header.startswith("proxy-"):
        raise SecretScopeInvalid(f"A secret cannot be sent in the header {scope.header[:64]!r}.")
    if scope.format.count(VALUE_PLACEHOLDER) != 1 or len(scope.format) > 200 or not _PRINTABLE.fullmatch(scope.format):
        raise SecretScopeInvalid("The format must contain the placeholder {} exactly once, and printable ASCII only.")
    for tool in scope.tools:
        if not _TOOL.fullmatch(tool):
            raise SecretScopeInvalid(f"{tool[:60]!r} is not a valid tool name.")
    return SecretScope(
        hosts=tuple(sorted({host_name(host) for host in scope.hosts})),
        header=scope.header,
        format=scope.format,
        agents=tuple(sorted({AgentId(parse_ulid(agent, "agent id")) for agent in scope.agents})),
        tools=tuple(sorted(set(scope.tools))),
    )


def check_value(value: bytes, scope: SecretScope) -> bytes:
    """Return the value if it may be stored: any bytes, NUL too, but one that is sent in a header must fit into one."""
    if not value:
        raise SecretValueInvalid("The value is empty. Nothing was stored.")
    if len(value) > MAX_VALUE_BYTES:
        raise SecretValueInvalid("The value is larger than 64 KiB (65,536 bytes). Nothing was stored.")
    if scope.hosts and (len(value) > MAX_HEADER_BYTES or not _PRINTABLE.fullmatch(value.decode("latin-1"))):
        raise SecretValueInvalid(
            "A value that is sent in a header must be printable ASCII of at most 8 KiB, without line "
            "breaks or spaces at either end. Nothing was stored."
        )
    return value


def host_name(host: str) -> str:
    """Return a host's name in canonical form: lower case, no trailing dot, IDNA for characters beyond ASCII.

    With a port, as in `api.example.org:8443`, it is another service; without one the port is 443.
    """
    full_text, colon, port = host.partition(":")
    try:
        name = full_text.rstrip(".").encode("idna").decode("ascii").lower()
    except UnicodeError:
        name = ""
    has_port = _PORT.fullmatch(port) and int(port) <= MAX_PORT and port != "443"
    if not _HOST.fullmatch(name) or (colon and not has_port):
        raise SecretScopeInvalid(
            f"{host[:80]!r} is not a host name. Write it like api.example.org, without scheme or path; "
            "add the port if it is not 443, as in api.example.org:8443."
        )
    return name + colon + port


def may_use(scope: SecretScope, *, host: str, agent_id: AgentId, tool: str) -> bool:
    """Return whether an agent's tool may send the secret to a host, whose name is in canonical form."""
    return host in scope.hosts and agent_id in (scope.agents or (agent_id,)) and tool in (scope.tools or (tool,))


def collide(one: SecretScope, other: SecretScope) -> bool:
    """Return whether a request could need both secrets in the same header."""
    return (
        one.header.lower() == other.header.lower()
        and not set(one.hosts).isdisjoint(other.hosts)
        and _meet(one.agents, other.agents)
        and _meet(one.tools, other.tools)
    )


def header_value(scope: SecretScope, value: bytes) -> str:
    """Return the value of the secret's header."""
    return scope.format.replace(VALUE_PLACEHOLDER, value.decode("latin-1"))


def _meet(some: tuple[str, ...], others: tuple[str, ...]) -> bool:
    # An empty list means all.
    return not some or not others or not set(some).isdisjoint(others)
