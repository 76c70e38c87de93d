"""The journal can not be written, or not be reached, while the daemon runs: it waits, and goes on by itself."""

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from threading import Thread
from time import sleep
from urllib.parse import quote, urlsplit

import psycopg
import pytest
from psycopg import sql

from palyra.core.run.state import RunStatus
from palyra.home import Home
from palyra.journal.engines.postgres_claim import CLAIM_KEY
from tests.e2e.conftest import NewDaemon
from tests.e2e.proof import prove
from tests.support.daemon import FINAL, Daemon, Refused, Watcher, until
from tests.support.needs import skip
from tests.support.postgres import new_schema

SCRIPT = {
    "rules": [
        {
            "when": {"equals": "delegate"},
            "turns": [
                [{"do": "call", "tool": "agent.delegate", "arguments": {"task": "help"}}],
                [{"do": "text", "text": "I was told: {result}"}],
            ],
        },
        {
            "when": {"equals": "talk"},
            "actions": [{"do": "text", "text": "one two three four five six", "chunk": 4, "delay_ms": 100}],
        },
    ],
    "default": [{"do": "text", "text": "You said: {input}"}],
}


def test_a_home_that_turns_read_only_and_back(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    run = daemon.send("talk")
    Watcher(daemon, run["session_id"]).follow(lambda line: line.kind == "model_text")

    with unwritable(daemon.home):
        with pytest.raises(Refused) as refused:
            daemon.send("Hello?")
        assert refused.value.status == 503
        assert refused.value.code in ("storage_read_only", "storage_unavailable")
        assert daemon.run(run["run_id"])["status"] == "in_progress"
        assert daemon.tape(f"/runs/{run['run_id']}")
        until(lambda: daemon.get("/status")["storage"] == refused.value.code)

    assert daemon.finished(run["run_id"])["status"] == "done"
    later = daemon.surely(lambda: daemon.send("Hello!"))
    assert daemon.finished(later["run_id"])["status"] == "done"
    assert [line["code"] for line in daemon.log() if "code" in line] == [refused.value.code]
    assert len(prove(daemon).runs) == 2


def test_storage_that_fails_again_and_again_stops_nothing_for_good(new_sqlite_daemon: NewDaemon) -> None:
    """Delegations make the most of their moments: each one is four units of three parts of the daemon."""
    daemon = new_sqlite_daemon(SCRIPT).start()
    chance = Random(5)
    accepted: list[str] = []
    for number in range(40):
        if chance.random() < 0.7:
            limit_file_size(daemon.pid, 0)
            sleep(chance.uniform(0.0, 0.03))
            limit_file_size(daemon.pid, None)
        accepted.append(daemon.send_surely("delegate", key=str(number))["run_id"])
        sleep(chance.uniform(0.0, 0.01))

    for run_id in accepted:
        assert daemon.finished(run_id, seconds=60)["status"] == "done"
    kept = prove(daemon)
    assert len(set(accepted)) == 40
    assert {run.status for run in kept.runs} == {RunStatus.DONE}
    assert len([run for run in kept.runs if run.parent_run_id is not None]) == 40


def test_a_database_that_goes_away_and_comes_back(new_sqlite_daemon: NewDaemon, postgres_server: str) -> None:
    database = Database(postgres_server)
    daemon = new_sqlite_daemon(SCRIPT, journal_database_url=database.url).start()
    daemon.database_url = database.url
    run = daemon.send("talk")
    watcher = Watcher(daemon, run["session_id"])
    watcher.follow(lambda line: line.kind == "model_text")
    # Somebody follows all the while, and is not troubled by it.
    follower = Thread(target=watcher.follow, args=(lambda line: line.kind in FINAL,))
    follower.start()
    until(lambda: "palyra_sessions_followed 1" in daemon.metrics())

    database.shut()
    until(lambda: refusal_of(daemon) == "storage_unavailable")
    sleep(5)
    assert daemon.alive, daemon.output()
    database.open()

    assert daemon.finished(run["run_id"], seconds=60)["status"] == "done"
    follower.join(60)
    assert [line.text for line in watcher.lines] == [
        line.text for line in daemon.tape(f"/sessions/{run['session_id']}")[: watcher.last]
    ]
    later = daemon.surely(lambda: daemon.send("Hello!"))
    assert daemon.finished(later["run_id"])["status"] == "done"
    assert database.password not in daemon.home.log.read_text() + daemon.output()
    prove(daemon)


def test_a_database_that_turns_read_only_and_back(new_sqlite_daemon: NewDaemon, postgres_server: str) -> None:
    database = Database(postgres_server)
    daemon = new_sqlite_daemon(SCRIPT, journal_database_url=database.url).start()
    daemon.database_url = database.url
    run = daemon.send("talk")

    database.set_read_only(True)
    # What holds for new connections only is brought about by ending the others. The way back is not: whoever
    # connected in between would be able to read only for as long as it stays.
    database.end_connections()
    until(lambda: refusal_of(daemon) == "storage_read_only")
    assert daemon.surely(lambda: daemon.run(run["run_id"]))["status"] in ("accepted", "in_progress")
    database.set_read_only(False)

    assert daemon.finished(run["run_id"])["status"] == "done"
    prove(daemon)


def test_a_claim_that_the_server_has_not_released_yet_is_waited_for(
    new_sqlite_daemon: NewDaemon, postgres_server: str
) -> None:
    """The server tells a client that its connection ends before it releases what the connection held."""
    database = Database(postgres_server)
    daemon = new_sqlite_daemon(SCRIPT, journal_database_url=database.url).start()
    daemon.database_url = database.url
    run = daemon.send("talk")

    with database.claim_after_its_connection():
        until(lambda: refusal_of(daemon) == "storage_unavailable")
        # Long enough for every part of the daemon that writes from time to time.
        sleep(3)
        assert daemon.alive, daemon.output()
        assert refusal_of(daemon) == "storage_unavailable"

    assert daemon.finished(run["run_id"], seconds=60)["status"] == "done"
    later = daemon.surely(lambda: daemon.send("Hello!"))
    assert daemon.finished(later["run_id"])["status"] == "done"
    prove(daemon)


class Database:
    """A schema whose user can be shut out, or be allowed to read only, while others go on."""

    password = "correct-horse-battery-staple"

    def __init__(self, server: str) -> None:
        self._server = server
        url = new_schema(server)
        schema = url.rpartition("%3D")[2]
        self._schema = schema
        self._user = f"user_of_{schema}"
        self._run("CREATE ROLE {user} LOGIN PASSWORD 'unused'")
        self._run("GRANT ALL ON SCHEMA {schema} TO {user}", schema=schema)
        parts = urlsplit(url)
        place = f"{self._user}:{quote(self.password)}@{parts.hostname}:{parts.port}"
        self.url = parts._replace(netloc=place).geturl()

    def shut(self) -> None:
        self._run("ALTER ROLE {user} NOLOGIN")
        self.end_connections()

    def open(self) -> None:
        self._run("ALTER ROLE {user} LOGIN")

    def set_read_only(self, read_only: bool) -> None:
        self._run(f"ALTER ROLE {{user}} SET default_transaction_read_only = {'on' if read_only else 'off'}")

    def end_connections(self) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [self._user]
            )

    @contextmanager
    def claim_after_its_connection(self) -> Iterator[None]:
        """End the daemon's connections, and hold its claim from the moment at which it is free."""
        with psycopg.connect(self._server, autocommit=True) as other:
            key = [CLAIM_KEY, self._schema]
            waiting = Thread(target=other.execute, args=("SELECT pg_advisory_lock(%s, hashtext(%s))", key))
            waiting.start()
            with psycopg.connect(self._server, autocommit=True) as connection:
                queued = "SELECT 1 FROM pg_locks WHERE pid = %s AND locktype = 'advisory' AND NOT granted"
                until(lambda: connection.execute(queued, [other.info.backend_pid]).fetchone() is not None)
            self.end_connections()
            waiting.join(60)
            yield

    def _run(self, statement: str, **names: str) -> None:
        known = {name: sql.Identifier(value) for name, value in {"user": self._user, **names}.items()}
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(**known))


def refusal_of(daemon: Daemon) -> str | None:
    try:
        daemon.send("Hello?")
    except Refused as refused:
        return refused.code if refused.status == 503 else None
    return None


@contextmanager
def unwritable(home: Home) -> Iterator[None]:
    """Make the journal and its folder immutable, for those who have them open too; a mount can not be turned so."""
    # The index of the write-ahead log is shared memory: the kernel would kill whoever writes to it.
    files = [str(home.path), str(home.journal), f"{home.journal}-wal"]
    try:
        subprocess.run(["chattr", "+i", *files], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        skip("right to make files immutable", error)
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", *files], check=True)


def limit_file_size(pid: int, size: int | None) -> None:
    """Let writes beyond a size fail, as on a failing disk."""
    resource.prlimit(
        pid, resource.RLIMIT_FSIZE, (size if size is not None else resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    )
