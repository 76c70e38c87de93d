"""What a measurement stands on: homes on a disk, real daemons in them, and a PostgreSQL that really syncs."""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from tests.bench.figures import Bar, Figures
from tests.support import postgres
from tests.support.daemon import Daemon

INSTANT = {
    "default": [
        {"do": "text", "text": "ok"},
        {"do": "stop", "reason": "end", "input_tokens": 1, "output_tokens": 1},
    ]
}
"""A model that costs nothing, so that what is left is ours."""

WIDE_OPEN = {
    "gateway_max_streams_per_token": 100_000,
    "gateway_max_streams": 100_000,
    "gateway_requests_per_second": 10_000_000,
    "gateway_request_burst": 10_000_000,
}
"""One client plays many here: what protects a daemon from one that asks too much must not answer for it."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What was asked for: where the journal is, how much to measure."""

    engine: str
    quick: bool
    repeat: int
    turns: int | None
    server: str | None
    """Where PostgreSQL is, if the journal is kept there."""

    def amount(self, full: int, quick: int) -> int:
        """Return one number or the other, by how thorough it should be."""
        return quick if self.quick else full

    @contextmanager
    def home(self, script: object = INSTANT, **settings: object) -> Iterator[Daemon]:
        """Make a home with an empty journal, and a daemon for it that is not started yet."""
        with tempfile.TemporaryDirectory(prefix="palyra-bench-") as name:
            folder = Path(name)
            (folder / "script.json").write_text(json.dumps(script))
            daemon = Daemon(
                folder / "home",
                database_url=None if self.server is None else postgres.new_schema(self.server),
                **cast(
                    "dict[str, Any]",
                    {"model_provider": "scripted", "model_script": folder / "script.json", **WIDE_OPEN, **settings},
                ),
            )
            try:
                yield daemon
            finally:
                daemon.close()

    @contextmanager
    def daemon(self, script: object = INSTANT, **settings: object) -> Iterator[Daemon]:
        """Start a daemon in a home of its own."""
        with self.home(script, **settings) as daemon:
            yield daemon.start()


@dataclass(frozen=True, slots=True)
class Measurement:
    """One thing that can be measured."""

    about: str
    rounds: Callable[[Ground], Iterator[Figures]]
    """Yields the figures of each round, as many times as the ground says."""
    bars: dict[str, Bar] = field(default_factory=dict)
    repeat: int = 3


def grpc_address(daemon: Daemon) -> str:
    """Return where the daemon's gRPC door is."""
    return str(json.loads(daemon.home.daemon.read_text())["grpc"])


@contextmanager
def durable_postgres() -> Iterator[str]:
    """Start a PostgreSQL that keeps what it has answered, unlike that of the tests."""
    durable = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "shared_buffers": "128MB"}
    with patch.dict(postgres.SETTINGS, durable), postgres.running_postgres() as url:
        yield url
