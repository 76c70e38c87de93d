"""The daemon is killed right after each of its commits, one by one, before anybody is answered.

A run with several tools over several turns, one of them a child run, must come to the same end whatever the moment. The
client only knows what a client knows: it sends again under the same key, and attaches behind what it has seen.
"""

from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from random import Random
from signal import SIGKILL

import httpx
import pytest

from palyra.core.run.state import RunStatus
from tests.e2e.conftest import NewDaemon
from tests.e2e.proof import Kept, answer_of, calls_of, prove
from tests.support.daemon import FINAL, Daemon, Line, NotServing, Watcher

NOTES = "a needle in a hay stack\n"
ANSWER = f"So: It says: notes.md, {len(NOTES)} bytes, from line 1:\n{NOTES}"
READ = {"do": "call", "tool": "files.read", "arguments": {"path": "notes.md"}}
SCRIPT = {
    "rules": [
        {
            "when": {"equals": "go"},
            "turns": [
                [
                    {"do": "text", "text": "Let me look."},
                    {"do": "delay", "ms": 5},
                    {"do": "text", "text": " One moment."},
                    {"do": "call", "tool": "files.list"},
                    {"do": "call", "tool": "time.now", "arguments": {"zone": "UTC"}},
                ],
                [READ, {"do": "call", "tool": "files.search", "arguments": {"text": "needle"}}],
                [{"do": "call", "tool": "agent.delegate", "arguments": {"task": "read it"}}],
                [{"do": "text", "text": "So: {result}"}],
            ],
        },
        {"when": {"equals": "read it"}, "turns": [[READ], [{"do": "text", "text": "It says: {result}"}]]},
    ]
}
TOOLS = ["files.list", "time.now", "files.read", "files.search", "agent.delegate"]
PARTS = 4
"""Each takes every fourth commit: all of them are too much for one test on a machine that has other work too."""
MOST_COMMITS = 150
MOST_LIVES = 60


@pytest.mark.parametrize("first", range(1, PARTS + 1))
def test_a_run_survives_a_kill_after_each_of_its_commits(new_daemon: NewDaemon, workspace: Path, first: int) -> None:
    # Ever later, until the run is over before the kill comes.
    for number in range(first, MOST_COMMITS, PARTS):
        lives, kept = live_through(new_daemon(SCRIPT, workspace_root=workspace), iter([number]))
        check_answers(kept)
        if lives == 1:
            break
    else:
        pytest.fail("it never came through")
    assert number > 20


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_run_survives_kill_after_kill(new_daemon: NewDaemon, workspace: Path, seed: int) -> None:
    chance = Random(seed)
    # Each turn that a kill breaks off counts, and a run that had used up all of them would end without its answer.
    daemon = new_daemon(SCRIPT, workspace_root=workspace, limits_model_turns=200)

    lives, _ = live_through(daemon, (chance.randint(5, 14) for _ in range(MOST_LIVES)))

    assert lives > 2


def test_a_run_that_kills_the_daemon_in_every_turn_comes_to_an_end(new_daemon: NewDaemon) -> None:
    daemon = new_daemon({"default": [{"do": "endless", "text": "…", "delay_ms": 20}]}, limits_model_turns=2).start()
    accepted = daemon.send("go")
    watcher = Watcher(daemon, accepted["session_id"])
    lives = 1
    while watcher.follow(lambda line: line.kind in {"model_turn_started", *FINAL}).kind not in FINAL:
        lives += 1
        assert lives < 20, "it goes on for ever"
        daemon.kill()
        daemon.start()

    run = daemon.run(accepted["run_id"])
    assert run["status"] == "failed"
    assert "in a row" in run["reason"]
    assert daemon.verify().ok


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "notes.md").write_text(NOTES)
    return folder


def live_through(daemon: Daemon, kills: Iterator[int]) -> tuple[int, Kept]:
    """Have the run carried to its end by as many processes as it takes; return their number and what they kept."""
    watcher: Watcher | None = None
    lives = 0
    # When no kill is left the process lives.
    for crash_after in chain(kills, repeat(None, 1)):
        lives += 1
        try:
            daemon.start(crash_after=crash_after)
            if watcher is None:
                watcher = Watcher(daemon, daemon.send("go", key="once")["session_id"])
            watcher.follow(is_over)
            break
        except (NotServing, httpx.TransportError):
            assert daemon.wait() == -SIGKILL, f"life {lives}: {daemon.output()}"
    daemon.kill()
    assert watcher is not None
    return lives, check(daemon, watcher)


def is_over(line: Line) -> bool:
    """Tell whether nothing is left to do: a session is given its title after its first run has ended."""
    return line.kind == "session_renamed"


def check(daemon: Daemon, watcher: Watcher) -> Kept:
    """Check what holds however often the run was interrupted."""
    kept = prove(daemon)
    [parent] = [run for run in kept.runs if run.parent_run_id is None]
    assert {run.status for run in kept.runs} == {RunStatus.DONE}
    assert {run.limit_reached for run in kept.runs} == {None}
    assert [line.text for line in watcher.lines] == [line.text for line in kept.tapes[parent.session_id]]
    assert [tool for tool, _ in calls_of(kept.tape_of(parent))] == TOOLS
    return kept


def check_answers(kept: Kept) -> None:
    """Check that no call was given up, and that what came of them all is right."""
    calls = [call for run in kept.runs for call in calls_of(kept.tape_of(run))]
    assert {outcome for _, outcome in calls} == {"ok"}
    [parent] = [run for run in kept.runs if run.parent_run_id is None]
    [child] = [run for run in kept.runs if run.parent_run_id is not None]
    lines = kept.tape_of(parent)
    [ended] = [line.event for line in lines if line.kind == "child_ended"]
    assert (ended["child_run_id"], ended["text"]) == (child.run_id, answer_of(kept.tape_of(child)))
    assert answer_of(lines) == f"So: {ended['text']}" == ANSWER
