"""Files inside the workspace can be changed, all that are named or none, and nothing else can."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from palyra.core.artifact import MAX_KEPT_BYTES
from palyra.core.errors import FileChanged, PalyraError
from palyra.sandbox.files import file_changes, staged_file
from palyra.sandbox.files.file_changes import (
    FileChange,
    FileContent,
    FileTooLarge,
    PathNotWritable,
    apply_changes,
    read_existing,
)
from palyra.sandbox.files.reserved_files import ReservedFiles
from palyra.sandbox.files.root import RootOutsideWorkspace
from palyra.sandbox.files.workspace import (
    PathInvalid,
    PathNotFile,
    PathNotFound,
    PathOutsideWorkspace,
    PathReserved,
    Workspace,
)
from tests.support.unprivileged import ordinary_user


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "ws"
    (root / "docs").mkdir(parents=True)
    (root / "notes.txt").write_bytes(b"notes")
    (root / "docs" / "plan.md").write_bytes(b"plan")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "secret.txt").write_bytes(b"secret")
    return root


def put(root: Path, path: str, data: bytes | None, *, mode: int | None = None) -> None:
    workspace = Workspace((root,))
    apply_changes(workspace, [FileChange(read_existing(workspace, path), data, mode)])


def everything(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


# -- one file


def test_a_file_is_made_and_replaced(root: Path) -> None:
    put(root, "fresh.txt", b"one")
    put(root, "notes.txt", b"two")
    assert everything(root) == {"fresh.txt": b"one", "notes.txt": b"two", "docs/plan.md": b"plan"}


def test_folders_on_the_way_are_made(root: Path) -> None:
    put(root, "a/b/c.txt", b"x")
    assert (root / "a" / "b" / "c.txt").read_bytes() == b"x"


def test_a_file_is_deleted(root: Path) -> None:
    put(root, "notes.txt", None)
    assert everything(root) == {"docs/plan.md": b"plan"}


def test_permissions_stay_and_can_be_given(root: Path) -> None:
    (root / "notes.txt").chmod(0o640)
    put(root, "notes.txt", b"x")
    assert (root / "notes.txt").stat().st_mode & 0o7777 == 0o640
    put(root, "notes.txt", b"y", mode=0o755)
    assert (root / "notes.txt").stat().st_mode & 0o7777 == 0o755


def test_looking_changes_nothing_and_tells_where_it_would_be(root: Path) -> None:
    found = read_existing(Workspace((root,)), "docs/../a/b.txt")
    assert (found.root, found.path, found.content) == (str(root), f"{root}/a/b.txt", None)
    assert sorted(os.listdir(root)) == ["docs", "notes.txt"]


def test_an_open_reader_keeps_what_it_reads(root: Path) -> None:
    with (root / "notes.txt").open("rb") as file:
        put(root, "notes.txt", b"other")
        assert file.read() == b"notes"


def test_a_hard_link_elsewhere_is_not_written_through(root: Path, tmp_path: Path) -> None:
    os.link(tmp_path / "out" / "secret.txt", root / "linked.txt")
    put(root, "linked.txt", b"x")
    assert (tmp_path / "out" / "secret.txt").read_bytes() == b"secret"


def test_a_link_inside_is_followed(root: Path) -> None:
    (root / "alias").symlink_to("docs/plan.md")
    found = read_existing(Workspace((root,)), "alias")
    assert found.path == str(root / "docs" / "plan.md")
    put(root, "alias", b"x")
    assert (root / "alias").is_symlink()
    assert (root / "docs" / "plan.md").read_bytes() == b"x"


@pytest.mark.parametrize(
    "path",
    [
        "../out/new.txt",
        "docs/../../out/new.txt",
        "{tmp}/out/new.txt",
        "/etc/palyra-test",
        "outside/new.txt",
        "outside/secret.txt",
        "dangling",
        "chain",
    ],
)
def test_nothing_outside_is_made_or_changed(root: Path, tmp_path: Path, path: str) -> None:
    (root / "outside").symlink_to(tmp_path / "out")
    (root / "dangling").symlink_to("../out/new.txt")
    (root / "chain").symlink_to("dangling")
    with pytest.raises(PathOutsideWorkspace):
        put(root, path.format(tmp=tmp_path), b"x")
    assert everything(tmp_path / "out") == {"secret.txt": b"secret"}


def test_what_is_no_plain_file_is_refused(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "sock"))
        for path in ("pipe", "sock", "docs", "."):
            with pytest.raises(PathNotFile):
                put(root, path, b"x")
    with pytest.raises(PathNotFound):
        put(root, "notes.txt/below", b"x")


def test_a_file_that_is_too_large_is_refused(root: Path) -> None:
    with pytest.raises(FileTooLarge):
        put(root, "big", b"x" * (MAX_KEPT_BYTES + 1))
    with (root / "huge").open("wb") as file:
        file.truncate(MAX_KEPT_BYTES + 1)
    with pytest.raises(FileTooLarge):
        put(root, "huge", b"x")
    assert not (root / "big").exists()


def test_a_name_that_is_too_long_leaves_nothing_behind(root: Path) -> None:
    before = everything(root)
    with pytest.raises(PathInvalid):
        put(root, "new/" + "x" * 300, b"x")
    assert everything(root) == before
    assert not (root / "new").exists()


@ordinary_user
def test_a_folder_that_may_not_be_written_is_told(root: Path) -> None:
    (root / "docs").chmod(0o500)
    with pytest.raises(PathNotWritable):
        put(root, "docs/x", b"x")


# -- somebody else at the same file


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda file: file.write_bytes(b"edited by hand"),
        lambda file: file.unlink(),
        lambda file: (file.unlink(), file.mkdir()),
        lambda file: (file.unlink(), file.symlink_to("docs/plan.md")),
    ],
)
def test_a_file_that_changed_since_it_was_looked_at_is_left_alone(
    root: Path, meanwhile: Callable[[Path], object]
) -> None:
    workspace = Workspace((root,))
    change = FileChange(read_existing(workspace, "notes.txt"), b"mine")
    meanwhile(root / "notes.txt")
    before = everything(root)
    with pytest.raises(PalyraError):
        apply_changes(workspace, [change])
    assert everything(root) == before
    assert not list(root.rglob(".palyra-*"))


def test_a_file_that_appeared_since_is_not_replaced(root: Path) -> None:
    workspace = Workspace((root,))
    change = FileChange(read_existing(workspace, "new.txt"), b"mine")
    (root / "new.txt").write_bytes(b"theirs")
    with pytest.raises(FileChanged):
        apply_changes(workspace, [change])
    assert (root / "new.txt").read_bytes() == b"theirs"


def test_of_two_changes_at_once_one_is_refused_and_none_is_lost(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both look at the same file; each waits for the other between its last look and the new name."""
    workspace = Workspace((root,))
    both = threading.Barrier(2)
    look_again = file_changes._PreparedChange._require_same

    def meet(self: file_changes._PreparedChange, before: FileContent) -> None:
        look_again(self, before)
        with suppress(threading.BrokenBarrierError):
            both.wait(timeout=1)

    monkeypatch.setattr(file_changes._PreparedChange, "_require_same", meet)

    def append(line: bytes) -> bool:
        found = read_existing(workspace, "notes.txt")
        assert found.content is not None
        looked.wait(timeout=60)
        try:
            apply_changes(workspace, [FileChange(found, found.content.data + line)])
        except FileChanged:
            return False
        return True

    looked = threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        done = list(threads.map(append, [b"one", b"two"]))
    assert sorted(done) == [False, True]
    assert (root / "notes.txt").read_bytes().endswith(b"one" if done[0] else b"two")


