"""Text is found in files, within bounds."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from palyra.sandbox import search as module
from palyra.sandbox.patterns import PatternInvalid
from palyra.sandbox.search import Found, Match, Query, search
from palyra.sandbox.workspace import PathNotFound, Workspace


class StillClock:
    """Time that moves by a step each time it is looked at."""

    def __init__(self, step: float = 0.0) -> None:
        self._step = step
        self._passed = 0.0

    def now(self) -> datetime:
        return datetime(2026, 3, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        self._passed += self._step
        return self._passed


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "a.txt").write_text("The Budget\nnothing\nbudget of 2026\n")
    (tmp_path / "docs" / "b.md").write_text("budget übung\n")
    (tmp_path / ".git" / "c.txt").write_text("budget\n")
    (tmp_path / "bin.dat").write_bytes(b"budget\0budget")
    return tmp_path


def found(root: Path, query: Query, *, clock: StillClock | None = None) -> Found:
    return search(Workspace((root,)), query, clock=clock or StillClock(), stop=lambda: False)


def places(root: Path, query: Query) -> list[tuple[str, int]]:
    return [(match.path, match.line) for match in found(root, query).matches]


def test_lower_case_finds_any_case_in_text_files_by_path_and_line(root: Path) -> None:
    assert places(root, Query("budget")) == [("a.txt", 1), ("a.txt", 3), ("docs/b.md", 1)]


def test_a_capital_makes_the_case_count(root: Path) -> None:
    assert found(root, Query("Budget")).matches == (Match("a.txt", 1, "The Budget"),)


def test_a_literal_text_is_no_pattern(root: Path) -> None:
    (root / "re.txt").write_text("a.c\nabc\n")
    assert places(root, Query("a.c")) == [("re.txt", 1)]


def test_a_pattern_is_matched_line_by_line(root: Path) -> None:
    assert places(root, Query(r"^budget.*\d$", regex=True)) == [("a.txt", 3)]
    assert places(root, Query("BUDGET", regex=True)) == []


def test_a_malformed_pattern_is_refused(root: Path) -> None:
    with pytest.raises(PatternInvalid):
        found(root, Query("(", regex=True))


@pytest.mark.parametrize(
    ("glob", "paths"),
    [
        ("*.md", ["docs/b.md"]),
        ("*.txt", ["a.txt"]),
        ("docs/*", ["docs/b.md"]),
        ("**/*.md", ["docs/b.md"]),
        ("**/a.txt", ["a.txt"]),
        ("[ab].*", ["a.txt", "docs/b.md"]),
        ("B.MD", []),
    ],
)
def test_files_are_found_by_name(root: Path, glob: str, paths: list[str]) -> None:
    assert [match.path for match in found(root, Query("", glob=glob)).matches] == paths


def test_a_glob_narrows_a_search(root: Path) -> None:
    assert places(root, Query("budget", glob="*.md")) == [("docs/b.md", 1)]


def test_a_search_may_be_of_one_folder_or_file(root: Path) -> None:
    assert places(root, Query("budget", folder="docs")) == [("docs/b.md", 1)]
    assert places(root, Query("budget", folder="a.txt")) == [("a.txt", 1), ("a.txt", 3)]
    assert places(root, Query("budget", folder=".git")) == [(".git/c.txt", 1)]
    with pytest.raises(PathNotFound):
        found(root, Query("budget", folder="gone"))


def test_no_more_than_the_limit_is_given_and_that_is_said(root: Path) -> None:
    short = found(root, Query("budget", limit=2))
    assert len(short.matches) == 2
    assert "first 2" in short.cut_short
    assert found(root, Query("budget", limit=3)).cut_short == ""


def test_long_lines_are_cut(root: Path) -> None:
    (root / "long.txt").write_text("needle" + "x" * 10_000)
    (match,) = found(root, Query("needle")).matches
    assert len(match.text) <= module.MAX_LINE_CHARS + 1


def test_large_files_are_searched_in_part_and_that_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 10_000)
    (root / "large.txt").write_text("needle\n" + "x" * 20_000 + "\nneedle")
    result = found(root, Query("needle"))
    assert [(match.path, match.line) for match in result.matches] == [("large.txt", 1)]
    assert "1 large file was" in result.cut_short


@pytest.mark.parametrize("bound", ["MAX_FILES", "MAX_TOTAL_BYTES"])
def test_a_search_ends_with_its_budget(root: Path, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(module, bound, 1)
    result = found(root, Query("budget"))
    assert "too large" in result.cut_short
    assert len(result.matches) == 2


def test_a_search_ends_with_its_time(root: Path) -> None:
    assert "too large" in found(root, Query("budget"), clock=StillClock(step=6)).cut_short


def test_a_search_stops_when_told(root: Path) -> None:
    result = search(Workspace((root,)), Query("budget"), clock=StillClock(), stop=lambda: True)
    assert result.matches == ()


def test_letters_that_change_their_length_do_not_confuse_the_lines(root: Path) -> None:
    (root / "i.txt").write_text("İİİİ\nistanbul\n")
    assert ("i.txt", 2) in places(root, Query("istanbul"))
