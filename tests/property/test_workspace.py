"""Whatever stands in a workspace and whatever is asked for: nothing outside is ever read or listed."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from palyra.core.errors import PalyraError
from palyra.sandbox.files.workspace import Workspace

SECRET = b"the secret"
MARK = "only outside"
NAMES = ("a", "b", "ü", "secret.txt")

names = st.sampled_from(NAMES)
places = st.lists(names, min_size=1, max_size=3).map("/".join)
steps = st.sampled_from((*NAMES, "..", "..", ".", "", "...", "~", "-rf", "a b", "ws", "out"))
relative = st.lists(steps, min_size=1, max_size=6).map("/".join)
starts = st.sampled_from(("/", "{ws}/", "{ws}/../", "{out}/", "{ws}2/", "//", "/proc/self/root", "/proc/self/cwd/"))
absolute = st.tuples(starts, relative).map("".join)
paths = st.one_of(places, relative, absolute, st.text(max_size=20))
ways_out = st.sampled_from(
    ("..", "../out", "../../out/a", "{out}", "{out}/a", "{out}/secret.txt", "/", "{ws}/..", "a/..")
)
things = st.one_of(
    st.tuples(st.just("file"), places, st.binary(max_size=4)),
    st.tuples(st.just("folder"), places, st.none()),
    st.tuples(st.just("link"), places, ways_out | paths),
)


@contextmanager
def world(things: list[tuple[str, str, object]]) -> Iterator[Path]:
    """Build a workspace of these things, beside a folder with secrets of the same names."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(os.path.realpath(folder))
        root, outside = base / "ws", base / "out"
        (outside / "a").mkdir(parents=True)
        (base / "ws2").mkdir()
        for secrets in (outside, outside / "a", base / "ws2"):
            for name in (*NAMES, MARK):
                with suppress(OSError):
                    (secrets / name).write_bytes(SECRET)
        root.mkdir()
        for kind, place, content in things:
            with suppress(OSError, ValueError):
                _make(root, kind, place=place, content=content)
        yield root


def _make(root: Path, kind: str, *, place: str, content: object) -> None:
    path = root / place
    # Parents are made only where no link stands in the way: the test must not write outside itself.
    for parent in reversed(path.relative_to(root).parents):
        if (root / parent).is_symlink():
            return
        (root / parent).mkdir(exist_ok=True)
    if kind == "file":
        assert isinstance(content, bytes)
        if not path.is_symlink():
            path.write_bytes(b"inside:" + content)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(placed(str(content), root))


def placed(path: str, root: Path) -> str:
    return path.replace("{ws}", str(root)).replace("{out}", str(root.parent / "out"))


@settings(max_examples=200)
@given(st.lists(things, max_size=8), st.lists(paths, min_size=1, max_size=12))
def test_nothing_outside_is_ever_readable(made: list[tuple[str, str, object]], asked: list[str]) -> None:
    with world(made) as root:
        workspace = Workspace((root,))
        for path in (placed(path, root) for path in asked):
            with suppress(PalyraError), workspace.open_read(path) as file:
                assert file.read().startswith(b"inside:")
            with suppress(PalyraError):
                listed = {entry.name for entry in workspace.list_dir(path).entries}
                assert MARK not in listed
            with suppress(PalyraError), closing(workspace.walk(path)) as walk:
                for _, file in walk:
                    assert file.read().startswith(b"inside:")


@given(st.lists(things, max_size=8), st.lists(paths, min_size=1, max_size=8))
def test_what_is_read_is_what_the_system_finds_there(made: list[tuple[str, str, object]], asked: list[str]) -> None:
    with world(made) as root:
        workspace = Workspace((root,))
        for path in (placed(path, root) for path in asked):
            with suppress(PalyraError), workspace.open_read(path) as file:
                real = Path(os.path.realpath(root / path))
                assert real.is_relative_to(root)
                assert os.path.samestat(os.fstat(file.fileno()), os.stat(real))


@given(st.lists(things, max_size=8))
def test_every_plain_file_is_found_by_walking_and_can_be_read(made: list[tuple[str, str, object]]) -> None:
    with world(made) as root:
        workspace = Workspace((root,))
        expected = {
            os.path.relpath(os.path.join(folder, name), root)
            for folder, _, names in os.walk(root)
            for name in names
            if not os.path.islink(os.path.join(folder, name))
        }
        assert {path for path, _ in workspace.walk(".")} == expected
        for path in expected:
            with workspace.open_read(path) as file:
                assert file.read() == (root / path).read_bytes()


@given(st.lists(things, max_size=8), paths)
def test_only_errors_that_say_what_to_do_come_out(made: list[tuple[str, str, object]], path: str) -> None:
    with world(made) as root:
        workspace = Workspace((root,))
        with suppress(PalyraError):
            workspace.open_read(placed(path, root)).close()
        with suppress(PalyraError):
            workspace.list_dir(placed(path, root))
