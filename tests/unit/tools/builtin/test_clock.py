"""The time is told for here and elsewhere, and a zone is never a path."""

import time
from collections.abc import Iterator

import pytest

from palyra.core.tool import CallOutcome
from tests.unit.tools.surroundings import a_call, outcome


@pytest.fixture
def in_oslo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose own zone is that of Oslo."""
    monkeypatch.setenv("TZ", "Europe/Oslo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("zone", "told"),
    [
        ("UTC", "Sunday, 2026-03-01 14:05:09 UTC (UTC+00:00)"),
        ("Asia/Tokyo", "Sunday, 2026-03-01 23:05:09 Asia/Tokyo (UTC+09:00)"),
        ("America/New_York", "Sunday, 2026-03-01 09:05:09 America/New_York (UTC-05:00)"),
        ("Asia/Kathmandu", "Sunday, 2026-03-01 19:50:09 Asia/Kathmandu (UTC+05:45)"),
        ("America/Argentina/Ushuaia", "Sunday, 2026-03-01 11:05:09 America/Argentina/Ushuaia (UTC-03:00)"),
        (" Etc/GMT+5 ", "Sunday, 2026-03-01 09:05:09 Etc/GMT+5 (UTC-05:00)"),
    ],
)
async def test_the_time_of_a_zone_is_told(zone: str, told: str) -> None:
    finished = await outcome(a_call("time.now", {"zone": zone}))
    assert (finished.outcome, finished.text) == (CallOutcome.OK, told)


@pytest.mark.usefixtures("in_oslo")
async def test_without_a_zone_it_is_that_of_the_machine() -> None:
    finished = await outcome(a_call("time.now"))
    assert finished.text == "Sunday, 2026-03-01 15:05:09 CET (UTC+01:00)"


@pytest.mark.parametrize(
    "zone",
    [
        "Mars/Base",
        "Europe",
        "../../../etc/passwd",
        "/etc/localtime",
        "zone.tab",
        "tzdata.zi",
        "a\0b",
        "x" * 5000,
        "ü",
        ".",
    ],
)
async def test_what_is_no_zone_is_refused_with_examples(zone: str) -> None:
    finished = await outcome(a_call("time.now", {"zone": zone}))
    assert finished.outcome is CallOutcome.ERROR
    assert finished.text == "Unknown time zone. Use a name such as Europe/Berlin, America/New_York or UTC."
