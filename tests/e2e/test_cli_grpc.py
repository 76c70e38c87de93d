"""The command line at the gRPC door of a real daemon: frozen, stopping, behind TLS."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from palyra.gateway.client.client import Client
from palyra.gateway.client.errors import RemoteError
from palyra.gateway.client.target import find_target
from tests.e2e.conftest import NewDaemon
from tests.support.command import command
from tests.support.needs import OPENSSL, needs

ENDLESS = {"default": [{"do": "endless", "text": "on ", "delay_ms": 20}]}


def test_the_status_shows_each_part(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon().start()
    command(daemon.home.path, "run", "-m", "Hello.")
    told = json.loads(command(daemon.home.path, "status", "--json").stdout)
    assert {part["name"]: part["status"] for part in told["parts"]} == {
        name: "ok" for name in ("journal", "tapes", "provider", "agents", "worker", "stop", "queue")
    }
    over_http = daemon.get("/status")
    assert told["counters"]["run_completed"] == over_http["counters"]["run_completed"] == 1
    same = ("version", "pid", "home", "engine", "schema", "provider", "model", "workspace", "settings_hash", "grpc")
    assert {name: told[name] for name in same} == {name: over_http[name] for name in same}


def test_a_frozen_daemon_is_told_in_one_line(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon().start()
    daemon.signal(signal.SIGSTOP)
    try:
        done = command(daemon.home.path, "status")
    finally:
        daemon.signal(signal.SIGCONT)
    assert done.returncode == 3
    assert "not answering" in done.stdout
    (said,) = done.stderr.splitlines()
    assert "no answer in time" in said
    assert said.endswith("[daemon_unreachable]")


def test_a_daemon_that_stops_says_so_on_its_streams(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(ENDLESS).start()
    accepted = daemon.send("Hello.")
    client = Client(lambda: find_target(daemon.home))
    run = iter(client.attach_run(accepted["run_id"], after_seq=0))
    session = iter(client.attach_session(accepted["session_id"], after_seq=accepted["after_seq"]))
    assert next(run) == next(session)
    daemon.signal(signal.SIGTERM)
    for entries in (run, session):
        with pytest.raises(RemoteError) as caught:
            for _ in entries:
                pass
        assert (caught.value.code, caught.value.status) == ("daemon_stopping", 503)
    daemon.wait()


def test_agents_are_made_changed_and_bound(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon().start()
    daemon.send("Hello.", session={"key": "work"})
    words = ("agents", "create", "reader", "--instructions", "Read.", "--tool", "files.read", "--json")
    made = json.loads(command(daemon.home.path, *words).stdout)["agent"]
    assert (made["name"], made["tools"], made["is_default"]) == ("reader", ["files.read"], False)
    assert made == daemon.get(f"/agents/{made['agent_id']}")["agent"]

    changed = json.loads(command(daemon.home.path, "agents", "update", "reader", "--all-tools", "--json").stdout)[
        "agent"
    ]
    assert (changed["tools"], changed["instructions"]) == (None, "Read.")
    bound = json.loads(command(daemon.home.path, "agents", "bind", "reader", "work", "--json").stdout)["session"]
    assert bound["agent_id"] == made["agent_id"]
    assert command(daemon.home.path, "agents", "resolve", "work").stdout.startswith("reader: ")
    assert command(daemon.home.path, "agents", "unbind", "work").returncode == 0
    assert json.loads(command(daemon.home.path, "agents", "default", "reader", "--json").stdout)["agent"]["is_default"]

    refused = command(daemon.home.path, "agents", "delete", "reader")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.endswith("[agent_default]\n")
    wrong = command(daemon.home.path, "agents", "create", "other", "--tool", "files.reed")
    assert (wrong.returncode, wrong.stderr.endswith("Did you mean files.read? [agent_invalid]\n")) == (2, True)
    listed = json.loads(command(daemon.home.path, "agents", "--json").stdout)["agents"]
    assert listed == daemon.get("/agents")["agents"]


@needs(OPENSSL)
@pytest.mark.parametrize("written", ["{folder}/{file}", "~/{file}"])
def test_a_daemon_behind_tls_is_reached_with_its_certificate(
    new_sqlite_daemon: NewDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    made, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-days", "1", "-subj", "/CN=palyra.example.org", "-out", str(made), "-keyout", str(key)]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    certificate_at, key_at = (written.format(folder=tmp_path, file=path.name) for path in (made, key))
    daemon = new_sqlite_daemon(http_tls_certificate=certificate_at, http_tls_key=key_at).start()
    assert command(daemon.home.path, "status").returncode == 0
    done = command(daemon.home.path, "run", "-m", "Hello.")
    assert (done.returncode, done.stdout, done.stderr) == (0, "You said: Hello.\n", "")


def test_grpc_keeps_quiet_on_the_terminal(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon().start()
    done = command(
        daemon.home.path, "run", "-m", "Hello.", https_proxy="http://127.0.0.1:1", http_proxy="http://127.0.0.1:1"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "You said: Hello.\n", "")
