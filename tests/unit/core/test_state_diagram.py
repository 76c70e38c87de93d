"""The page on the states of a run is drawn from the machine, and must be drawn again when the machine changes."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "state-diagram"
PAGE = ROOT / "docs" / "reference" / "run-states.md"


@pytest.fixture(scope="module")
def drawn() -> str:
    page = runpy.run_path(str(SCRIPT))["render"]()
    assert isinstance(page, str)
    return page


def test_the_page_is_not_stale(drawn: str) -> None:
    assert PAGE.read_text() == drawn, "run scripts/state-diagram"


@pytest.mark.parametrize(
    "way",
    [
        "[*] --> accepted: RunAccepted",
        "accepted --> in_progress: ModelTurnStarted, ToolProposed",
        "waiting --> in_progress: ApprovalResolved, ChildEnded",
        "in_progress --> done: RunCompleted",
        "started --> interrupted: RunResumed",
        "waiting --> allowed: ApprovalResolved allowed",
        "interrupted --> started: ToolStarted",
    ],
)
def test_the_drawing_shows(way: str, drawn: str) -> None:
    assert f"    {way}\n" in drawn


def test_nothing_leads_out_of_an_end(drawn: str) -> None:
    for status in ("done", "failed", "cancelled"):
        assert drawn.count(f"    {status} --> ") == 1
        assert f"    {status} --> [*]\n" in drawn
