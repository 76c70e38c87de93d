"""What is found is listed, one match on a line."""

import asyncio
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from palyra.core.tool import CallOutcome
from palyra.sandbox.base import ProgramOutcome as Ended
from palyra.sandbox.base import ResourceLimits, SandboxJob, Tier
from palyra.sandbox.processes.mounts import HiddenFolders
from palyra.sandbox.processes.process import ProcessSandbox
from palyra.sandbox.search import search as engine
from palyra.tools.builtin.search import search
from palyra.tools.execution import ToolResult
from tests.support.eventually import eventually
from tests.support.needs import BUBBLEWRAP, RIPGREP, require
from tests.unit.tools.surroundings import a_call, a_context, outcome, run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "a.txt").write_text("The budget\nnothing\n")
    (tmp_path / "docs" / "b.md").write_text("a budget: high\n")
    return tmp_path


async def found(root: Path, **arguments: object) -> ToolResult:
    return await outcome(a_call("files.search", arguments), root=root)


async def test_matches_are_listed_with_path_and_line(root: Path) -> None:
    assert (await found(root, text="budget")).text == (
        "2 matches (2 files searched)\na.txt:1: The budget\ndocs/b.md:1: a budget: high"
    )


async def test_one_match_is_one_match(root: Path) -> None:
    assert (await found(root, text="nothing")).text.startswith("1 match (2 files searched)")
    assert (await found(root, text="nothing", folder="a.txt")).text.startswith("1 match (1 file searched)")


async def test_files_are_found_by_name(root: Path) -> None:
    assert (await found(root, glob="*.md")).text == "1 file (1 file searched)\ndocs/b.md"


async def test_nothing_found_is_no_error(root: Path) -> None:
    finished = await found(root, text="zebra")
    assert (finished.outcome, finished.text) == (CallOutcome.OK, "0 matches (2 files searched)")


async def test_a_limit_is_kept_and_named(root: Path) -> None:
    assert (await found(root, text="budget", limit=1)).text == (
        "1 match (2 files searched)\na.txt:1: The budget\n[only the first 1 are shown; narrow it by folder or glob]"
    )


async def test_a_pattern_may_be_given(root: Path) -> None:
    assert (await found(root, text="^a .*h$", regex=True)).text.startswith("1 match")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "Give a text to find, or a glob"),
        ({"text": "(", "regex": True}, "malformed"),
        ({"text": "x", "folder": "gone"}, "There is no 'gone'"),
        ({"text": "x", "folder": "../.."}, "outside the workspace"),
        ({"text": "x", "limit": 0}, "$.limit"),
    ],
)
async def test_a_search_that_can_not_be_made_says_why(root: Path, arguments: dict[str, object], words: str) -> None:
    finished = await found(root, **arguments)
    assert finished.outcome is CallOutcome.ERROR
    assert words in finished.text


async def test_a_pattern_that_never_ends_does_not_hold_the_daemon(root: Path) -> None:
    (root / "bait.txt").write_text("a" * 60 + "!")
    searching = asyncio.create_task(
        run(a_call("files.search", {"text": "(a+)+$", "regex": True}), root=root, timeout_ms=300)
    )
    beats = 0
    while not searching.done():
        await asyncio.sleep(0.01)
        beats += 1
    finished = await searching
    assert isinstance(finished, ToolResult)
    assert finished.outcome is CallOutcome.TIMEOUT
    assert beats >= 10


class Noted(ProcessSandbox):
    """A sandbox that notes how what it ran has ended."""

    def __init__(self) -> None:
        super().__init__(Tier.STRICT, private=HiddenFolders())
        self.ended: list[int] = []

    async def run(self, job: SandboxJob) -> Ended:
        ended = await super().run(job)
        self.ended.append(ended.exit_code)
        return ended


@pytest.fixture
def ripgrep() -> None:
    """Ripgrep can be used here."""
    require(BUBBLEWRAP, RIPGREP)


@pytest.mark.usefixtures("ripgrep")
@pytest.mark.parametrize(("patience", "ended"), [(0.0, [0]), (60.0, [])])
async def test_ripgrep_helps_with_searches_that_take_long_and_changes_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, patience: float, ended: list[int]
) -> None:
    monkeypatch.setattr(engine, "FILTER_TIMEOUT_SECONDS", patience)
    (root / "c.txt").write_text("nothing\n")
    sandbox = Noted()
    context = replace(a_context(root), searches=sandbox)
    given = msgspec.convert({"text": "budget"}, search.arguments)
    assert await search.run(context, given) == (
        "2 matches (3 files searched)\na.txt:1: The budget\ndocs/b.md:1: a budget: high"
    )
    assert sandbox.ended == ended
    assert context.witness.files == {str(root / "a.txt"), str(root / "docs"), str(root / "docs" / "b.md")}
    assert (context.witness.folders, context.witness.programs) == (set(), [])


class Endless:
    """A sandbox in which nothing ends by itself."""

    tier = Tier.STRICT
    enforces_read = True
    bounds = ResourceLimits()

    def __init__(self) -> None:
        self.begun = self.ended = 0

    async def check_ready(self, job: SandboxJob) -> None:
        pass

    async def run(self, job: SandboxJob) -> Ended:
        self.begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.ended += 1
        raise AssertionError


@pytest.mark.usefixtures("ripgrep")
async def test_a_search_that_is_broken_off_ends_ripgrep_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "FILTER_TIMEOUT_SECONDS", 0)
    sandbox = Endless()
    context = replace(a_context(root), searches=sandbox)
    searching = asyncio.ensure_future(search.run(context, msgspec.convert({"text": "budget"}, search.arguments)))
    await eventually(lambda: sandbox.begun == 1)
    searching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await searching
    assert sandbox.ended == 1
