"""Tools: their descriptions, calls and outcomes."""

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
    """The policy's decision about a call."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class CallOutcome(StrEnum):
    """How a call ended."""

    OK = "ok"
    ERROR = "error"
    DENIED = "denied"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    SKIPPED = "skipped"


class FolderAccess(StrEnum):
    """What may be done in a folder."""

    READ = "read"
    WRITE = "write"


class CallRuntime(StrEnum):
    """What executes a call."""

    INTERNAL = "internal"
    """The daemon itself."""
    SHELL = "shell"
    """A process in the sandbox."""
    WASM = "wasm"
    """A module of a plugin."""
    MCP = "mcp"
    """A configured MCP server."""


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool as a model sees it, and its properties for the loop."""

    name: str
    description: str
    parameters: JsonObject
    risk: Risk = Risk.LOW
    repeatable: bool = False
    """It may run again after an interruption: the second run does no harm."""
    read_only: bool = False
    """It changes nothing, so several may run in parallel."""


class MarkerHandling(StrEnum):
    """How a tool handles markers in its arguments, whose values did not come with the call itself."""

    REFUSED = "refused"
    """A call with one is refused: its value would be sent elsewhere."""
    FILE = "file"
    """The tool restores the values of a file in that file, and refuses others."""
    TEXT = "text"
    """They stay markers: the tool's output is recorded."""


class ToolCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call as the model proposed it."""

    call_id: CallId
    tool: str
    arguments: JsonObject
    malformed: str = ""
    """Why the arguments could not be parsed, if so; then `arguments` is empty."""
