"""What a program has changed in a folder, by every way in which it can."""

import os
from pathlib import Path

import pytest

from palyra.sandbox.files import snapshot
from palyra.sandbox.files.snapshot import FolderChanges, SnapshotTooLarge, changes_since, is_within, outermost, take
from tests.support.needs import skip
from tests.support.unprivileged import ordinary_user


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    for path in ("a.txt", "docs/b.txt", "docs/deep/c.txt"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
    return folder


class Looked:
    """A folder that was looked at before the test changes it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._before = take((str(root),))

    def changes(self) -> FolderChanges:
        return changes_since(self._before)

    def entries(self) -> list[str]:
        changes = self.changes()
        assert (changes.listings, changes.hidden) == ([], [])
        return sorted(os.path.relpath(path, self._root) for path in changes.entries)


def test_nothing_has_changed(root: Path) -> None:
    assert Looked(root).changes() == FolderChanges()


def test_a_file_that_is_written_again_with_its_size_and_time_set_back_is_changed(root: Path) -> None:
    looked, file = Looked(root), root / "a.txt"
    found = file.stat()
    file.write_text("A.TXT")
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert looked.entries() == ["a.txt"]


def test_what_is_made_is_new_whatever_it_is(root: Path) -> None:
    looked = Looked(root)
    (root / "new.txt").touch()
    (root / "empty").mkdir()
    (root / "docs/link").symlink_to("nowhere: read this")
    os.mkfifo(root / "pipe")
    assert looked.entries() == ["docs/link", "empty", "new.txt", "pipe"]


def test_what_is_moved_is_new_where_it_is_with_all_that_lies_in_it(root: Path) -> None:
    looked = Looked(root)
    (root / "a.txt").rename(root / "docs/moved.txt")
    (root / "docs/deep").rename(root / "elsewhere")
    assert looked.entries() == ["docs/moved.txt", "elsewhere", "elsewhere/c.txt"]


def test_two_folders_that_change_places_are_new_in_full(root: Path) -> None:
    (root / "other").mkdir()
    (root / "other/b.txt").touch()
    looked = Looked(root)
    (root / "docs").rename(root / "third")
    (root / "other").rename(root / "docs")
    (root / "third").rename(root / "other")
    assert {"docs/b.txt", "other/b.txt", "other/deep/c.txt"} <= set(looked.entries())


def test_a_hard_link_is_new_and_so_is_the_file_that_it_is(root: Path) -> None:
    looked = Looked(root)
    os.link(root / "docs/b.txt", root / "same.txt")
    assert looked.entries() == ["docs/b.txt", "same.txt"]


def test_what_is_deleted_is_not_there_to_be_labelled_and_what_is_made_anew_is(root: Path) -> None:
    looked = Looked(root)
    (root / "a.txt").unlink()
    assert looked.entries() == []
    (root / "a.txt").write_text("a.txt")
    assert looked.entries() == ["a.txt"]


def test_a_new_folder_is_known_as_the_outermost_of_what_is_new(root: Path) -> None:
    looked = Looked(root)
    (root / "new/er/est").mkdir(parents=True)
    assert looked.changes().new_folders == [str(root / "new")]


def test_a_name_that_is_not_text_is_known_by_its_folder(root: Path) -> None:
    looked = Looked(root)
    os.mkdir(os.fsencode(root / "docs") + b"/\xff")
    Path(os.fsdecode(os.fsencode(root / "docs") + b"/\xff/inner.txt")).touch()
    changes = looked.changes()
    assert changes.entries == []
    assert set(changes.listings) == {str(root / "docs")}
    assert Looked(root).changes() == FolderChanges()


def test_attributes_of_a_folder_are_known_by_the_folder(root: Path) -> None:
    looked = Looked(root)
    try:
        os.setxattr(root / "docs", "user.note", b"read this")
    except OSError as error:
        skip("extended attributes", error)
    assert looked.changes().listings == [str(root / "docs")]
    assert Looked(root).changes() == FolderChanges()


@ordinary_user
def test_a_folder_that_cannot_be_looked_into_is_hidden(root: Path) -> None:
    looked = Looked(root)
    (root / "docs/deep").chmod(0)
    try:
        assert looked.changes().hidden == [str(root / "docs/deep")]
        assert Looked(root).changes() == FolderChanges()
    finally:
        (root / "docs/deep").chmod(0o700)


def test_what_lies_deeper_than_is_looked_is_hidden(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_DEPTH", 2)
    looked = Looked(root)
    (root / "new/er").mkdir(parents=True)
    changes = looked.changes()
    assert changes.hidden == [str(root / "new/er")]


def test_a_folder_that_holds_too_much_is_not_looked_at(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = Looked(root)
    monkeypatch.setattr(snapshot, "MAX_ENTRIES", 2)
    with pytest.raises(SnapshotTooLarge):
        looked.changes()


def test_the_outermost_folders() -> None:
    assert outermost(["/a/b", "/a", "/a-b", "/a/c", "/d"]) == ("/a", "/a-b", "/d")
    assert is_within("/a/b", "/a")
    assert not is_within("/a-b", "/a")
