"""An MCP server made with the official SDK, over stdio or, given a port, streamable HTTP. Started as a program.

What it says of its tool `note` is read from the file that the variable MCP_WORDS names, so that a test can change it.
"""

import os
import signal
import sys
import time
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("notebook", version="1.2")
words = os.environ.get("MCP_WORDS")


def note(text: str, times: int = 1) -> str:
    return f"noted {text!r} {times}x"


def environment() -> str:
    """Say what is in the environment."""
    return "\n".join(f"{name}={value}" for name, value in sorted(os.environ.items()))


def look(path: str) -> str:
    """Read a file or list a folder."""
    place = Path(path)
    try:
        return ", ".join(sorted(entry.name for entry in place.iterdir())) if place.is_dir() else place.read_text()
    except OSError as error:
        return f"{type(error).__name__}"


def wait(seconds: float) -> str:
    """Take a while."""
    time.sleep(seconds)
    return "waited"


def end() -> str:
    """End at once, as a crash would."""
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def much(size: int) -> str:
    """Say much."""
    return "x" * size


def processes() -> str:
    """List the processes that can be seen."""
    return " ".join(name for name in os.listdir("/proc") if name.isdigit())


server.add_tool(note, description=Path(words).read_text() if words else "Write a note.")
for tool in (environment, look, wait, end, much, processes):
    server.add_tool(tool)

if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
