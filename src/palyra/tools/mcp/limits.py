"""Limits for what an MCP server sends, in the worker and in the daemon."""

import time

MAX_LINE_BYTES = 8 * 1024 * 1024
"""For one message, from the server and from the worker."""
MAX_RESULT_CHARS = 4 * 1024 * 1024
"""For the text of one result."""
MAX_LISTED = 1000
"""Tools that a server may list; a server with more is not used."""
MAX_PAGES = 50
MAX_TOOLS = 200
"""Tools of one server that may be used, after those that the configuration names."""
MAX_MESSAGES = 5000
MAX_BYTES = 64 * 1024 * 1024
WINDOW_SECONDS = 10.0
"""A server that sends more messages or bytes than these within this time floods."""
MAX_INVALID_MESSAGES = 20
"""Lines that are not messages: programs print one now and then, but must not do so often."""


class ServerUnusable(Exception):
    """The server cannot be used: it did not start, has ended, does not speak MCP, or sends too much."""


class MessageRateLimit:
    """Counts what a server sends: one that floods cannot be used."""

    def __init__(self) -> None:
        self._began, self._messages, self._size = time.monotonic(), 0, 0

    def add(self, messages: int, size: int) -> None:
        """Count messages and bytes; raise `ServerUnusable` if they are too many within the time."""
        self._messages, self._size = self._messages + messages, self._size + size
        if self._messages > MAX_MESSAGES or self._size > MAX_BYTES:
            if time.monotonic() - self._began < WINDOW_SECONDS:
                raise ServerUnusable(
                    f"it sent too much: {self._messages} messages, {self._size} bytes within {WINDOW_SECONDS:g} s"
                )
            self._began, self._messages, self._size = time.monotonic(), 0, 0


def first_fault(error: Exception) -> str:
    """Say what is wrong with a message, in the words of the first check that failed, and without its content."""
    faults = error.errors(include_url=False, include_input=False) if hasattr(error, "errors") else ()
    if not faults:
        return str(error)
    location = ".".join(map(str, faults[0]["loc"]))
    return f"{location}: {faults[0]['msg']}" if location else str(faults[0]["msg"])
