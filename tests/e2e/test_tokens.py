"""Tokens as people use them: made by command, shown at the door, revoked."""

import json
from collections.abc import Callable

import httpx
import pytest

from tests.e2e.conftest import NewDaemon
from tests.support.command import command
from tests.support.daemon import Daemon, until


@pytest.fixture
def daemon(new_sqlite_daemon: NewDaemon) -> Daemon:
    return new_sqlite_daemon().start()


def test_a_token_lets_another_principal_in_until_it_is_revoked(daemon: Daemon) -> None:
    made = command(daemon.home.path, "tokens", "create", "phone", "--principal", "user:ben")
    assert made.returncode == 0, made.stderr
    headers = {"authorization": f"Bearer {made.stdout.strip()}"}

    def ask(method: str, path: str, body: object = None) -> int:
        return daemon.ask(method, path, body=body, headers=headers).status_code

    # The new principal has an agent of its own, and sees nothing of the owner's.
    owners = daemon.send("Hello")
    assert ask("POST", "/runs", {"text": "Hello"}) == 202
    assert ask("GET", f"/runs/{owners['run_id']}") == 404
    assert httpx.get(f"{daemon.address}/admin/v1/config", headers=headers, verify=False).status_code == 403

    (token_id,) = [
        token["token_id"]
        for token in json.loads(command(daemon.home.path, "tokens", "--json").stdout)["tokens"]
        if token["principal"] == "user:ben"
    ]
    assert command(daemon.home.path, "tokens", "revoke", token_id).returncode == 0
    assert ask("GET", "/runs") == 401


def test_a_token_for_reading_changes_nothing(daemon: Daemon) -> None:
    made = command(daemon.home.path, "tokens", "create", "eyes", "--scope", "read")
    headers = {"authorization": f"Bearer {made.stdout.strip()}"}

    assert daemon.ask("GET", "/runs", headers=headers).status_code == 200
    refused = daemon.ask("POST", "/runs", body={"text": "Hello"}, headers=headers)

    assert (refused.status_code, refused.json()["code"]) == (403, "token_scope_missing")
    assert daemon.runs() == []


def test_the_home_gets_a_new_token_after_its_own_was_revoked(daemon: Daemon) -> None:
    (mine,) = json.loads(command(daemon.home.path, "tokens", "--json").stdout)["tokens"]
    before = daemon.token
    assert command(daemon.home.path, "tokens", "revoke", mine["token_id"], "--yes").returncode == 0
    assert command(daemon.home.path, "tokens").returncode == 1

    daemon.stop()
    daemon.start()

    assert daemon.token != before
    assert daemon.home.token.stat().st_mode & 0o777 == 0o600
    assert command(daemon.home.path, "tokens").returncode == 0
    old = daemon.ask("GET", "/runs", headers={"authorization": f"Bearer {before}"})
    assert old.status_code == 401


def test_requests_that_come_too_fast_are_refused_with_a_time_to_wait(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(gateway_requests_per_second=1, gateway_request_burst=2).start()
    answers = [daemon.ask("GET", "/runs") for _ in range(4)]
    refused = answers[-1]
    assert (refused.status_code, refused.json()["code"]) == (429, "request_rate_exceeded")
    assert 0 < refused.json()["retry_after"] <= 1


def _other_home(daemon: Daemon) -> str:
    return "palyra_of-another-home"


def _revoked(daemon: Daemon) -> str:
    secret = command(daemon.home.path, "tokens", "create", "old").stdout.strip()
    tokens = json.loads(command(daemon.home.path, "tokens", "--json").stdout)["tokens"]
    (token_id,) = [token["token_id"] for token in tokens if token["name"] == "old"]
    assert command(daemon.home.path, "tokens", "revoke", token_id).returncode == 0
    return secret


def _expired(daemon: Daemon) -> str:
    secret = command(daemon.home.path, "tokens", "create", "short", "--expires", "1s").stdout.strip()
    headers = {"authorization": f"Bearer {secret}"}
    until(lambda: daemon.ask("GET", "/runs", headers=headers).status_code == 401)
    return secret


@pytest.mark.parametrize(
    ("spoil", "code", "reason"),
    [
        (_other_home, "unauthenticated", "this daemon does not know the token"),
        (_revoked, "unauthenticated", "the token was revoked"),
        (_expired, "unauthenticated", "the token has expired"),
        (lambda daemon: "two words", "token_unusable", "does not contain a token"),
        (lambda daemon: "", "token_unusable", "does not contain a token"),
    ],
)
def test_a_token_that_is_not_valid_is_named_as_what_is_wrong(
    daemon: Daemon, spoil: Callable[[Daemon], str], code: str, reason: str
) -> None:
    home = daemon.home
    home.token.write_text(spoil(daemon))
    status = command(home.path, "status")
    assert status.returncode == 1
    assert f"process {daemon.pid}, running, but it rejects the token of this home" in status.stdout
    as_json = json.loads(command(home.path, "status", "--json").stdout)
    assert (as_json["running"], as_json["error"]) == (True, code)
    doctor = command(home.path, "doctor").stdout
    others = command(home.path, "run", "-m", "Hello")
    assert others.returncode == 1
    for said in (status.stderr, " ".join(doctor.split()), others.stderr, command(home.path).stdout):
        told = " ".join(said.split())
        assert reason in told
        assert str(home.token) in told
        assert "palyra restart" in told
        assert "not running" not in told
    # What is said to help does.
    daemon.stop()
    daemon.start()
    assert command(home.path, "status").returncode == 0
