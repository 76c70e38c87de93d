"""What the agent can do: the description of a tool, a call of it, and what came of the call."""

from enum import StrEnum
from typing import Any

from msgspec import Struct

from palyra.core.ids import CallId

JsonObject = dict[str, Any]

MAX_RESULT_BYTES = 16 * 1024


class Risk(StrEnum):
    """How much harm a call can do."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class Verdict(StrEnum):
    """What the policy says about a call."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Outcome(StrEnum):
    """How a call ended."""

    OK = "ok"
    ERROR = "error"
    DENIED = "denied"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    SKIPPED = "skipped"


class Access(StrEnum):
    """What may be done in a folder."""

    READ = "read"
    WRITE = "write"


class Runtime(StrEnum):
    """What carries a call out."""

    INTERNAL = "internal"
    """The daemon itself."""
    SHELL = "shell"
    """A process in the sandbox."""
    WASM = "wasm"
    """A module of a plugin."""
    MCP = "mcp"
    """A server that the configuration lists."""


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool as a model sees it, and as the loop must treat it."""

    name: str
    description: str
    parameters: JsonObject
    risk: Risk = Risk.LOW
    repeatable: bool = False
    """May run again after an interruption: the second run does no harm."""
    read_only: bool = False
    """Changes nothing, so several may run at once."""


class Markers(StrEnum):
    """What a tool makes of markers in its arguments, whose values did not come with the call itself."""

    REFUSED = "refused"
    """A call with one is refused: its value would get somewhere else."""
    FILE = "file"
    """The tool puts the values of a file back into that file, and refuses others."""
    TEXT = "text"
    """They stay markers: what the tool makes of them is recorded."""


class ToolCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call as the model proposed it."""

    call_id: CallId
    tool: str
    arguments: JsonObject
    malformed: str = ""
    """Why the arguments could not be read, if so; then `arguments` is empty."""
