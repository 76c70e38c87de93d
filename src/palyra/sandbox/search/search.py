"""Finds text in the files of a workspace, within a budget of time and bytes.

Matches are found by reading the files here. If that takes a while, a file filter is asked which of them can contain the
text at all, and from its answer on the others are counted and not opened. So a filter only changes how long
a search takes, and how far the budget of bytes goes.

Everything here blocks; async code calls it through `asyncio.to_thread`.
"""

import fnmatch
import re
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from palyra.core.clock import Clock
from palyra.sandbox.files.content_type import SNIFFED_BYTES, binary_kind
from palyra.sandbox.files.workspace import Workspace
from palyra.sandbox.search.regex import RegexInvalid, RegexProcess

SKIPPED_FOLDERS = frozenset({".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv"})
MAX_FILES = 20_000
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_TOTAL_BYTES = 256 * 1024 * 1024
MAX_SECONDS = 10.0
MAX_LINE_CHARS = 200
MAX_GLOB_CHARS = 1000
"""Some globs take ten thousand times as long to compile if they are a hundred times as long."""
FILTER_TIMEOUT_SECONDS = 0.1
"""After how long a file filter is asked. Most workspaces are searched by then, and starting a filter is not free."""


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """What to search for. Without text, files are found by their name alone.

    The search is case-sensitive if there is a capital in the text.
    """

    text: str
    folder: str = "."
    glob: str = ""
    regex: bool = False
    limit: int = 50


@dataclass(frozen=True, slots=True)
class SearchMatch:
    """A line that matches; lines are counted from 1, and 0 stands for the file itself."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The matches in the order of paths, and why there may be more, if so."""

    matches: tuple[SearchMatch, ...]
    files: int
    """How many files were searched."""
    cut_short: str = ""


@dataclass(frozen=True, slots=True)
class RequiredWords:
    """Words of which at least one is in every line that matches."""

    words: tuple[str, ...]
    any_case: bool


class FileFilter(Protocol):
    """Knows, after `ask`, which files can contain what is searched for."""

    def ask(self, query: SearchQuery, needles: RequiredWords, *, stop: Callable[[], bool]) -> None:
        """Find which files can match. Blocks until that is known, or known to remain unknown, or `stop` says so."""
        ...

    def passes(self, path: str) -> bool:
        """Tell whether a file of up to `MAX_FILE_BYTES` may contain one of the needles. If unknown, it may."""
        ...


def search(
    workspace: Workspace, query: SearchQuery, *, clock: Clock, stop: Callable[[], bool], sieve: FileFilter | None = None
) -> SearchResult:
    """Search until all files are read, the limit or the budget is reached, or `stop` says so."""
    begun = clock.monotonic()
    matches: list[SearchMatch] = []
    files = total = pairs = 0

    def needless(path: str, size: int) -> bool:
        # A file that is searched in part is opened, since the result must report that.
        return sieve is not None and size < MAX_FILE_BYTES and not sieve.passes(path)

    with ExitStack() as stack:
        matching, needles = _matcher(query, stack=stack, stop=stop)
        is_asked = sieve is None or not needles.words
        walk = workspace.walk(query.folder, skip=SKIPPED_FOLDERS, requested=_name_filter(query), needless=needless)
        for path, file in stack.enter_context(closing(walk)):
            took = clock.monotonic() - begun
            if sieve is not None and not is_asked and took >= FILTER_TIMEOUT_SECONDS:
                # Not while the walk goes on: both would compete for the same disk and the same few cores.
                sieve.ask(query, needles, stop=stop)
                is_asked = True
            if stop() or took > MAX_SECONDS or files >= MAX_FILES or total >= MAX_TOTAL_BYTES:
                return SearchResult(tuple(matches), files, "the workspace is too large to be searched at once")
            files += 1
            if matching is None:
                matches.append(SearchMatch(path, 0, ""))
            elif content := _content(file):
                total += len(content)
                pairs += len(content) == MAX_FILE_BYTES
                room = query.limit + 1 - len(matches)
                matches += _pick(path, content, matching(content, room))
            if len(matches) > query.limit:
                return SearchResult(tuple(matches[: query.limit]), files, f"only the first {query.limit} are shown")
    return SearchResult(tuple(matches), files, _large(pairs))


Matcher = Callable[[bytes, int], list[int]]


def _matcher(query: SearchQuery, *, stack: ExitStack, stop: Callable[[], bool]) -> tuple[Matcher | None, RequiredWords]:
    ignore_case = query.text == query.text.lower()
    if not query.text:
        return None, RequiredWords((), any_case=True)
    if query.regex:
        process = stack.enter_context(RegexProcess(query.text, ignore_case=ignore_case, seconds=MAX_SECONDS, stop=stop))
        # A pattern can turn off case sensitivity in its middle.
        return lambda content, limit: process.lines(content, limit=limit), RequiredWords(process.needles, any_case=True)
    return (
        lambda content, limit: _literal(query.text, content, ignore_case=ignore_case, limit=limit),
        RequiredWords((query.text,), any_case=ignore_case),
    )


def _content(file: BinaryIO) -> bytes:
    """Return the text of a file as far as it is searched; nothing for a binary or unreadable one."""
    try:
        head = file.read(SNIFFED_BYTES)
        return head + file.read(MAX_FILE_BYTES - len(head)) if binary_kind(head) is None else b""
    except OSError:
        return b""


def _large(pairs: int) -> str:
    if not pairs:
        return ""
    counted = "1 large file was" if pairs == 1 else f"{pairs} large files were"
    return f"{counted} searched in the first {MAX_FILE_BYTES >> 20} MiB only"


def _literal(text: str, content: bytes, *, ignore_case: bool, limit: int) -> list[int]:
    # Most files do not contain the text at all, and that is quickly seen.
    if not ignore_case and text.encode() not in content:
        return []
    full_text = content.decode("utf-8", "replace")
    if ignore_case:
        full_text = full_text.lower()
        if text not in full_text:
            return []
    result: list[int] = []
    for number, line in enumerate(full_text.split("\n")):
        if text in line:
            result.append(number)
            if len(result) >= limit:
                break
    return result


def _pick(path: str, content: bytes, numbers: list[int]) -> list[SearchMatch]:
    if not numbers:
        return []
    lines = content.split(b"\n")
    return [SearchMatch(path, number + 1, _short(lines[number])) for number in numbers]


def _short(line: bytes) -> str:
    text = " ".join(line[: MAX_LINE_CHARS * 4].decode("utf-8", "replace").split())
    return text if len(text) <= MAX_LINE_CHARS else text[:MAX_LINE_CHARS] + "…"


def _name_filter(query: SearchQuery) -> Callable[[str], bool]:
    if not query.glob:
        return lambda path: True
    if len(query.glob) > MAX_GLOB_CHARS:
        raise RegexInvalid(f"The glob is longer than {MAX_GLOB_CHARS} characters. Name files by something like *.md.")
    # `*` spans folders here, so `**/` would only demand a folder too many.
    pattern = re.compile(fnmatch.translate(query.glob.replace("**/", "*").removeprefix("./")))
    if "/" in query.glob:
        return lambda path: pattern.fullmatch(path) is not None
    return lambda path: pattern.fullmatch(path.rpartition("/")[2]) is not None
