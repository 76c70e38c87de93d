"""Homes on either engine, for the tests of a journal's upkeep."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.journal.homes import KeptHome


@pytest.fixture(params=["sqlite", "postgres"])
def fresh_home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeptHome]:
    """A home that is not there yet."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    kept = KeptHome(tmp_path / "home", database_url=url)
    yield kept
    kept.let_go()