def test_a_folder_that_became_a_link_since_is_not_followed(root: Path) -> None:
    workspace = Workspace((root,))
    change = FileChange(read_existing(workspace, "docs/plan.md"), b"mine")
    (root / "docs").rename(root / "moved")
    (root / "docs").symlink_to("moved")
    with pytest.raises(FileChanged):
        apply_changes(workspace, [change])
    assert (root / "moved" / "plan.md").read_bytes() == b"plan"


def test_a_folder_that_is_swapped_for_a_link_all_the_time_never_leads_out(root: Path, tmp_path: Path) -> None:
    outside, stop = tmp_path / "out", threading.Event()

    def swap() -> None:
        while not stop.is_set():
            with suppress(OSError):
                (root / "docs").rename(root / "kept")
                (root / "docs").symlink_to(outside)
                (root / "docs").unlink()
                (root / "kept").rename(root / "docs")

    attacker = threading.Thread(target=swap)
    attacker.start()
    written = 0
    try:
        for number in range(400):
            with suppress(PalyraError):
                put(root, f"docs/new-{number % 7}", b"%d" % number)
                written += 1
            with suppress(PalyraError):
                put(root, "docs/secret.txt", None)
    finally:
        stop.set()
        attacker.join()
    assert written
    assert everything(outside) == {"secret.txt": b"secret"}


