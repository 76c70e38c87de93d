"""Ripgrep names files, and neither sees nor changes nor shows what is not the workspace's."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from palyra.sandbox.base import ProgramOutcome, ResourceLimits, SandboxJob, SandboxMissing, Tier
from palyra.sandbox.files.reserved_files import ReservedFiles
from palyra.sandbox.files.root import WorkspaceRoot
from palyra.sandbox.files.workspace import Workspace
from palyra.sandbox.processes import tiers
from palyra.sandbox.search import search as module
from palyra.sandbox.search.ripgrep import PROGRAM, names, pattern_of
from palyra.sandbox.search.search import RequiredWords, SearchQuery, SearchResult
from tests.contract.sandbox.conftest import SECRET, Ground
from tests.support.clock import FakeClock
from tests.support.file_search import sifted, walked
from tests.support.needs import BUBBLEWRAP, RIPGREP, require


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ripgrep is there, and is asked before the first file is read."""
    require(BUBBLEWRAP, RIPGREP)
    monkeypatch.setattr(module, "FILTER_TIMEOUT_SECONDS", 0)


def named(
    ground: Ground, text: str, *, folder: str = ".", glob: str = "", roots: tuple[Path, ...] = ()
) -> set[str] | None:
    """Return the files that ripgrep names for a text."""
    needles = RequiredWords((text,), any_case=text == text.lower())
    query = SearchQuery(text, folder=folder, glob=glob)
    workspace = Workspace(roots or (ground.workspace,))
    found = asyncio.run(names(ground.sandbox(Tier.STRICT), workspace, query, needles))
    return None if found is None else set(found)


def both(ground: Ground, query: SearchQuery) -> SearchResult:
    """Search in both ways, see that they come to the same, and return that."""
    workspace = Workspace((ground.workspace,), forbidden=ReservedFiles((ground.home,), spared=(ground.workspace,)))
    found = sifted(workspace, query, clock=FakeClock(), sandbox=ground.sandbox(Tier.STRICT))
    assert found == walked(workspace, query, clock=FakeClock())
    return found


def paths(found: SearchResult) -> list[str]:
    return [match.path for match in found.matches]


def test_files_are_named_as_the_walk_names_them(ground: Ground) -> None:
    for name in ("a.txt", "docs/b.md", ".hidden/c.md", ".git/d.md", "node_modules/e.md"):
        path = ground.workspace / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("a Needle\n")
    (ground.workspace / ".gitignore").write_text("*.md\n")
    (ground.workspace / "other.txt").write_text("nothing\n")
    assert named(ground, "needle") == {"a.txt", "docs/b.md", ".hidden/c.md"}
    assert named(ground, "needle", folder="docs") == {"docs/b.md"}
    assert named(ground, "needle", folder=".git") == {".git/d.md"}
    assert named(ground, "needle", glob="*.txt") == {"a.txt"}
    assert named(ground, "needles") == set()


def test_only_the_searched_root_is_seen(ground: Ground) -> None:
    (ground.workspace / "in").symlink_to(ground.outside)
    (ground.workspace / "diary").symlink_to(ground.outside / "diary.txt")
    (ground.workspace / "own.txt").write_text(SECRET)
    assert named(ground, SECRET) == {"own.txt"}
    assert named(ground, SECRET, roots=(ground.workspace, ground.outside)) == {"own.txt"}
    assert named(ground, SECRET, roots=(ground.folder,)) == {"outside/diary.txt"}


def test_a_file_of_palyras_own_that_is_linked_into_the_workspace_is_not_shown(ground: Ground) -> None:
    os.link(ground.home / "token", ground.workspace / "mine.txt")
    found = both(ground, SearchQuery(SECRET))
    assert (found.matches, found.files) == ((), 0)


def test_no_one_gets_out_by_changing_the_workspace_meanwhile(ground: Ground) -> None:
    for number in range(50):
        (ground.workspace / f"f{number}").write_text("nothing\n")
    swapped, aside = ground.workspace / "swapped", ground.workspace / "aside"
    swapped.mkdir()
    (swapped / "diary.txt").write_text("nothing\n")
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            swapped.rename(aside)
            swapped.symlink_to(ground.outside)
            swapped.unlink()
            aside.rename(swapped)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(10):
            found = sifted(
                Workspace((ground.workspace,)),
                SearchQuery(SECRET),
                clock=FakeClock(),
                sandbox=ground.sandbox(Tier.STRICT),
            )
            assert found.matches == ()
            assert not named(ground, SECRET)
    finally:
        done.set()
        swapping.join()


@pytest.mark.parametrize(
    "name",
    [b"--files", b"-e", b"--pre=touch", b"!x", b"new\nline", b"\xff\xfe", b" ", b"a\tb", b"./.x", "\u202e".encode()],
)
def test_a_name_is_a_name(ground: Ground, name: bytes) -> None:
    (ground.workspace / os.fsdecode(name)).write_text("a needle\n")
    (ground.workspace / "other").write_text("nothing\n")
    path = os.path.normpath(os.fsdecode(name))
    assert named(ground, "needle") == {path}
    assert paths(both(ground, SearchQuery("needle"))) == [path]


