"""What the daemon sends to an MCP worker: first how to reach the server, then one order per line."""

import msgspec
from msgspec import Struct

from palyra.core.tool import JsonObject


class ProgramLaunch(Struct, frozen=True, kw_only=True, tag="program"):
    """A server that is a program, with secrets filled in."""

    command: str
    args: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    cache: str
    """The folder that the program keeps over restarts."""


class UrlLaunch(Struct, frozen=True, kw_only=True, tag="url"):
    """A server behind a URL, with secrets filled in."""

    url: str
    headers: dict[str, str]
    allow_private: bool
    own_ports: tuple[int, ...]
    """Palyra's ports, which must not be reached."""
    timeout_seconds: float


class CallOrder(Struct, frozen=True, tag="call"):
    """Call a tool."""

    id: int
    tool: str
    arguments: JsonObject


class ListOrder(Struct, frozen=True, tag="list"):
    """List the tools."""

    id: int


class CancelOrder(Struct, frozen=True, tag="cancel"):
    """Cancel an earlier order."""

    id: int


Launch = ProgramLaunch | UrlLaunch
Request = CallOrder | ListOrder
Order = Request | CancelOrder

read_launch = msgspec.json.Decoder[Launch](Launch).decode
read_order = msgspec.json.Decoder[Order](Order).decode
