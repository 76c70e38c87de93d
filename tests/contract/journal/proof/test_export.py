"""Exports: all that the chain covers is in them, and they prove themselves without the journal."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from palyra.core.errors import FileExists
from palyra.core.ids import SessionId
from palyra.core.session import SessionNotFound
from palyra.journal.atomic_file import FileNotWritable, atomic_file
from palyra.journal.proof import export, export_proof
from palyra.journal.proof.anchors import Anchor
from palyra.journal.proof.export import AnchorMismatch, ExportFooter
from palyra.journal.proof.export_proof import ExportInvalid, ExportReport, ExportVersionUnsupported, FileNotReadable
from tests.contract.journal.builders import a_session_id
from tests.contract.journal.homes import KeptHome
from tests.support.builders import AT, a_turn

Lines = list[dict[str, object]]
Change = Callable[[Lines], object]


@pytest.fixture
def kept(fresh_home: KeptHome) -> KeptHome:
    return fresh_home.begin().live_a_little()


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "SLICE", 2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An export, for the tests in which the engine does not matter."""
    folder = tmp_path_factory.mktemp("export")
    kept = KeptHome(folder / "home", database_url=None).begin().live_a_little()
    exported_to(folder / "all", kept)
    kept.let_go()
    return (folder / "all").read_bytes()


@pytest.fixture
def one(data: bytes, tmp_path: Path) -> Path:
    """A file with that export."""
    (tmp_path / "one").write_bytes(data)
    return tmp_path / "one"


def exported_to(
    path: Path, kept: KeptHome, *, session_id: SessionId | None = None, since: Anchor | None = None
) -> ExportFooter:
    with kept.reading() as conn, atomic_file(path) as file:
        return export.write(conn, file.write, made_at=AT, session_id=session_id, since=since)


def read(path: Path) -> Lines:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, lines: Lines) -> None:
    path.write_text("".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines))


def changed(path: Path, change: Change) -> ExportReport:
    """Change the lines of an export, and prove it."""
    lines = read(path)
    change(lines)
    write(path, lines)
    return export_proof.verify_file(path)


def only(proof: ExportReport) -> tuple[str | None, int | None, str]:
    (problem,) = proof.report.problems
    return problem.session_id, problem.tape_seq, problem.what


def of_kind(lines: Lines, kind: str) -> Lines:
    return [line for line in lines if line["line"] == kind]


# -- what is in it


def test_an_export_holds_every_entry_and_proves_itself(kept: KeptHome, tmp_path: Path) -> None:
    footer = exported_to(tmp_path / "all", kept)
    proof = export_proof.verify_file(tmp_path / "all")

    lines = read(tmp_path / "all")
    stored = kept.rows("SELECT session_id, tape_seq, content, salt, hash FROM tape ORDER BY session_id, tape_seq")
    names = ("session_id", "tape_seq", "content", "salt", "hash")
    assert [tuple(line[name] for name in names) for line in of_kind(lines, "entry")] == stored
    assert lines[0]["journal_ids"] == ["01JGKK8F5E0000000000000001"]
    assert proof.report == kept.verify()
    assert proof.report.ok
    assert (footer.sessions, footer.entries, footer.anchors) == (3, len(stored), 2)
    assert (tmp_path / "all").stat().st_mode & 0o777 == 0o600


def test_an_export_of_one_session_holds_its_tape_alone(kept: KeptHome, tmp_path: Path) -> None:
    exported_to(tmp_path / "one", kept, session_id=a_session_id(2))
    proof = export_proof.verify_file(tmp_path / "one")

    assert proof.report.ok
    assert {line["session_id"] for line in of_kind(read(tmp_path / "one"), "entry")} == {a_session_id(2)}
    assert list(proof.heads) == [a_session_id(2)]


def test_an_export_since_an_anchor_holds_what_came_after_it(kept: KeptHome, tmp_path: Path) -> None:
    saved = kept.anchor()
    ((ended,),) = kept.rows(f"SELECT tape_seq FROM heads WHERE session_id = '{a_session_id(1)}'")
    kept.run(7, a_session_id(1), a_turn(1))
    kept.run(8, kept.session(4), a_turn(1))

    exported_to(tmp_path / "new", kept, since=saved)

    proof = export_proof.verify_file(tmp_path / "new", saved=saved)
    assert proof.report.ok
    lines = read(tmp_path / "new")
    starts = {line["session_id"]: line["after_seq"] for line in of_kind(lines, "session")}
    assert starts == {a_session_id(1): ended, a_session_id(4): 0}


def test_an_export_since_an_anchor_must_begin_where_the_anchor_says(kept: KeptHome, tmp_path: Path) -> None:
    saved = kept.anchor()
    kept.run(7, a_session_id(1), a_turn(1))
    exported_to(tmp_path / "new", kept, since=saved)

    proof = changed(tmp_path / "new", lambda lines: of_kind(lines, "session")[0].update(before="f" * 64))

    assert proof.report.problems[0].what == "no anchor covers what came before this tape"


