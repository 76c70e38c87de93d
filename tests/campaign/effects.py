"""What the agents do in a campaign, and how often it happened, counted where the journal has no part in it.

Every call carries a token of its own: the text of the message that it follows from. A token is a line of a file, the
name of a file, or an argument that a server outside counts. The files and the server say how often each took effect.
"""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from time import sleep
from typing import Any

Json = Any

SERVER = "counter"
COUNT = f"mcp.{SERVER}.count"
FREE, ASKED = "free", "asked"
"""Folders of the workspace: in the first, files are changed and programs are run without asking."""
SHARED = "shared.txt"
HEAD = "first line"
_MCP_DELAYS = (0.0, 0.0, 0.1, 0.4)

_DONE = [{"do": "delay", "ms": 5}, {"do": "text", "text": "Done: {input}", "chunk": 6, "delay_ms": 5}]
_APPEND = {"path": f"{FREE}/{SHARED}", "text": "append {input}\n", "mode": "append"}
_ASKED = {"path": f"{ASKED}/{SHARED}", "text": "asked {input}\n", "mode": "append"}
_PATCH = f"--- a/{FREE}/{SHARED}\n+++ b/{FREE}/{SHARED}\n@@ -1 +1,2 @@\n {HEAD}\n+patch {{input}}\n"
_PAIR = _PATCH.replace("patch ", "pair ") + (
    f"--- a/{FREE}/second.txt\n+++ b/{FREE}/second.txt\n@@ -1 +1,2 @@\n {HEAD}\n+pair {{input}}\n"
)
_SHELL = 'sleep 0.05; echo "{kind} {{input}}" >> {kind}.txt; sleep 0.3'


def _call(tool: str, **arguments: Json) -> Json:
    return {"do": "call", "tool": tool, "arguments": arguments}


_CALLS = {
    "append": _call("files.write", **_APPEND),
    "asked": _call("files.write", **_ASKED),
    "create": _call("files.write", path=f"{FREE}/{{input}}.txt", text="create {input}\n"),
    "patch": _call("files.patch", patch=_PATCH),
    "pair": _call("files.patch", patch=_PAIR),
    "shell": _call("shell.run", command=_SHELL.format(kind="shell"), access="write"),
    "quick": _call("shell.run", command=_SHELL.format(kind="quick"), access="write", folder=FREE),
    "count": _call(COUNT, token="count {input}"),
}
_LOOK = [_call("time.now"), _call("files.list")]
_TURNS: dict[str, list[list[Json]]] = {
    "say": [],
    "look": [_LOOK],
    "append": [[_CALLS["append"]]],
    "mix": [[_CALLS["append"], _CALLS["patch"], *_LOOK], [_CALLS["create"], _CALLS["pair"]]],
    "asked": [[_CALLS["asked"]], [_CALLS["append"]]],
    "shell": [[_CALLS["shell"]], [_CALLS["patch"]]],
    "quick": [[_CALLS["quick"], _CALLS["append"]]],
    "both": [[_CALLS["append"], _CALLS["shell"], _CALLS["asked"]]],
    "child": [[_call("agent.delegate", task="mix-below-{input}"), _CALLS["append"]]],
    "family": [
        [_call("agent.delegate", task="shell-below-{input}"), _call("agent.delegate", task="look-below-{input}")]
    ],
    "count": [[_CALLS["count"], _CALLS["append"]], [_CALLS["pair"]]],
}
KINDS = tuple(_TURNS)
WEIGHTS = (2, 1, 3, 4, 2, 2, 4, 1, 3, 1, 0)
"""How often messages of each kind are sent; those that a server counts are sent where there is one."""


def script() -> Json:
    """Return the model: what a message begins with says which calls follow from it."""
    rules = [
        {"when": {"matches": f"^{kind}-", "tools": True}, "turns": [*turns, _DONE]} for kind, turns in _TURNS.items()
    ]
    return {"rules": rules, "default": _DONE}


