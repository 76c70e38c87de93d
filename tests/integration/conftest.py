"""Worlds to test in, on either engine."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import pytest

from palyra.core.clock import to_ms
from palyra.journal.engines import postgres
from palyra.journal.engines.postgres import PostgresConnection
from palyra.journal.migrate import migrate
from palyra.providers.base import Provider
from palyra.providers.scripted import Script
from palyra.tools import catalog
from palyra.tools.base import Tool
from tests.support.builders import AT
from tests.support.postgres import drop_database, new_database
from tests.support.world import World


class Begin(Protocol):
    """Starts a world with that model, and with further tools beside the built-in ones."""

    async def __call__(self, model: Provider | Script, *, tools: Iterable[Tool] = (), **options: Any) -> World: ...


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where the journal is kept: each test runs on either engine, unless it is marked `on_sqlite` or `on_postgres`."""
    if request.param == "sqlite":
        return tmp_path / "journal.db"
    url: str = request.getfixturevalue("postgres_journal")
    return url


@pytest.fixture
def postgres_journal(postgres_server: str, postgres_tables: str) -> Iterator[str]:
    """The URL of a database that has the tables and nothing in them, dropped after the test."""
    url = new_database(postgres_server, like=postgres_tables)
    yield url
    drop_database(postgres_server, url)


@pytest.fixture(scope="session")
def postgres_tables(postgres_server: str) -> str:
    """The URL of the database that those are copies of."""
    url = new_database(postgres_server)
    with closing(postgres.connect(url)) as raw, raw.transaction():
        migrate(PostgresConnection(raw), now_ms=to_ms(AT))
    return url


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """The folder that the agent works in."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "notes.txt").write_text("The milk is in the fridge.\n")
    return folder


@pytest.fixture
async def begin(
    place: Path | str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., Any]]:
    """Starts worlds on the test's journal. Each is ended with the test, after a look into its books."""
    worlds: list[World] = []

    async def start(model: Provider | Script, *, tools: Iterable[Tool] = (), **options: Any) -> World:
        monkeypatch.setattr(catalog, "BUILTIN", (*catalog.BUILTIN, *tools))
        worlds.append(World(place, model=model, folder=workspace, **options))
        return await worlds[-1].start()

    yield start
    for world in reversed(worlds):
        await world.stop()
