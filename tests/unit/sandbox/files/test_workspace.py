"""Files inside the workspace can be read, and nothing else can."""

import os
import socket
import threading
from pathlib import Path

import pytest

from palyra.core.errors import Denied, Invalid, NotFound, PalyraError
from palyra.sandbox.files.listing import EntryKind, FolderEntry
from palyra.sandbox.files.root import FileSystemError, PathNotReadable, WorkspaceMissing
from palyra.sandbox.files.workspace import (
    MAX_DEPTH,
    PathInvalid,
    PathNotFile,
    PathNotFolder,
    PathNotFound,
    PathOutsideWorkspace,
    Workspace,
)

SECRET = b"the secret"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace with a few files, beside a folder with a secret."""
    root = tmp_path / "ws"
    (root / "docs" / "deep").mkdir(parents=True)
    (root / "notes.txt").write_bytes(b"notes")
    (root / "docs" / "plan.md").write_bytes(b"plan")
    (root / "docs" / "deep" / "übung.txt").write_bytes(b"deep")
    outside = tmp_path / "ws-secret"
    outside.mkdir()
    (outside / "secret.txt").write_bytes(SECRET)
    return root


def read(root: Path, path: str) -> bytes:
    with Workspace((root,)).open_read(path) as file:
        return file.read()


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("notes.txt", b"notes"),
        ("./notes.txt", b"notes"),
        ("docs/plan.md", b"plan"),
        ("docs//./plan.md", b"plan"),
        ("docs/../notes.txt", b"notes"),
        ("docs/deep/../../docs/plan.md", b"plan"),
        ("docs/deep/übung.txt", b"deep"),
    ],
)
def test_a_path_inside_is_read(root: Path, path: str, content: bytes) -> None:
    assert read(root, path) == content


def test_an_absolute_path_inside_is_read(root: Path) -> None:
    assert read(root, str(root / "notes.txt")) == b"notes"


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../ws-secret/secret.txt",
        "docs/../../ws-secret/secret.txt",
        "docs/deep/../../../ws-secret/secret.txt",
        "../ws/notes.txt",
        "/etc/passwd",
        "/",
        "//etc/passwd",
    ],
)
def test_a_path_that_leads_out_is_refused(root: Path, path: str) -> None:
    with pytest.raises(PathOutsideWorkspace, match=r"outside the workspace.*Use a path inside"):
        read(root, path)


def test_an_absolute_path_beside_the_root_is_refused(root: Path) -> None:
    with pytest.raises(PathOutsideWorkspace):
        read(root, f"{root}-secret/secret.txt")
    with pytest.raises(PathOutsideWorkspace):
        read(root, f"{root}/../ws-secret/secret.txt")


@pytest.mark.parametrize("target", ["notes.txt", "docs/../notes.txt", "./docs/deep/../../notes.txt"])
def test_a_link_that_stays_inside_is_followed(root: Path, target: str) -> None:
    (root / "link").symlink_to(target)
    assert read(root, "link") == b"notes"


def test_an_absolute_link_that_stays_inside_is_followed(root: Path) -> None:
    (root / "docs" / "link").symlink_to(root / "notes.txt")
    assert read(root, "docs/link") == b"notes"


def test_dots_after_a_linked_folder_mean_the_parent_of_where_it_leads(root: Path) -> None:
    (root / "down").symlink_to("docs/deep")
    assert read(root, "down/../plan.md") == b"plan"


@pytest.mark.parametrize(
    "target", ["../ws-secret/secret.txt", "/etc/passwd", "docs/../../ws-secret/secret.txt", "../ws/notes.txt"]
)
def test_a_link_that_leads_out_is_refused(root: Path, target: str) -> None:
    (root / "link").symlink_to(target)
    with pytest.raises(PathOutsideWorkspace):
        read(root, "link")


def test_a_linked_folder_that_leads_out_is_refused(root: Path) -> None:
    (root / "docs" / "away").symlink_to(root.parent / "ws-secret")
    workspace = Workspace((root,))
    with pytest.raises(PathOutsideWorkspace):
        workspace.open_read("docs/away/secret.txt")
    with pytest.raises(PathOutsideWorkspace):
        workspace.list_dir("docs/away")


def test_links_in_a_circle_come_to_an_end(root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    with pytest.raises(PathInvalid, match="links"):
        read(root, "a")


def test_a_link_to_nothing_is_not_found(root: Path) -> None:
    (root / "gone").symlink_to("nowhere")
    with pytest.raises(PathNotFound):
        read(root, "gone")


def test_a_pipe_is_refused_and_does_not_hang(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(PathNotFile, match="not a regular file"):
        read(root, "pipe")


def test_a_socket_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("sock")
        with pytest.raises(PathNotFile):
            read(root, "sock")


def test_a_device_is_refused() -> None:
    with pytest.raises(PathNotFile):
        read(Path("/dev"), "null")


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("gone.txt", PathNotFound, "List the folder"),
        ("docs/gone/x", PathNotFound, "List the folder"),
        ("notes.txt/x", PathNotFound, "List the folder"),
        ("notes.txt/..", PathNotFound, "List the folder"),
        ("docs", PathNotFile, "is a folder"),
        ("", PathNotFile, "is a folder"),
        ("a\0b", PathInvalid, "NUL"),
        ("\udcff\ud800", PathInvalid, "Unicode"),
        ("x" * 300, PathInvalid, "too long"),
        ("x/" * 3000, PathInvalid, "longer than"),
        ("~/notes.txt", PathNotFound, "List the folder"),
    ],
)
def test_a_bad_path_is_answered_with_what_to_do(root: Path, path: str, error: type[PalyraError], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        read(root, path)
    assert len(caught.value.detail) < 400


def test_families_say_what_a_caller_may_do() -> None:
    assert issubclass(PathOutsideWorkspace, Denied)
    assert issubclass(PathNotFound, NotFound)
    assert issubclass(PathNotFile, Invalid)


def test_what_may_not_be_read_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Who runs the tests may be root, for whom nothing is forbidden.
    def forbidden(*_: object, **__: object) -> os.stat_result:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("palyra.sandbox.files.workspace.os.stat", forbidden)
    with pytest.raises(PathNotReadable, match="permissions"):
        read(root, "notes.txt")


def test_folders_beyond_the_depth_are_refused(root: Path) -> None:
    deep = "/".join(["d"] * (MAX_DEPTH + 1))
    (root / deep).mkdir(parents=True)
    (root / deep / "x").write_bytes(SECRET)
    with pytest.raises(PathInvalid, match="deep"):
        read(root, f"{deep}/x")
    assert [path for path, _ in Workspace((root,)).walk("d")] == []


def test_a_folder_is_listed_by_name_with_kinds_and_sizes(root: Path) -> None:
    (root / "link").symlink_to("/etc")
    os.mkfifo(root / "pipe")
    listing = Workspace((root,)).list_dir(".")
    assert listing.complete
    assert listing.entries == (
        FolderEntry("docs", EntryKind.FOLDER),
        FolderEntry("link", EntryKind.LINK),
        FolderEntry("notes.txt", EntryKind.FILE, 5),
        FolderEntry("pipe", EntryKind.OTHER),
    )


def test_a_file_can_not_be_listed(root: Path) -> None:
    with pytest.raises(PathNotFolder, match="is a file"):
        Workspace((root,)).list_dir("notes.txt")


def test_a_large_folder_is_listed_in_part(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palyra.sandbox.files.listing.MAX_ENTRIES", 1)
    listing = Workspace((root,)).list_dir(".")
    assert len(listing.entries) == 1
    assert not listing.complete


def walked(root: Path, path: str, *, skip: frozenset[str] = frozenset()) -> dict[str, bytes]:
    return {found: file.read() for found, file in Workspace((root,)).walk(path, skip=skip)}


def test_a_walk_opens_every_plain_file_once(root: Path) -> None:
    (root / "link").symlink_to("/etc/passwd")
    (root / "docs" / "again").symlink_to("..")
    os.mkfifo(root / "pipe")
    assert walked(root, ".") == {"docs/deep/übung.txt": b"deep", "docs/plan.md": b"plan", "notes.txt": b"notes"}


def test_a_walk_names_files_as_the_caller_would(root: Path) -> None:
    assert set(walked(root, "docs/")) == {"docs/deep/übung.txt", "docs/plan.md"}
    assert set(walked(root, str(root / "docs"))) == {f"{root}/docs/deep/übung.txt", f"{root}/docs/plan.md"}
    assert walked(root, "docs/plan.md") == {"docs/plan.md": b"plan"}


def test_a_walk_leaves_out_what_it_is_told_to(root: Path) -> None:
    assert set(walked(root, ".", skip=frozenset({"deep"}))) == {"docs/plan.md", "notes.txt"}
    wanted = Workspace((root,)).walk(".", requested=lambda path: path.endswith(".md"))
    assert [path for path, _ in wanted] == ["docs/plan.md"]


def test_a_walk_passes_over_what_vanishes_meanwhile(root: Path) -> None:
    seen = []
    for path, _ in Workspace((root,)).walk("."):
        seen.append(path)
        (root / "docs" / "plan.md").unlink(missing_ok=True)
        (root / "notes.txt").unlink(missing_ok=True)
    assert seen == ["docs/deep/übung.txt"]


def test_files_are_closed_as_the_walk_goes_on(root: Path) -> None:
    files = [file for _, file in Workspace((root,)).walk(".")]
    assert all(file.closed for file in files)


def test_no_descriptor_is_left_open(root: Path) -> None:
    (root / "docs" / "away").symlink_to("/etc")
    workspace = Workspace((root,))
    before = len(os.listdir("/dev/fd"))
    for path in ("notes.txt", "docs/deep/gone", "docs/away/passwd", "docs", "../x", "docs/deep/../../notes.txt"):
        try:
            workspace.open_read(path).close()
        except PalyraError:
            continue
    workspace.list_dir("docs")
    walk = workspace.walk(".")
    next(walk)
    walk.close()
    assert len(os.listdir("/dev/fd")) == before


def test_further_roots_are_reached_by_absolute_paths_and_links(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "o.txt").write_bytes(b"other")
    (root / "link").symlink_to(other / "o.txt")
    workspace = Workspace((root, other))
    for path in (str(other / "o.txt"), "link"):
        with workspace.open_read(path) as file:
            assert file.read() == b"other"
    with pytest.raises(PathOutsideWorkspace):
        workspace.open_read("../other/o.txt")


def test_of_nested_roots_the_innermost_counts(root: Path) -> None:
    with pytest.raises(PathOutsideWorkspace):
        Workspace((root, root / "docs")).open_read(f"{root}/docs/../notes.txt")


def test_a_root_may_be_named_through_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    workspace = Workspace((tmp_path / "alias",))
    for path in ("notes.txt", str(tmp_path / "alias" / "notes.txt"), str(root / "notes.txt")):
        with workspace.open_read(path) as file:
            assert file.read() == b"notes"


def test_a_relative_root_is_where_the_process_stands(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    with Workspace((Path("ws"),)).open_read(str(root / "notes.txt")) as file:
        assert file.read() == b"notes"
    with pytest.raises(PathOutsideWorkspace):
        Workspace((Path("ws"),)).open_read("/ws/notes.txt")


def test_a_workspace_that_is_gone_says_so(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceMissing, match="does not exist"):
        read(tmp_path / "nowhere", "x")
    with pytest.raises(WorkspaceMissing):
        Workspace(())


def test_a_fault_of_the_file_system_may_be_tried_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> os.stat_result:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("palyra.sandbox.files.workspace.os.stat", broken)
    with pytest.raises(FileSystemError, match="Input/output error"):
        read(root, "notes.txt")


def test_a_file_that_is_swapped_for_a_link_after_it_was_looked_at_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = os.stat

    def look_and_swap(name: str, *, dir_fd: int, follow_symlinks: bool) -> os.stat_result:
        seen = look(name, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        (root / "notes.txt").unlink()
        (root / "notes.txt").symlink_to(root.parent / "ws-secret" / "secret.txt")
        return seen

    monkeypatch.setattr("palyra.sandbox.files.workspace.os.stat", look_and_swap)
    with pytest.raises(PathNotFile):
        read(root, "notes.txt")


def test_a_file_that_is_swapped_for_a_pipe_after_it_was_looked_at_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = os.stat

    def look_and_swap(name: str, *, dir_fd: int, follow_symlinks: bool) -> os.stat_result:
        seen = look(name, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        (root / "notes.txt").unlink()
        os.mkfifo(root / "notes.txt")
        return seen

    monkeypatch.setattr("palyra.sandbox.files.workspace.os.stat", look_and_swap)
    with pytest.raises(PathNotFile):
        read(root, "notes.txt")


def test_a_walk_does_not_enter_a_folder_that_was_swapped_for_a_link(root: Path) -> None:
    walk = Workspace((root,)).walk(".")
    seen = {}
    for path, file in walk:
        seen[path] = file.read()
        # The entries of `docs` were read by now; what comes next is swapped under the walk's feet.
        if path == "docs/deep/übung.txt":
            (root / "docs" / "plan.md").unlink()
            (root / "docs" / "plan.md").symlink_to(root.parent / "ws-secret" / "secret.txt")
            (root / "zoo").symlink_to(root.parent / "ws-secret")
    assert seen == {"docs/deep/übung.txt": b"deep", "notes.txt": b"notes"}


def test_a_folder_that_is_swapped_for_a_link_meanwhile_leads_nowhere(root: Path) -> None:
    """One thread replaces a folder by a link to the outside and back, while the other reads through it."""
    (root / "docs" / "secret.txt").write_bytes(b"harmless")
    (root / "trap").symlink_to(root.parent / "ws-secret")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(root / "docs", root / "spare")
            os.rename(root / "trap", root / "docs")
            os.rename(root / "docs", root / "trap")
            os.rename(root / "spare", root / "docs")

    swapping = threading.Thread(target=swap)
    swapping.start()
    seen, refused = set(), 0
    try:
        for _ in range(3000):
            try:
                seen.add(read(root, "docs/secret.txt"))
            except (PathOutsideWorkspace, PathNotFound, PathNotFile):
                refused += 1
    finally:
        stop.set()
        swapping.join()
    assert seen <= {b"harmless"}
    assert refused
