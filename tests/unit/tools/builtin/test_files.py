"""Files are listed and read in slices that fit."""

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.core.errors import OffsetBeyondEnd
from palyra.core.tool import MAX_RESULT_BYTES, CallOutcome, JsonObject
from palyra.sandbox.files.workspace import Workspace
from palyra.tools.builtin import files
from palyra.tools.execution import ToolResult
from tests.unit.tools.surroundings import a_call, outcome


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "notes.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "pic.png").write_bytes(b"\x89PNG\r\n\x1a\nabc")
    (tmp_path / "link").symlink_to("notes.txt")
    return tmp_path


async def listed(root: Path, **arguments: object) -> ToolResult:
    return await outcome(a_call("files.list", arguments), root=root)


async def read(root: Path, path: str, **arguments: object) -> ToolResult:
    return await outcome(a_call("files.read", {"path": path, **arguments}), root=root)


async def test_a_folder_is_listed_with_kinds_and_sizes(root: Path) -> None:
    assert (await listed(root)).text == (".: 4 entries\ndocs/\nlink (link)\nnotes.txt (14 bytes)\npic.png (11 bytes)")


async def test_an_empty_folder_has_no_entries(root: Path) -> None:
    assert (await listed(root, folder="docs")).text == "docs: 0 entries"


async def test_an_empty_name_means_the_workspace(root: Path) -> None:
    assert (await listed(root, folder="")).text.startswith(".: 4 entries")


async def test_a_listing_is_cut_and_says_so(root: Path) -> None:
    text = (await listed(root, limit=1)).text
    assert text == ".: 4 entries\ndocs/\n[3 more; raise limit to see them]"


async def test_a_missing_folder_is_an_error_that_helps(root: Path) -> None:
    finished = await listed(root, folder="gone")
    assert finished.outcome is CallOutcome.ERROR
    assert "List the folder to see what there is" in finished.text


async def test_a_file_is_read_whole(root: Path) -> None:
    assert (await read(root, "notes.txt")).text == "notes.txt, 14 bytes, from line 1:\none\ntwo\nthree\n"


async def test_lines_are_read_from_a_place_on(root: Path) -> None:
    assert (await read(root, "notes.txt", line=2, lines=1)).text == (
        "notes.txt, 14 bytes, from line 2:\ntwo\n[more follows: read again with line=3]"
    )
    assert (await read(root, "notes.txt", line=3, lines=1)).text == "notes.txt, 14 bytes, from line 3:\nthree"


async def test_a_place_beyond_the_end_is_an_error(root: Path) -> None:
    for arguments in ({"line": 4}, {"line": 9999}, {"byte": 14}):
        finished = await read(root, "notes.txt", **arguments)
        assert finished.outcome is CallOutcome.ERROR
        assert "ends before" in finished.text


async def test_a_binary_file_is_described(root: Path) -> None:
    assert (await read(root, "pic.png")).text == ("pic.png is a PNG image of 11 bytes; its content is not shown.")


async def test_an_empty_file_is_called_empty(root: Path) -> None:
    (root / "void").touch()
    assert (await read(root, "void")).text == "void is empty."


async def test_a_mark_at_the_beginning_is_no_text(root: Path) -> None:
    (root / "bom.txt").write_bytes(b"\xef\xbb\xbfhi")
    assert (await read(root, "bom.txt")).text.endswith(":\nhi")


async def test_text_in_another_encoding_is_still_shown(root: Path) -> None:
    (root / "latin.txt").write_bytes("Ein Café am Fluss, weit weg".encode("latin-1"))
    assert "Ein Caf� am Fluss" in (await read(root, "latin.txt")).text


async def test_a_name_can_not_pretend_to_be_several(root: Path) -> None:
    (root / "docs" / "a\n[9 more]\x1b[31m").touch()
    assert (await listed(root, folder="docs")).text == "docs: 1 entry\na⟨LF⟩[9 more]⟨ESC⟩[31m (0 bytes)"


async def test_numbers_without_bound_are_no_fault(root: Path) -> None:
    assert (await read(root, "notes.txt", lines=10**30)).outcome is CallOutcome.OK
    assert "ends before" in (await read(root, "notes.txt", byte=10**30)).text
    assert "ends before" in (await read(root, "notes.txt", line=10**30)).text


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "docs", "gone.txt", ""])
async def test_what_can_not_be_read_is_an_error(root: Path, path: str) -> None:
    assert (await read(root, path)).outcome is CallOutcome.ERROR


async def test_the_number_of_lines_to_skip_is_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_SKIPPED_BYTES", 1000)
    (root / "wide.txt").write_text("x" * 500_000)
    assert "Use byte" in (await read(root, "wide.txt", line=2)).text


def slices(root: Path, path: str, *, lines: int = 500) -> list[str]:
    """Read a file to its end, each time from where the last slice says."""
    place: JsonObject = {"line": 1, "byte": 0}
    texts = []
    while True:
        result = files._read(Workspace((root,)), path, lines=lines, **place)
        assert len(result.encode()) <= MAX_RESULT_BYTES
        _, _, body = result.partition("\n")
        more = re.search(r"\n\[more follows: read again with (line|byte)=(\d+)\]$", body)
        texts.append(body[: more.start()] if more else body)
        if more is None:
            return texts
        place = {"line": 1, "byte": 0} | {more[1]: int(more[2])}


def test_a_long_file_can_be_read_to_its_end_line_by_line(tmp_path: Path) -> None:
    content = "".join(f"line {n} äöü\n" for n in range(5000))
    (tmp_path / "long.txt").write_text(content)
    pieces = slices(tmp_path, "long.txt")
    assert len(pieces) > 3
    assert "\n".join(pieces) == content.rstrip("\n")


def test_one_long_line_can_be_read_to_its_end_by_bytes(tmp_path: Path) -> None:
    content = "äbc€😀" * 9000
    (tmp_path / "wide.txt").write_text(content)
    pieces = slices(tmp_path, "wide.txt")
    assert len(pieces) > 5
    assert "".join(pieces) == content


def test_a_place_in_the_middle_of_a_character_is_no_harm(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("a😀b")
    text = files._read(Workspace((tmp_path,)), "x.txt", line=1, lines=1, byte=2)
    assert text.endswith("from byte 2:\nb")


@given(st.binary(min_size=1, max_size=80).filter(lambda raw: b"\0" not in raw), st.integers(1, 80))
def test_reading_by_bytes_always_comes_to_an_end(content: bytes, byte: int) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "SLICE_BYTES", 8)
        (Path(folder) / "x").write_bytes(content)
        for _ in range(40):
            try:
                text = files._read(Workspace((Path(folder),)), "x", line=1, lines=9, byte=byte)
            except OffsetBeyondEnd:
                break
            if not (more := re.search(r"byte=(\d+)\]$", text)):
                break
            assert int(more[1]) > byte
            byte = int(more[1])
        else:
            pytest.fail("there was always more")


@given(st.text(alphabet="ab\nä😀", min_size=1, max_size=400), st.integers(1, 20))
def test_slices_by_lines_make_up_the_file(content: str, lines: int) -> None:
    with TemporaryDirectory() as folder:
        (Path(folder) / "x").write_text(content)
        joined = "\n".join(slices(Path(folder), "x", lines=lines))
    assert joined.rstrip("\n") == content.rstrip("\n")
