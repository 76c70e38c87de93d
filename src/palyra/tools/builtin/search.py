"""`files.search`: find text in files, or files by name."""

import asyncio
import os
import threading
from typing import Annotated

from msgspec import Meta

from palyra.core.errors import PalyraError, SearchQueryEmpty
from palyra.core.policy import labels
from palyra.core.text.escaping import escape_line
from palyra.core.tool import Risk
from palyra.sandbox.search import search as engine
from palyra.sandbox.search.ripgrep import RipgrepFilter
from palyra.tools.base import ToolContext, tool
from palyra.tools.call_slots import CallPool

SEARCHES = CallPool("search", 2)
"""Each holds a thread for up to ten seconds."""


@tool(name="files.search", risk=Risk.LOW, repeatable=True, read_only=True, label=labels.OWNER, pool=SEARCHES)
async def search(
    context: ToolContext,
    *,
    text: Annotated[str, Meta(description="lower case matches any case; empty: find by glob alone")] = "",
    folder: str = ".",
    glob: Annotated[str, Meta(description="e.g. *.md")] = "",
    regex: bool = False,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
) -> str:
    """Find lines with a text in workspace files, or files by name."""
    if not text and not glob:
        raise SearchQueryEmpty("Give a text to find, or a glob such as *.md to find files by name.")
    query = engine.SearchQuery(text=text, folder=folder or ".", glob=glob, regex=regex, limit=limit)
    # The thread outlives a cancellation, so it gets a stop signal.
    stop = threading.Event()
    sieve = RipgrepFilter(context.searches, context.workspace, loop=asyncio.get_running_loop())
    try:
        search_result = await asyncio.to_thread(
            engine.search, context.workspace, query, clock=context.clock, stop=stop.is_set, sieve=sieve
        )
    finally:
        stop.set()
        await sieve.close()
    await asyncio.to_thread(_note, context, search_result)
    return _result_text(query, search_result)


def _note(context: ToolContext, search_result: engine.SearchResult) -> None:
    """Record the files that the result quotes or names; the names of their folders are part of it."""
    for path in dict.fromkeys(match.path for match in search_result.matches):
        try:
            with context.workspace.reach(path) as at:
                location, root = at.path, str(at.root.real_path())
                while location != root:
                    context.witness.read(location)
                    location = os.path.dirname(location)
        except PalyraError:
            # It no longer exists, and what was read of it cannot be looked up any more.
            context.witness.learned(())


def _result_text(query: engine.SearchQuery, search_result: engine.SearchResult) -> str:
    what = "match" if query.text else "file"
    plural = "" if len(search_result.matches) == 1 else "es" if query.text else "s"
    files = "1 file" if search_result.files == 1 else f"{search_result.files} files"
    lines = [f"{len(search_result.matches)} {what}{plural} ({files} searched)"]
    lines += [_match(match) for match in search_result.matches]
    if search_result.cut_short:
        lines.append(f"[{search_result.cut_short}; narrow it by folder or glob]")
    return "\n".join(lines)


def _match(match: engine.SearchMatch) -> str:
    path = escape_line(match.path)
    return f"{path}:{match.line}: {match.text}" if match.line else path
