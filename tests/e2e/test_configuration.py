"""Settings as a daemon meets them: read, refused, kept secret."""

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import NewDaemon
from tests.support.command import command
from tests.support.daemon import Daemon, NotServing
from tests.support.postgres import new_schema


@pytest.fixture
def daemon(new_sqlite_daemon: NewDaemon) -> Daemon:
    """A daemon whose home has a file of settings."""
    made = new_sqlite_daemon()
    made.home.path.mkdir(mode=0o700)
    made.home.config.write_text("[runs]\nmax_queued_inputs = 4\n")
    return made.start()


def test_the_target_is_the_daemon_that_runs(daemon: Daemon) -> None:
    shown = json.loads(command(daemon.home.path, "config", "target", "--json").stdout)
    assert (shown["running"], shown["address"], shown["pid"]) == (True, daemon.address, daemon.pid)

    daemon.stop()
    shown = json.loads(command(daemon.home.path, "config", "target", "--json").stdout)
    assert (shown["running"], shown["address"]) == (False, None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[http]\nhost = '0.0.0.0'\n", "http.allow_remote = true (missing)"),
        ("[grpc]\nhost = '0.0.0.0'\n", "TLS (http.tls_certificate and http.tls_key: missing)"),
        ("[http]\nprot = 1\n", "Did you mean 'port'?"),
        ("[journal]\ndatabase_url = 'env:NOT_THERE'\n", "env:NOT_THERE is not set"),
    ],
)
def test_a_daemon_with_wrong_settings_does_not_start_and_says_why(
    new_sqlite_daemon: NewDaemon, text: str, why: str
) -> None:
    daemon = new_sqlite_daemon()
    daemon.home.path.mkdir(mode=0o700)
    daemon.home.config.write_text(text)

    with pytest.raises(NotServing) as refused:
        daemon.start()

    assert refused.value.exit_code == 2
    assert why in refused.value.output
    checked = command(daemon.home.path, "config", "check")
    assert (checked.returncode, checked.stderr) == (1, "")


def test_a_database_address_given_by_reference_is_used_and_never_written_down(
    new_sqlite_daemon: NewDaemon, postgres_server: str, tmp_path: Path
) -> None:
    secret = "n0t-f0r-your-eyes"
    url = new_schema(postgres_server)
    place = tmp_path / "database-url"
    # The server trusts whoever comes, with any password.
    place.write_text(url + ("&" if "?" in url else "?") + f"password={secret}\n")
    daemon = new_sqlite_daemon(journal_database_url=f"file:{place}").start()

    assert daemon.get("/status")["engine"] == "postgres"
    run = daemon.send("Hello")
    daemon.finished(run["run_id"])
    daemon.stop()

    written = b"".join(path.read_bytes() for path in daemon.home.path.rglob("*") if path.is_file())
    assert secret.encode() not in written
    assert secret not in daemon.output()