# -- several files


def test_several_files_change_together(root: Path) -> None:
    workspace = Workspace((root,))
    changes = [
        FileChange(read_existing(workspace, "notes.txt"), b"1"),
        FileChange(read_existing(workspace, "docs/plan.md"), None),
        FileChange(read_existing(workspace, "x/new.txt"), b"2"),
    ]
    apply_changes(workspace, changes)
    assert everything(root) == {"notes.txt": b"1", "x/new.txt": b"2"}


@pytest.mark.parametrize("culprit", [0, 1, 2, 3])
def test_when_one_can_not_be_changed_none_is(root: Path, culprit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "notes.txt").chmod(0o640)
    before = everything(root)
    workspace = Workspace((root,))
    names = ["notes.txt", "docs/plan.md", "x/new.txt", "y.txt"]
    changes = [
        FileChange(read_existing(workspace, names[0]), b"1"),
        FileChange(read_existing(workspace, names[1]), None),
        FileChange(read_existing(workspace, names[2]), b"2"),
        FileChange(read_existing(workspace, names[3]), b"3"),
    ]
    seen = 0
    real = {name: getattr(os, name) for name in ("rename", "unlink", "link")}

    def failing(name: str) -> Callable[..., object]:
        def step(*args: object, **how: object) -> object:
            nonlocal seen
            # The steps by which names change: whatever concerns one of the four, and not their preparation.
            target = args[-1]
            if target in [os.path.basename(path) for path in names]:
                seen += 1
                if seen == culprit + 1:
                    raise OSError(5, "Input/output error")
            return real[name](*args, **how)

        return step

    for name in real:
        monkeypatch.setattr(os, name, failing(name))
    with pytest.raises(PalyraError):
        apply_changes(workspace, changes)
    monkeypatch.undo()
    assert everything(root) == before
    assert sorted(os.listdir(root)) == ["docs", "notes.txt"]
    assert (root / "notes.txt").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("sync", [1, 2, 3])