def test_an_export_since_an_anchor_of_another_journal_is_refused(kept: KeptHome, tmp_path: Path) -> None:
    saved = kept.anchor()
    foreign = Anchor(number=saved.number, body="{}", hash="", signature="", public_key="")

    with pytest.raises(AnchorMismatch):
        exported_to(tmp_path / "new", kept, since=foreign)

    assert list(tmp_path.glob("*new*")) == []


def test_an_export_of_an_unknown_session_is_refused_and_leaves_nothing(kept: KeptHome, tmp_path: Path) -> None:
    with pytest.raises(SessionNotFound):
        exported_to(tmp_path / "one", kept, session_id=a_session_id(99))

    assert [path.name for path in tmp_path.iterdir() if "one" in path.name] == []


# -- what was changed in it


@pytest.mark.parametrize(
    ("change", "place", "what"),
    [
        (lambda lines: of_kind(lines, "entry")[2].update(content="{}"), 3, "altered, inserted or moved"),
        (lambda lines: of_kind(lines, "entry")[2].update(at_ms=1), 3, "altered, inserted or moved"),
        (lambda lines: of_kind(lines, "entry")[2].update(salt="00" * 16), 3, "altered, inserted or moved"),
        (lambda lines: lines.remove(of_kind(lines, "entry")[2]), 3, "an entry is missing here"),
    ],
    ids=["content", "time", "salt", "removed"],
)
def test_the_first_wrong_entry_is_named(one: Path, change: Change, place: int, what: str) -> None:
    session_id, tape_seq, said = only(changed(one, change))

    assert (session_id, tape_seq) == (a_session_id(1), place)
    assert what in said


def test_a_tape_that_is_cut_off_is_named_with_its_last_entry(one: Path) -> None:
    last = read(one)[-2]

    found = only(changed(one, lambda lines: lines.remove(lines[-2])))

    assert found == (last["session_id"], int(str(last["tape_seq"])) - 1, "entries are missing after this one")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda lines: lines.remove(of_kind(lines, "anchor")[0]), "anchor 1 is missing"),
        (lambda lines: lines.remove(lines[-1]), "the export is truncated after line"),
        (lambda lines: lines[0].update(made_at="2020-01-01T00:00:00Z"), "the digest in the last line does not match"),
        (lambda lines: lines.append(lines[-1]), "there is data after the last line"),
        (lambda lines: lines[-1].update(entries=1), "the counts in the last line do not match"),
        (lambda lines: lines.insert(2, {"line": "gift"}), "line 3 is not a line of an export"),
        (lambda lines: lines.insert(-1, of_kind(lines, "anchor")[0]), "is out of order"),
        (lambda lines: lines[0].update(public_key="00" * 32), "anchor 1 is not signed by this journal's key"),
        (lambda lines: lines[0].update(journal_ids=["other"]), "anchor 1 does not follow"),
    ],
)
def test_whatever_else_is_wrong_with_the_file_is_named(one: Path, change: Change, what: str) -> None:
    assert what in changed(one, change).report.problems[0].what


def test_a_session_that_is_left_out_is_missed(one: Path) -> None:
    lines = [line for line in read(one) if line.get("session_id") != a_session_id(2)]
    write(one, lines)

    assert only(export_proof.verify_file(one)) == (
        *(a_session_id(2), 1),
        "an anchor names this session, but its tape is missing",
    )


def test_an_export_that_is_cut_off_anywhere_does_not_hold(one: Path) -> None:
    data = one.read_bytes()
    first = data.index(b"\n") + 1

    for length in range(first, len(data), 997):
        one.write_bytes(data[:length])
        assert not export_proof.verify_file(one).report.ok


def test_a_saved_anchor_shows_an_export_of_a_journal_that_was_rolled_back(kept: KeptHome, tmp_path: Path) -> None:
    exported_to(tmp_path / "all", kept)
    later = kept.anchor()

    assert "rolled back" in only(export_proof.verify_file(tmp_path / "all", saved=later))[2]


# -- what is no export


@pytest.mark.parametrize(
    "data", [b"", b"{}\n", b"hello\n", b"SQLite format 3\x00", b"\xff\xfe\n", b'{"line":"footer"}\n']
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)

    with pytest.raises(ExportInvalid):
        export_proof.verify_file(tmp_path / "file")


def test_an_export_of_a_newer_version_is_refused(one: Path) -> None:
    lines = read(one)
    lines[0]["format"] = 2
    write(one, lines)

    with pytest.raises(ExportVersionUnsupported):
        export_proof.verify_file(one)


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotReadable, match="nowhere"):
        export_proof.verify_file(tmp_path / "nowhere")


# -- files as a whole


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    def fill(file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(FileNotWritable, match="full"), atomic_file(tmp_path / "file") as file:
        fill(file)

    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")

    with pytest.raises(FileExists), atomic_file(tmp_path / "file") as file:
        file.write(b"theirs")

    assert (tmp_path / "file").read_text() == "mine"
