"""Converts tool names to names that providers accept, and back.

`files.read` is sent as `files_read`. The sent name depends only on the tool's own name unless two would be equal, so
that the beginning of a prompt stays the same and is found in the provider's cache.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import count

MAX_NAME_CHARS = 64
"""What every provider accepts: letters, digits, _ and -, not beginning with a digit or -."""

_FITS = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


class ToolNames:
    """The names of one prompt's tools."""

    def __init__(self, offered: Iterable[str], spoken_of: Iterable[str] = ()) -> None:
        """Name the offered tools, then those that the conversation mentions and that are no longer offered."""
        self._out: dict[str, str] = {}
        self._back: dict[str, str] = {}
        self._take(set(offered))
        self._take(set(spoken_of) - self._out.keys())

    def out(self, tool: str) -> str:
        """Return the name of a tool for the provider."""
        return self._out.get(tool) or _plain(tool)

    def back(self, name: str) -> str:
        """Return the tool that the model means; an unknown name is returned unchanged."""
        return self._back.get(name, name)

    def _take(self, tools: set[str]) -> None:
        plain: dict[str, int] = {}
        for tool in tools:
            plain[_plain(tool)] = plain.get(_plain(tool), 0) + 1
        # A tool whose own name is valid keeps it, whatever the others are.
        for tool in sorted(tools, key=lambda tool: (_plain(tool) != tool, tool)):
            requested = _plain(tool)
            if requested in self._back or (requested != tool and plain[requested] > 1):
                requested = next(name for name in _marked(tool) if name not in self._back)
            self._out[tool] = requested
            self._back[requested] = tool


def _plain(tool: str) -> str:
    """Return the name with invalid characters replaced; one that is too long gets a digest."""
    if _FITS.fullmatch(tool):
        return tool
    name = _fitted(tool)
    return name if len(name) <= MAX_NAME_CHARS else next(_marked(tool))


def _marked(tool: str) -> Iterator[str]:
    """Yield names that are made unique by a digest."""
    name = _fitted(tool)
    digest = hashlib.sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()
    yield f"{name[:55]}_{digest[:8]}"
    # Another tool has that exact name: count until one is free.
    for number in count(2):
        yield f"{name[:40]}_{digest[:8]}_{number}"


def _fitted(tool: str) -> str:
    name = _UNFIT.sub("_", tool)
    return name if name and (name[0].isalpha() or name[0] == "_") else "_" + name