def test_a_kill_while_content_is_written_leaves_nothing_behind(root: Path, sync: int) -> None:
    before = everything(root)
    program = f"""
import os, signal
from pathlib import Path
from palyra.sandbox.files.workspace import Workspace
from palyra.sandbox.files.file_changes import FileChange, apply_changes, read_existing
calls = []
def killed(descriptor):
    calls.append(descriptor)
    if len(calls) == {sync}:
        os.kill(os.getpid(), signal.SIGKILL)
os.fsync = killed
workspace = Workspace((Path({str(root)!r}),))
names = ["notes.txt", "docs/plan.md", "new.txt"]
apply_changes(workspace, [FileChange(read_existing(workspace, name), b"mine") for name in names])
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    assert everything(root) == before


@pytest.mark.parametrize("lacks", ["O_TMPFILE", "/proc"])
def test_without_unnamed_files_it_is_the_same(root: Path, lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if lacks == "O_TMPFILE":
        monkeypatch.delattr(os, "O_TMPFILE")
    else:
        monkeypatch.setattr(staged_file, "_DESCRIPTORS", "/nowhere/fd")
    workspace = Workspace((root,))
    changes = [
        FileChange(read_existing(workspace, "notes.txt"), b"1"),
        FileChange(read_existing(workspace, "new.txt"), b"2"),
    ]
    apply_changes(workspace, changes)
    assert everything(root) == {"notes.txt": b"1", "docs/plan.md": b"plan", "new.txt": b"2"}
    assert not list(root.rglob(".palyra-*"))


def test_without_hard_links_it_is_the_same(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*args: object, **how: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    workspace = Workspace((root,))
    changes = [
        FileChange(read_existing(workspace, "notes.txt"), b"1"),
        FileChange(read_existing(workspace, "new.txt"), b"2"),
    ]
    stale = FileChange(read_existing(workspace, "docs/plan.md"), b"3")
    (root / "docs" / "plan.md").write_bytes(b"theirs")
    with pytest.raises(FileChanged):
        apply_changes(workspace, [*changes, stale])
    assert everything(root) == {"notes.txt": b"notes", "docs/plan.md": b"theirs"}
    apply_changes(
        workspace,
        [
            FileChange(read_existing(workspace, "notes.txt"), b"1"),
            FileChange(read_existing(workspace, "new.txt"), b"2"),
        ],
    )
    assert everything(root) == {"notes.txt": b"1", "new.txt": b"2", "docs/plan.md": b"theirs"}


# -- Palyra's own home


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home inside a folder that somebody works in."""
    home = tmp_path / "ana" / ".palyra"
    (home / "workspace").mkdir(parents=True)
    (home / "archive").mkdir()
    (home / "token").write_bytes(b"secret")
    (home / "workspace" / "welcome.md").write_bytes(b"hi")
    return home


def test_the_home_is_out_of_reach_of_a_workspace_that_contains_it(home: Path) -> None:
    root = home.parent
    workspace = Workspace((root,), forbidden=ReservedFiles((home,)))
    (root / "alias").symlink_to(home)
    (root / "key").symlink_to(home / "token")
    os.link(home / "token", root / "hard")
    for path in (".palyra/token", ".palyra/new", "alias/token", "key", "hard", f"{home}/token", ".palyra/x/y"):
        with pytest.raises(PathReserved):
            read_existing(workspace, path)
    for path in (".palyra/token", "alias/token", "key", "hard"):
        with pytest.raises(PathReserved):
            workspace.open_read(path)
    with pytest.raises(PathReserved):
        workspace.list_dir(".palyra")
    (root / "mine.txt").write_bytes(b"mine")
    assert [path for path, _ in workspace.walk(".")] == ["mine.txt"]


def test_no_folder_of_the_home_is_a_workspace_but_the_one_that_is_meant(home: Path) -> None:
    forbidden = ReservedFiles((home,), (home / "workspace",))
    with Workspace((home / "workspace",), forbidden=forbidden).open_read("welcome.md") as file:
        assert file.read() == b"hi"
    (home / "workspace" / "sub").mkdir()
    assert Workspace((home / "workspace" / "sub",), forbidden=forbidden).list_dir(".").entries == ()
    for root in (home, home / "archive"):
        with pytest.raises(PathReserved):
            Workspace((root,), forbidden=forbidden).list_dir(".")
    narrowed = Workspace((home / "workspace",), forbidden=forbidden).within((home / "archive",))
    with pytest.raises(RootOutsideWorkspace):
        narrowed.list_dir(".")


def test_a_workspace_that_was_replaced_by_a_link_to_the_home_is_refused(home: Path) -> None:
    (home / "workspace").rename(home / "old")
    (home / "workspace").symlink_to(".")
    with pytest.raises(PathReserved):
        Workspace((home / "workspace",), forbidden=ReservedFiles((home,), (home / "workspace",))).list_dir(".")
