"""A root below a trusted folder is opened through no link, whatever was put there since."""

import os
from pathlib import Path

import pytest

from palyra.core.errors import PalyraError
from palyra.sandbox.files.file_changes import FileChange, apply_changes, read_existing
from palyra.sandbox.files.root import RootOutsideWorkspace, RootSymlinked, WorkspaceMissing, WorkspaceRoot
from palyra.sandbox.files.workspace import PathOutsideWorkspace, Workspace

SECRET = "keep-this-secret"


@pytest.fixture
def trusted(tmp_path: Path) -> Path:
    """A workspace with a folder in it, and a folder outside."""
    folder = tmp_path / "ws"
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "sub" / "notes.txt").write_text("mine")
    (folder / "other").mkdir()
    (tmp_path / "outside" / "deep").mkdir(parents=True)
    (tmp_path / "outside" / "notes.txt").write_text(SECRET)
    return folder


def replace_by_link(folder: Path, target: Path | str) -> None:
    folder.rename(folder.with_name(folder.name + "-before"))
    folder.symlink_to(target)


def test_a_root_is_the_folder_that_its_names_lead_to(trusted: Path) -> None:
    descriptor, path = WorkspaceRoot(trusted, trusted / "sub" / "deep").open()
    found = os.fstat(descriptor)
    os.close(descriptor)
    assert (found.st_ino, path) == ((trusted / "sub" / "deep").stat().st_ino, trusted / "sub" / "deep")


def test_links_on_the_way_to_the_trusted_folder_are_followed(trusted: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(trusted)
    for below in (tmp_path / "alias" / "sub", trusted / "sub"):
        root = WorkspaceRoot(tmp_path / "alias", below)
        assert root.real_path() == trusted / "sub"
        assert Workspace((root,)).root_paths() == (trusted / "sub",)
        for spelling in (tmp_path / "alias" / "sub", trusted / "sub"):
            with Workspace((root,)).open_read(f"{spelling}/notes.txt") as file:
                assert file.read() == b"mine"


@pytest.mark.parametrize("target", ["/", "../outside", "other", "/proc/self/root", "/proc/self/cwd"])
def test_a_root_that_became_a_link_is_refused(trusted: Path, target: str) -> None:
    replace_by_link(trusted / "sub", target)
    for below in (trusted / "sub", trusted / "sub" / "deep"):
        with pytest.raises(RootSymlinked, match="'sub' in the path of the root is a symbolic link"):
            WorkspaceRoot(trusted, below).open()


@pytest.mark.parametrize("below", ["/", "/etc", "ws", ".", "..", "sub", "/ws", "//etc"])
def test_a_root_elsewhere_is_refused(trusted: Path, below: str) -> None:
    with pytest.raises(RootOutsideWorkspace):
        WorkspaceRoot(trusted, Path(below)).open()


@pytest.mark.parametrize("names", ["..", "../outside", "sub/../../outside", "sub/.."])
def test_no_root_leads_back(trusted: Path, names: str) -> None:
    with pytest.raises(RootOutsideWorkspace):
        WorkspaceRoot(trusted, Path(f"{trusted}/{names}")).open()


def test_a_folder_beside_the_trusted_one_with_a_longer_name_is_outside(trusted: Path) -> None:
    trusted.with_name("ws-2").mkdir()
    with pytest.raises(RootOutsideWorkspace):
        WorkspaceRoot(trusted, trusted.with_name("ws-2")).open()


@pytest.mark.parametrize("name", ["missing", "sub/notes.txt", "sub/notes.txt/deep", "x" * 300])
def test_what_is_not_a_folder_is_not_a_root(trusted: Path, name: str) -> None:
    with pytest.raises(WorkspaceMissing, match="is not a folder"):
        WorkspaceRoot(trusted, trusted / name).open()


def test_no_descriptor_is_left_open(trusted: Path) -> None:
    (trusted / "link").symlink_to("sub")
    before = len(os.listdir("/proc/self/fd"))
    for below in (trusted / "sub" / "deep", trusted / "link", trusted / "sub" / "missing", Path("/etc")):
        try:
            os.close(WorkspaceRoot(trusted, below).open()[0])
        except PalyraError:
            continue
    assert len(os.listdir("/proc/self/fd")) == before


def test_nothing_is_done_with_files_through_a_root_that_became_a_link(trusted: Path, tmp_path: Path) -> None:
    workspace = Workspace((trusted,)).within((trusted / "sub",))
    found = read_existing(workspace, "notes.txt")
    replace_by_link(trusted / "sub", tmp_path / "outside")
    for path in ("notes.txt", str(trusted / "sub" / "notes.txt")):
        for use in (
            workspace.open_read,
            lambda path: read_existing(workspace, path),
            lambda path: list(workspace.walk(path)),
        ):
            with pytest.raises(RootSymlinked):
                use(path)
    with pytest.raises(RootSymlinked):
        workspace.list_dir(".")
    with pytest.raises(RootSymlinked):
        apply_changes(workspace, [FileChange(found, b"changed")])
    assert (tmp_path / "outside" / "notes.txt").read_text() == SECRET
    assert sorted(os.listdir(tmp_path / "outside")) == ["deep", "notes.txt"]
    with pytest.raises(PathOutsideWorkspace):
        workspace.open_read(str(tmp_path / "outside" / "notes.txt"))


def test_paths_are_reported_by_the_names_that_were_walked(trusted: Path) -> None:
    workspace = Workspace((trusted,)).within((trusted / "sub",))
    assert (read_existing(workspace, "notes.txt").root, read_existing(workspace, "notes.txt").path) == (
        str(trusted / "sub"),
        str(trusted / "sub" / "notes.txt"),
    )
    with workspace.reach("notes.txt") as at:
        replace_by_link(trusted / "sub", "/etc")
        assert at.root.real_path() == trusted / "sub"


def test_a_link_to_an_absolute_path_enters_another_root_by_the_same_rules(trusted: Path, tmp_path: Path) -> None:
    workspace = Workspace((trusted,)).within((trusted / "other", trusted / "sub"))
    (trusted / "other" / "link").symlink_to(trusted / "sub" / "notes.txt")
    with workspace.open_read("link") as file:
        assert file.read() == b"mine"
    replace_by_link(trusted / "sub", tmp_path / "outside")
    with pytest.raises(RootSymlinked):
        workspace.open_read("link")
