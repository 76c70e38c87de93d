"""The resources that tests ask for, and the guards around all of them."""

import os
import socket
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import settings

from tests.support import weights as small_model
from tests.support.postgres import (
    HOW_TO_INSTALL,
    PostgresMissing,
    drop_schema,
    find_binaries,
    new_schema,
    running_postgres,
)

# How long an example takes says more about the machine than about the code.
settings.register_profile("palyra", deadline=None)
settings.load_profile("palyra")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a throw-away PostgreSQL, one for each test process."""
    try:
        find_binaries()
    except PostgresMissing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
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
    found = small_model.found()
    if found is None:
        missing = f"the weights of a small model are missing: {small_model.HOW}"
        if os.environ.get("CI"):
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    return found


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


def pytest_configure() -> None:
    sys.addaudithook(_refuse_network)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if HOW_TO_INSTALL in str(report.longrepr)]
    if skipped:
        terminalreporter.section("PostgreSQL is missing", yellow=True)
        terminalreporter.line(f"{len(skipped)} tests were skipped: {HOW_TO_INSTALL}")
