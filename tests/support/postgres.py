"""A real PostgreSQL for the tests: on a free port, in a temporary folder, gone afterwards.

The server is a child of the test process and asks the kernel to be told when its parent dies, so it stops even if the
tests are killed. It trades durability for speed: it survives the death of our process, not that of the machine.
Text sorts by English rules, as in most real databases, so a query that counts on byte order without saying so fails.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import sql

START_SECONDS = 60
STOP_SECONDS = 60
PORT_ATTEMPTS = 3
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "log_line_prefix": "%m ",
}


class PostgresMissing(Exception):
    """There is no PostgreSQL on this machine."""


@contextmanager
def running_postgres() -> Iterator[str]:
    """Start a server and yield the URL of its `postgres` database."""
    with own_postgres() as server:
        yield server.url


class PostgresServer:
    """A server of one test, which can crash, and whose files can be set back to what they were."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._binaries, self._folder = binaries, folder
        self._server, self.url = _start(binaries, folder)

    def save(self) -> None:
        """Copy the server's files, as a backup of a machine does."""
        self.stop()
        shutil.copytree(self._folder / "data", self._folder / "saved")
        self.restart()

    def set_back(self) -> None:
        """Bring back the files that were saved."""
        self.stop()
        shutil.rmtree(self._folder / "data")
        (self._folder / "saved").rename(self._folder / "data")
        self.restart()

    def stop(self) -> None:
        _stop(self._server)

    def crash(self) -> None:
        """End it at once, as `pg_ctl stop -m immediate` does: it recovers from its log at the next start."""
        self._server.send_signal(signal.SIGQUIT)
        self._server.wait(STOP_SECONDS)

    def restart(self) -> None:
        """Start it again, at the same address."""
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", "postgres:postgres", str(self._folder)], check=True)
        self._server, _ = _start(self._binaries, self._folder, port=urlsplit(self.url).port)


@contextmanager
def own_postgres() -> Iterator[PostgresServer]:
    """Start a server for one test."""
    binaries = find_binaries()
    with tempfile.TemporaryDirectory(prefix="palyra-postgres-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        _initialise(binaries, folder)
        server = PostgresServer(binaries, folder)
        try:
            yield server
        finally:
            server.stop()


def find_binaries() -> Path:
    """Return the folder with `initdb` and `postgres`: the one on the path, else the newest, else `PostgresMissing`."""
    if on_path := shutil.which("initdb"):
        return Path(on_path).resolve().parent
    folders = [initdb.parent for initdb in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if not folders:
        raise PostgresMissing("PostgreSQL 15 or newer is not installed (Debian: apt-get install postgresql)")
    return max(folders, key=lambda folder: float(folder.parent.name))


def new_schema(url: str) -> str:
    """Create an empty schema, and return a URL whose connections see that schema only."""
    schema = f"test_{secrets.token_hex(8)}"
    _execute(url, sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    return f"{url}?{urlencode({'options': f'-csearch_path={schema}'})}"


def drop_schema(url: str) -> None:
    """Drop the schema that `new_schema` made, with all that is in it."""
    options = parse_qs(urlsplit(url).query)["options"][0]
    schema = options.removeprefix("-csearch_path=")
    _execute(url, sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))


def new_database(url: str, *, like: str | None = None) -> str:
    """Create a database, empty or a copy of the one at another URL, which nobody may use meanwhile; return its URL.

    A copy of one that has the tables costs a third of making them.
    """
    name = f"test_{secrets.token_hex(8)}"
    copied = sql.Identifier(_database_of(like) if like is not None else "template1")
    _execute(url, sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(sql.Identifier(name), copied))
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def drop_database(server: str, url: str) -> None:
    """Drop what `new_database` made, and end the connections to it."""
    _execute(server, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(_database_of(url))))


def _database_of(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")


def _execute(url: str, statement: sql.Composed) -> None:
    # A connection that a test left open may hold locks: better an error than a hanging suite.
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET lock_timeout = '5s'")
        connection.execute(statement)


def _initialise(binaries: Path, folder: Path) -> None:
    command = [str(binaries / "initdb"), "-D", str(folder / "data"), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
    command += ["--locale=C", "--locale-provider=icu", "--icu-locale=en-US", "--no-sync", "--no-instructions"]
    done = subprocess.run(_as_server_user(command), cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"initdb failed:\n{done.stdout}{done.stderr}")


def _start(binaries: Path, folder: Path, *, port: int | None = None) -> tuple[subprocess.Popen[bytes], str]:
    log, wanted = folder / "log", port
    for _ in range(PORT_ATTEMPTS):  # somebody else may take the port before the server does
        port = wanted or _free_port()
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        command = [str(binaries / "postgres"), "-D", str(folder / "data"), "-p", str(port)]
        command += [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        with log.open("ab") as output:
            # A session of its own, so that Ctrl-C reaches the tests first and the server last.
            server = subprocess.Popen(
                _as_server_user(command), cwd=folder, stdout=output, stderr=output, start_new_session=True
            )
        try:
            if _is_ready(server, folder):
                return server, url
        except BaseException:
            _stop(server)
            raise
        _stop(server)
    raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()}")


def _is_ready(server: subprocess.Popen[bytes], folder: Path) -> bool:
    # The server says so in its own file; a connection could be answered by another one on the same port.
    status = folder / "data" / "postmaster.pid"
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        if status.exists() and "ready" in status.read_text().split():
            return True
        time.sleep(0.02)
    return False


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGINT)  # "fast": ends the sessions, then shuts down
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.send_signal(signal.SIGQUIT)  # "immediate"
        server.wait(STOP_SECONDS)


def _as_server_user(command: list[str]) -> list[str]:
    """Give up root, which PostgreSQL refuses, and have the kernel stop the command when the tests die."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return command
    prefix: list[str] = [setpriv, "--pdeathsig", "INT"]
    if os.geteuid() == 0:
        prefix += ["--reuid", "postgres", "--regid", "postgres", "--clear-groups"]
    return [*prefix, "--", *command]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
