"""How much is taken from an MCP server, on its way through the worker and in the daemon."""

import time

MOST_LINE_BYTES = 8 * 1024 * 1024
"""Of one message, from the server as from the worker."""
MOST_RESULT_CHARS = 4 * 1024 * 1024
"""Of the text of one result."""
MOST_LISTED = 1000
"""Tools that a server may list; a server with more is not used."""
MOST_PAGES = 50
MOST_TOOLS = 200
"""Tools of one server that may be used, after those that the configuration names."""
MOST_MESSAGES = 5000
MOST_BYTES = 64 * 1024 * 1024
WINDOW_SECONDS = 10.0
"""A server that sends more messages or bytes than these within this time floods."""
MOST_NONSENSE = 20
"""Lines that are no messages: programs print the odd one, and must not make a habit of it."""


class Unusable(Exception):
    """The server can not be used: it is not there, has ended, speaks nonsense, or sends more than anybody can need."""


class Flow:
    """What comes of a server, counted: one that floods can not be used."""

    def __init__(self) -> None:
        self._began, self._messages, self._size = time.monotonic(), 0, 0

    def add(self, messages: int, size: int) -> None:
        """Count messages and bytes; raise `Unusable` if they are too many within the time."""
        self._messages, self._size = self._messages + messages, self._size + size
        if self._messages > MOST_MESSAGES or self._size > MOST_BYTES:
            if time.monotonic() - self._began < WINDOW_SECONDS:
                raise Unusable(f"it floods: {self._messages} messages, {self._size} bytes within {WINDOW_SECONDS:g} s")
            self._began, self._messages, self._size = time.monotonic(), 0, 0


def first_fault(error: Exception) -> str:
    """Say what is wrong with a message, in the words of whoever checked it first, and without its content."""
    faults = error.errors(include_url=False, include_input=False) if hasattr(error, "errors") else ()
    if not faults:
        return str(error)
    place = ".".join(map(str, faults[0]["loc"]))
    return f"{place}: {faults[0]['msg']}" if place else str(faults[0]["msg"])
