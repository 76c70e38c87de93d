"""Daemons for the tests: real processes, each with a home and a database of its own."""

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.daemon import Daemon, Json
from tests.support.fork_server import ForkServer
from tests.support.postgres import new_schema

ENGINES = ("sqlite", "postgres")


class NewDaemon(Protocol):
    """Prepares a daemon with a scripted model, on a fresh home. Safe to call from several threads."""

    def __call__(
        self, script: Json = None, /, *, home: Path | None = None, program: bool = False, **settings: object
    ) -> Daemon:
        """`program` has it started as a program instead of a fork: for tests of what loading costs."""
        ...


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """Forks daemons, for all tests of this process."""
    server = ForkServer("palyrad")
    yield server
    server.close()


@pytest.fixture(params=ENGINES)
def new_database(request: pytest.FixtureRequest) -> Callable[[], str | None]:
    """Gives the address of a new, empty database; None where the journal is a file of the home."""
    if request.param == "sqlite":
        return lambda: None
    server: str = request.getfixturevalue("postgres_server")
    # The schemas are not dropped: the server goes when the tests end.
    return lambda: new_schema(server)


@pytest.fixture
def new_daemon(tmp_path: Path, new_database: Callable[[], str | None], forks: ForkServer) -> Iterator[NewDaemon]:
    """Daemons of which none outlives the test, on each engine in turn."""
    yield from _daemons(tmp_path, new_database, forks)


@pytest.fixture
def new_sqlite_daemon(tmp_path: Path, forks: ForkServer) -> Iterator[NewDaemon]:
    """The same for tests in which the engine does not matter."""
    yield from _daemons(tmp_path, lambda: None, forks)


def _daemons(folder: Path, database: Callable[[], str | None], forks: ForkServer) -> Iterator[NewDaemon]:
    numbers = count(1)
    made: list[Daemon] = []

    def new(script: Json = None, /, *, home: Path | None = None, program: bool = False, **settings: object) -> Daemon:
        place = folder / str(next(numbers))
        place.mkdir()
        path = place / "script.json"
        path.write_text(json.dumps(script or {"default": [{"do": "text", "text": "You said: {input}"}]}))
        daemon = Daemon(
            home or place / "home",
            output=place / "output",
            database_url=database(),
            forks=None if program else forks,
            **{"model_provider": "scripted", "model_script": path, **settings},
        )
        made.append(daemon)
        return daemon

    yield new
    for daemon in made:
        daemon.close()