@pytest.mark.parametrize(
    "text", ["--files", "-e", "needle|x", "a\\b", "$HOME", "'", '"', "(", "[", "{1", "\t", "#", "&&", "~"]
)
def test_a_text_is_a_text(ground: Ground, text: str) -> None:
    (ground.workspace / "a.txt").write_text(f"so {text} it is\n")
    (ground.workspace / "b.txt").write_text("needle x 1 ab HOME files\n")
    assert named(ground, text) == {"a.txt"}
    assert paths(both(ground, SearchQuery(text))) == ["a.txt"]


def test_huge_lines_huge_files_and_pipes_hold_nobody_up(ground: Ground) -> None:
    (ground.workspace / "line.txt").write_bytes(b"x" * (3 << 20) + b"needle" + b"x" * 1000)
    (ground.workspace / "long.txt").write_bytes(b"x" * (5 << 20) + b"needle")
    with (ground.workspace / "sparse").open("wb") as file:
        file.write(b"needle\n")
        file.truncate(1 << 30)
    os.mkfifo(ground.workspace / "pipe")
    assert named(ground, "needle") == {"line.txt"}
    found = both(ground, SearchQuery("needle"))
    assert (paths(found), found.files) == (["line.txt"], 3)
    assert "1 large file was" in found.cut_short


def test_a_file_that_can_not_be_read_makes_every_file_be_opened(ground: Ground) -> None:
    (ground.workspace / "a.txt").write_text("needle\n")
    (ground.workspace / "b.txt").write_text("needle\n")
    (ground.workspace / "b.txt").chmod(0)
    assert named(ground, "needle") is None
    assert "a.txt" in paths(both(ground, SearchQuery("needle")))


def without_strict(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "SEARCHED", "/nonexistent")


def with_another_rg(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be a program of that name which the sandbox does not show."""
    tools = ground.folder / "tools"
    tools.mkdir()
    for name in ("bwrap", "prlimit"):
        (tools / name).symlink_to(tiers.find(name) or "")
    (tools / PROGRAM).write_text("#!/bin/sh\nexit 1\n")
    (tools / PROGRAM).chmod(0o755)
    monkeypatch.setattr(tiers, "SEARCHED", str(tools))


@pytest.mark.parametrize("trouble", [without_strict, with_another_rg])
def test_without_a_word_of_ripgrep_every_file_is_opened(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, trouble: Callable[[Ground, pytest.MonkeyPatch], None]
) -> None:
    (ground.workspace / "a.txt").write_text("needle\n")
    trouble(ground, monkeypatch)
    assert named(ground, "needle") is None
    assert paths(both(ground, SearchQuery("needle"))) == ["a.txt"]


class Weaker:
    """A sandbox of another tier, which remembers what it was asked to run."""

    bounds = ResourceLimits()
    enforces_read = False

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.asked: list[SandboxJob] = []

    async def check_ready(self, job: SandboxJob) -> None:
        pass

    async def run(self, job: SandboxJob) -> ProgramOutcome:
        self.asked.append(job)
        raise SandboxMissing


@pytest.mark.parametrize("tier", [Tier.GUARDED, Tier.OFF])
def test_a_weaker_sandbox_is_not_used(ground: Ground, tier: Tier) -> None:
    sandbox = Weaker(tier)
    (ground.workspace / "a.txt").write_text("needle\n")
    found = sifted(Workspace((ground.workspace,)), SearchQuery("needle"), clock=FakeClock(), sandbox=sandbox)
    assert (paths(found), sandbox.asked) == (["a.txt"], [])


def test_folders_that_are_there_to_be_read_can_not_be_changed(ground: Ground, tier: Tier) -> None:
    (ground.workspace / "a.txt").write_text("old\n")
    job = SandboxJob(
        argv=("/bin/sh", "-c", "cat a.txt; echo new > a.txt; echo new > b.txt; rm a.txt"),
        roots=(WorkspaceRoot(ground.workspace),),
        folder=ground.workspace,
        read_only=True,
    )
    outcome = asyncio.run(ground.sandbox(tier).run(job))
    assert outcome.stdout.text == "old\n"
    assert (ground.workspace / "a.txt").read_text() == "old\n"
    assert not (ground.workspace / "b.txt").exists()


def test_no_other_case_of_a_letter_is_missed(ground: Ground) -> None:
    """Each letter that ripgrep is asked for finds all that become it in lower case."""
    lowered: dict[str, set[int]] = {}
    for number in range(sys.maxunicode + 1):
        for letter in chr(number).lower():
            if chr(number) != letter:
                lowered.setdefault(letter, set()).add(number)
    asked = {
        letter: others for letter, others in lowered.items() if pattern_of(RequiredWords((letter,), any_case=True))
    }
    assert len(asked) > 150
    for letter, others in asked.items():
        for number in others:
            (ground.workspace / f"{ord(letter):x}-{number:x}").write_text(chr(number))
    expected = {f"{ord(letter):x}-{number:x}" for letter, others in asked.items() for number in others}
    found: set[str] = set()
    letters = sorted(asked)
    for start in range(0, len(letters), 50):
        words = tuple(letters[start : start + 50])
        some = asyncio.run(
            names(
                ground.sandbox(Tier.STRICT),
                Workspace((ground.workspace,)),
                SearchQuery("x"),
                RequiredWords(words, any_case=True),
            )
        )
        found |= some or set()
    assert expected <= found
