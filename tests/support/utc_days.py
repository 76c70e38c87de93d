"""Days of UTC, which budgets begin anew with."""

from collections.abc import Callable
from datetime import UTC, date, datetime

import pytest


def today() -> date:
    """Return the day by the real clock, which daemons go by."""
    return datetime.now(UTC).date()


def within_a_day(attempt: Callable[[], None]) -> None:
    """Do something that must happen within one day; once more if a day ended meanwhile, since the next one does not."""
    begun = today()
    try:
        attempt()
    except (Exception, pytest.fail.Exception):
        if today() == begun:
            raise
        attempt()