def policy(workspace: Path) -> str:
    """Return what is allowed without asking; everything else that changes something is asked about."""
    return (
        f'@id("campaign-files")\n@reason("Files of this folder may be changed.")\n'
        f'permit (principal, action == Action::"run", resource in Family::"files")\n'
        f'when {{ context.common_folders.contains("{workspace / FREE}") }};\n'
        f'@id("campaign-programs")\n@reason("Programs may be run in this folder.")\n'
        f'permit (principal, action == Action::"run", resource == Tool::"shell.run")\n'
        f'when {{ context.common_folders.contains("{workspace / FREE}") }};\n'
        f'@id("campaign-count")\n@reason("It may count.")\n'
        f'permit (principal, action == Action::"run", resource == Tool::"{COUNT}");\n'
        # Else everything would be asked about once a server's result is part of a conversation.
        '@id("untrusted-text-asks")\n@reason("Never.")\n'
        'forbid (principal, action == Action::"run", resource) when { false };\n'
    )


def prepare(workspace: Path) -> None:
    """Make the files that several runs change."""
    for name in (f"{FREE}/{SHARED}", f"{FREE}/second.txt", f"{ASKED}/{SHARED}"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(f"{HEAD}\n")


def tokens(tool: str, arguments: Json) -> list[str]:
    """Return what a call leaves behind once if it takes effect; nothing for a call that changes nothing."""
    if tool == "files.write":
        return [arguments["text"].strip()]
    if tool == "files.patch":
        return [f"{line[1:]} {number}" for number, line in enumerate(_added(arguments["patch"]))]
    if tool == "shell.run":
        return [arguments["command"].split('"')[1]]
    return [arguments["token"]] if tool == COUNT else []


def _added(patch: str) -> list[str]:
    return [line for line in patch.splitlines() if line.startswith("+") and not line.startswith("+++")]


def count(workspace: Path, served: "Counting | None") -> Counter[str]:
    """Return how often each token is found outside the journal."""
    found: Counter[str] = Counter()
    for path in workspace.rglob("*.txt"):
        for line in path.read_text().splitlines():
            # A patch is numbered by its files, so that the two lines of a pair are two effects.
            number = " 1" if path.name == "second.txt" else " 0"
            found[line + number if line.startswith(("patch ", "pair ")) else line] += 1
    if served is not None:
        found += served.calls
    return found


class Counting:
    """An MCP server outside the daemon that counts the calls of each token, and takes its time for some."""

    def __init__(self, chance: Random) -> None:
        self.calls: Counter[str] = Counter()
        self._chance = chance
        self._lock = threading.Lock()
        self.url = ""

    def answer(self, request: Json) -> Json:
        """Return the result of a request."""
        match request["method"]:
            case "initialize":
                about = {"name": SERVER, "version": "1"}
                wanted = request["params"]["protocolVersion"]
                return {"protocolVersion": wanted, "capabilities": {"tools": {}}, "serverInfo": about}
            case "tools/list":
                schema = {"type": "object", "properties": {"token": {"type": "string"}}, "required": ["token"]}
                return {"tools": [{"name": "count", "description": "Count a token.", "inputSchema": schema}]}
            case "tools/call":
                with self._lock:
                    before, after = self._chance.choice(_MCP_DELAYS), self._chance.choice(_MCP_DELAYS)
                sleep(before)
                with self._lock:
                    self.calls[request["params"]["arguments"]["token"]] += 1
                sleep(after)
                return {"content": [{"type": "text", "text": "counted"}]}
            case _:
                return {}


@contextmanager
def counting(chance: Random) -> Iterator[Counting]:
    """Serve on a free port of this machine, on threads of its own, for as long as the context lasts."""
    served = Counting(chance)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            has_answer = "id" in request
            result = served.answer(request) if has_answer else None
            body = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode() if has_answer else b""
            self._reply(200 if has_answer else 202, body)

        def do_GET(self) -> None:
            self._reply(405, b"")

        do_DELETE = do_GET

        def _reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a killed caller is what a campaign is about

    with Server(("127.0.0.1", 0), Handler) as server:
        served.url = f"http://127.0.0.1:{server.server_address[1]}/mcp"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield served
        server.shutdown()
