"""How much is taken from an MCP server, on its way through the worker and in the daemon."""

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
