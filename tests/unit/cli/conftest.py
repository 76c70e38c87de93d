"""A door, and a home that it lives in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from palyra.cli import app
from palyra.cli.app import palyra
from palyra.gateway.client.client import Client
from palyra.gateway.client.target import find_target
from palyra.home import Home
from tests.unit.cli.door import Cli, Door, Result, lived_in, open_door


@pytest.fixture
def door() -> Iterator[Door]:
    with open_door() as door:
        yield door


@pytest.fixture
def inhabited(home: Path, door: Door) -> Iterator[Home]:
    """The home of the environment, held by the door."""
    with lived_in(home, door.address, grpc_at=door.grpc) as made:
        yield made


@pytest.fixture
def client(inhabited: Home) -> Client:
    return Client(lambda: find_target(inhabited), answer_seconds=60)


@pytest.fixture
def cli(home: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command in this process, in a home of its own."""

    def run(*args: str) -> Result:
        code = app.run(palyra, args, prog="palyra")
        return Result(code, *capsys.readouterr())

    return run
