"""The resources that tests ask for, and the guards around all of them."""

import gc
import os
import socket
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings

from tests.support import weights as small_model
from tests.support.needs import OPENMP, POSTGRES, WEIGHTS, require, summary
from tests.support.postgres import drop_schema, new_schema, running_postgres

# How long an example takes, or to make one, says more about the machine than about the code.
settings.register_profile("palyra", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# For a long campaign: `scripts/test --hypothesis-profile thorough tests/e2e/test_http_schema.py`.
settings.register_profile("thorough", settings.get_profile("palyra"), max_examples=2000)
settings.load_profile("palyra")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a throw-away PostgreSQL, one for each test process."""
    require(POSTGRES)
    with running_postgres() as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of an empty schema, dropped after the test."""
    url = new_schema(postgres_server)
    yield url
    drop_schema(url)


@pytest.fixture(scope="session")
def weights() -> Path:
    """The file of a small real model."""
    require(OPENMP, WEIGHTS)
    return small_model.place()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PALYRA_HOME that does not exist yet, in an environment without any other setting of ours."""
    for name in [name for name in os.environ if name.startswith("PALYRA_")]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    monkeypatch.setenv("PALYRA_HOME", str(home))
    return home


@pytest.fixture(scope="session", autouse=True)
def _loop_guard() -> Iterator[None]:
    """Fail when our own code blocks the event loop."""
    with blockbuster_ctx("palyra"):
        yield


def _refuse_network(event: str, arguments: tuple[object, ...]) -> None:
    """Fail when a test leaves this machine. An audit hook sees every socket that Python opens, also in libraries."""
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        sock, address = arguments[:2]
        assert isinstance(sock, socket.socket)
        if sock.family in (socket.AF_INET, socket.AF_INET6) and isinstance(address, tuple):
            _require_loopback(str(address[0]))
    elif event == "socket.getaddrinfo":
        _require_loopback(arguments[0])


def _require_loopback(host: object) -> None:
    if isinstance(host, bytes):
        host = host.decode()
    if host in (None, "", "localhost"):
        return
    try:
        local = ip_address(str(host)).is_loopback or ip_address(str(host)).is_unspecified
    except ValueError:
        local = False
    if not local:
        pytest.fail(f"a test tried to reach {host} over the network")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(need, ...): runs only where the machine has these; see support/needs.py")
    sys.addaudithook(_refuse_network)


def pytest_collection_finish() -> None:
    # Eleven thousand tests and all modules stay to the end: no collection need look at them again.
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        require(*mark.args)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    yield  # so that it is the last line before the totals
    skipped = [str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", [])]
    if skipped:
        reasons = [reason.removeprefix("Skipped: ") for reason in skipped]
        terminalreporter.line(summary(reasons, what="test"), yellow=True)
