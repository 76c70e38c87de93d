"""Whatever lies in a workspace and whatever is looked for: with ripgrep the same is found as without."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palyra.sandbox.files.workspace import Workspace
from palyra.sandbox.search import search as module
from palyra.sandbox.search.search import SearchQuery
from tests.support.clock import FakeClock
from tests.support.file_search import sifted, walked
from tests.support.needs import BUBBLEWRAP, RIPGREP, require

NAMES = (
    *(b"a", b"b.md", b"B.MD", b".hidden.md", b".md", b"a b", "ü.md".encode(), b".git", b"node_modules"),
    *(b"--files", b"-e", b"new\nline.md", b"bad\xff.md", b"[x].md", b"!a", b".gitignore", b".ignore", b".rgignore"),
)
WORDS = "needle Needle NEEDLE needl n a.c abc * *.md 2026 i I k s ß é É Σ 日本".split()
ODD_LETTERS = "\u0130\u0131\u1e9e\u212a\u017f\u03c2\u03c3\u01c4\u0307\u2028\ufffd\ufeff\x85\x1c"
PIECES = (
    *(word.encode() for word in WORDS),
    *(letter.encode() for letter in ODD_LETTERS),
    *(b"\n", b"\r\n", b" ", b"\t", b"\0", b"\xff", b"\xc3", b"\xe2\x80", b"\xff\xfe"),
    *(b"x" * 300, b"x" * 9_000, b"x" * 20_000),
)
PATTERNS = (
    *(
        r"need(le|ling)",
        r"(?i)NEEDLE",
        r"^needle$",
        r"n.edle",
        r"needle\s+2026",
        r"(?<=n)eedle",
        r"(\w)\1",
        r"abc|2026",
    ),
    *(r"[iI]s", r"(?:is|sk)+", r"needle(?!x)", r"\bneedle\b", r"i{2}", r"(?x) need le", r"\x1c?abc", r"xx*y?"),
    *(r"İ|needle", r"needle\nabc", r"(?i:is)", r"(?s:needle.)", r"(a)?(?(1)bc|needle)", r"(", r"needle{,2}"),
)
GLOBS = ("", "", "", "*.md", "*.MD", "**/*.md", "a*", "[ab]*", "*", "*e", "docs/*", "*-e")

names = st.sampled_from(NAMES)
places = st.lists(names, min_size=1, max_size=3).map(b"/".join)
contents = st.lists(st.sampled_from(PIECES), max_size=8).map(b"".join)
things = st.one_of(
    st.tuples(st.just("file"), places, contents),
    st.tuples(st.just("file"), places, contents),
    st.tuples(st.just("link"), places, st.sampled_from((b"..", b"a", b"../out", b"/", b"nowhere"))),
    st.tuples(st.just("pipe"), places, st.just(b"")),
)
texts = st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map(
    lambda some: b"".join(some).decode(errors="replace")
)
queries = st.builds(
    lambda wanted, glob, folder, limit: SearchQuery(wanted[0], folder=folder, glob=glob, regex=wanted[1], limit=limit),
    texts.map(lambda text: (text, False)) | st.sampled_from(PATTERNS).map(lambda pattern: (pattern, True)),
    st.sampled_from(GLOBS),
    st.sampled_from((".", ".", ".", "./", "a", "a/../a", ".git")),
    st.sampled_from((1, 3, 50)),
)


@contextmanager
def world(things: list[tuple[str, bytes, bytes]]) -> Iterator[Path]:
    """Build a workspace of these things, beside a folder with what is looked for."""
    with tempfile.TemporaryDirectory() as folder:
        base = os.fsencode(os.path.realpath(folder))
        for name in (b"ws/a", b"out"):
            os.makedirs(os.path.join(base, name))
        Path(os.fsdecode(base), "out", "a").write_bytes(b"needle 2026")
        for kind, place, content in things:
            path = os.path.join(base, b"ws", place)
            with suppress(OSError):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                _make(kind, path, content)
        yield Path(os.fsdecode(base), "ws")


def _make(kind: str, path: bytes, content: bytes) -> None:
    # Nothing is written through a link: the test must not write outside itself.
    if os.path.realpath(path) != path or os.path.lexists(path):
        return
    match kind:
        case "file":
            Path(os.fsdecode(path)).write_bytes(content)
        case "link":
            os.symlink(content, path)
        case _:
            os.mkfifo(path)


@pytest.fixture(scope="module", autouse=True)
def impatient() -> Iterator[None]:
    """Ripgrep is asked before the first file is read."""
    require(BUBBLEWRAP, RIPGREP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FILTER_TIMEOUT_SECONDS", 0)
        yield


@settings(max_examples=40, deadline=None)
@given(st.lists(things, max_size=12), st.lists(queries, min_size=1, max_size=3))
def test_the_same_is_found_with_ripgrep_and_without(
    things: list[tuple[str, bytes, bytes]], queries: list[SearchQuery]
) -> None:
    with world(things) as root:
        workspace = Workspace((root,))
        for query in queries:
            try:
                expected = walked(workspace, query, clock=FakeClock())
            except Exception as error:
                with pytest.raises(type(error)):
                    sifted(workspace, query, clock=FakeClock())
            else:
                assert sifted(workspace, query, clock=FakeClock()) == expected
