"""Text is found in files, within bounds: by the walk alone, and with ripgrep the same."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from palyra.sandbox.files.workspace import PathNotFound, Workspace
from palyra.sandbox.search import search as module
from palyra.sandbox.search.regex import RegexInvalid
from palyra.sandbox.search.search import SearchMatch, SearchQuery, SearchResult
from tests.support.file_search import sifted, walked
from tests.support.needs import BUBBLEWRAP, RIPGREP, require


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


@dataclass(frozen=True, slots=True)
class Searched:
    """A workspace, and one of the ways to search it."""

    root: Path
    way: Callable[..., SearchResult]

    def found(self, query: SearchQuery, *, clock: StillClock | None = None, stop: bool = False) -> SearchResult:
        return self.way(Workspace((self.root,)), query, clock=clock or StillClock(), stop=lambda: stop)

    def places(self, query: SearchQuery) -> list[tuple[str, int]]:
        return [(match.path, match.line) for match in self.found(query).matches]


@pytest.fixture(params=["walk", "ripgrep"])
def at(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Searched:
    if request.param == "ripgrep":
        require(BUBBLEWRAP, RIPGREP)
    monkeypatch.setattr(module, "FILTER_TIMEOUT_SECONDS", 0)
    (tmp_path / "docs").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "a.txt").write_text("The Budget\nnothing\nbudget of 2026\n")
    (tmp_path / "docs" / "b.md").write_text("budget übung\n")
    (tmp_path / ".git" / "c.txt").write_text("budget\n")
    (tmp_path / "bin.dat").write_bytes(b"budget\0budget")
    return Searched(tmp_path, walked if request.param == "walk" else sifted)


def test_lower_case_finds_any_case_in_text_files_by_path_and_line(at: Searched) -> None:
    assert at.places(SearchQuery("budget")) == [("a.txt", 1), ("a.txt", 3), ("docs/b.md", 1)]


def test_a_capital_makes_the_case_count(at: Searched) -> None:
    assert at.found(SearchQuery("Budget")).matches == (SearchMatch("a.txt", 1, "The Budget"),)


def test_a_literal_text_is_no_pattern(at: Searched) -> None:
    (at.root / "re.txt").write_text("a.c\nabc\n")
    assert at.places(SearchQuery("a.c")) == [("re.txt", 1)]


def test_a_pattern_is_matched_line_by_line(at: Searched) -> None:
    assert at.places(SearchQuery(r"^budget.*\d$", regex=True)) == [("a.txt", 3)]
    assert at.places(SearchQuery("BUDGET", regex=True)) == []


def test_a_malformed_pattern_is_refused(at: Searched) -> None:
    with pytest.raises(RegexInvalid):
        at.found(SearchQuery("(", regex=True))


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
def test_files_are_found_by_name(at: Searched, glob: str, paths: list[str]) -> None:
    assert [match.path for match in at.found(SearchQuery("", glob=glob)).matches] == paths


def test_a_glob_that_is_too_long_is_refused(at: Searched) -> None:
    """One of sixty thousand characters takes a minute to be understood."""
    with pytest.raises(RegexInvalid, match="1000 characters"):
        at.found(SearchQuery("", glob="[a-" * 20_000))


def test_a_glob_narrows_a_search(at: Searched) -> None:
    assert at.places(SearchQuery("budget", glob="*.md")) == [("docs/b.md", 1)]


def test_a_search_may_be_of_one_folder_or_file(at: Searched) -> None:
    assert at.places(SearchQuery("budget", folder="docs")) == [("docs/b.md", 1)]
    assert at.places(SearchQuery("budget", folder="a.txt")) == [("a.txt", 1), ("a.txt", 3)]
    assert at.places(SearchQuery("budget", folder=".git")) == [(".git/c.txt", 1)]
    with pytest.raises(PathNotFound):
        at.found(SearchQuery("budget", folder="gone"))


def test_no_more_than_the_limit_is_given_and_that_is_said(at: Searched) -> None:
    short = at.found(SearchQuery("budget", limit=2))
    assert len(short.matches) == 2
    assert "first 2" in short.cut_short
    assert at.found(SearchQuery("budget", limit=3)).cut_short == ""


def test_long_lines_are_cut(at: Searched) -> None:
    (at.root / "long.txt").write_text("needle" + "x" * 10_000)
    (match,) = at.found(SearchQuery("needle")).matches
    assert len(match.text) <= module.MAX_LINE_CHARS + 1


def test_large_files_are_searched_in_part_and_that_is_said(at: Searched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 10_000)
    (at.root / "large.txt").write_text("needle\n" + "x" * 20_000 + "\nneedle")
    result = at.found(SearchQuery("needle"))
    assert [(match.path, match.line) for match in result.matches] == [("large.txt", 1)]
    assert "1 large file was" in result.cut_short


@pytest.mark.parametrize("bound", ["MAX_FILES", "MAX_TOTAL_BYTES"])
def test_a_search_ends_with_its_budget(at: Searched, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(module, bound, 1)
    result = at.found(SearchQuery("budget"))
    assert "too large" in result.cut_short
    assert len(result.matches) == 2


def test_a_search_ends_with_its_time(at: Searched) -> None:
    assert "too large" in at.found(SearchQuery("budget"), clock=StillClock(step=6)).cut_short


def test_a_search_stops_when_told(at: Searched) -> None:
    result = at.found(SearchQuery("budget"), stop=True)
    assert result.matches == ()


def test_letters_that_change_their_length_do_not_confuse_the_lines(at: Searched) -> None:
    (at.root / "i.txt").write_text("İİİİ\nistanbul\n")
    assert ("i.txt", 2) in at.places(SearchQuery("istanbul"))
