"""The client against a door on a real socket."""

import fcntl
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from palyra.config import Home
from palyra.core.events import Mode
from palyra.core.session import SessionRef
from palyra.gateway.client import (
    AnswerUnreadable,
    Client,
    DaemonUnreachable,
    NotRunning,
    RemoteError,
    Target,
    find_daemon,
    find_target,
    is_held,
)
from tests.support.builders import RUN, SESSION
from tests.unit.cli.door import TOKEN, Answer, Door, a_session, lived_in, problem

ACCEPTED = {"run_id": RUN, "session_id": SESSION, "after_seq": 1}


def test_a_home_without_a_daemon_is_not_held(tmp_path: Path) -> None:
    assert not is_held(Home(tmp_path))
    assert find_daemon(Home(tmp_path)) is None
    with pytest.raises(NotRunning):
        find_target(Home(tmp_path))


def test_a_living_daemon_is_found(inhabited: Home, door: Door) -> None:
    assert is_held(inhabited)
    assert find_target(inhabited) == Target(door.address, TOKEN)


def test_the_record_of_a_killed_daemon_proves_nothing(tmp_path: Path) -> None:
    with lived_in(tmp_path / "home", "http://127.0.0.1:1") as home:
        pass
    assert home.daemon.exists()
    assert find_daemon(home) is None


def test_a_daemon_so_young_that_the_record_is_of_another_is_not_taken_for_it(tmp_path: Path) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    with lived_in(tmp_path / "home", "http://127.0.0.1:1") as home:
        record = json.loads(home.daemon.read_text())
        home.daemon.write_text(json.dumps({**record, "pid": int(gone.stdout)}))
        assert is_held(home)
        assert find_daemon(home) is None


def test_two_who_look_at_once_do_not_take_one_another_for_a_daemon(tmp_path: Path) -> None:
    with lived_in(tmp_path / "home", "http://127.0.0.1:1") as home:
        pass
    looking = os.open(home.lock, os.O_RDONLY)
    try:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert not is_held(home)
    finally:
        os.close(looking)


def test_a_token_that_can_not_be_read_is_told(inhabited: Home) -> None:
    inhabited.token.unlink()
    with pytest.raises(DaemonUnreachable, match="token"):
        find_target(inhabited)


def test_requests_carry_the_token(client: Client, door: Door) -> None:
    door.says("GET", "/status", {"version": "0.1.0"})
    assert client.status() == {"version": "0.1.0"}
    assert door.seen[0].token == TOKEN


def test_a_session_is_resolved(client: Client, door: Door) -> None:
    door.says("POST", "/sessions/resolve", {"session": a_session(), "created": True}, status=201)
    session = client.resolve(SessionRef(key="cli"))
    assert session.title == "Hello"
    assert door.seen[0].body["key"] == "cli"


def test_a_refusal_keeps_its_code(client: Client, door: Door) -> None:
    door.says("GET", f"/runs/{RUN}", problem("run_not_found", "There is no such run.", status=404))
    with pytest.raises(RemoteError) as caught:
        client.run(RUN)
    assert (caught.value.code, caught.value.detail, caught.value.status) == (
        "run_not_found",
        "There is no such run.",
        404,
    )
    assert RemoteError.code == "remote_error"


def test_a_refusal_may_say_when_to_come_again(client: Client, door: Door) -> None:
    door.says("POST", "/runs", problem("queue_full", "Full.", status=429, retry_after=2.0))
    with pytest.raises(RemoteError) as caught:
        client.send("Hi", SessionRef(), mode=Mode.QUEUE)
    assert caught.value.retry_after == 2.0


def test_a_refusal_without_a_document_is_still_an_error(client: Client, door: Door) -> None:
    door.says("GET", "/status", Answer(b"<html>", 502, "text/html"))
    with pytest.raises(RemoteError, match="502"):
        client.status()


def test_an_answer_that_makes_no_sense_is_told(client: Client, door: Door) -> None:
    door.says("GET", f"/runs/{RUN}", {"run": {"surprise": 1}})
    with pytest.raises(AnswerUnreadable):
        client.run(RUN)


def test_a_door_that_is_shut_is_unreachable() -> None:
    client = Client(lambda: Target("http://127.0.0.1:1", TOKEN), answer_seconds=1)
    with pytest.raises(DaemonUnreachable, match="refused"):
        client.status()


def test_a_daemon_that_hangs_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        client = Client(lambda: Target(address, TOKEN), answer_seconds=0.2)
        with pytest.raises(DaemonUnreachable, match="no answer in time"):
            client.status()


def test_a_message_whose_answer_is_lost_is_sent_again_under_one_key(client: Client, door: Door) -> None:
    door.says("POST", "/runs", Answer(b"{", cut=True), ACCEPTED)
    accepted = client.send("Hi", SessionRef(key="cli"), mode=Mode.STEER)
    assert accepted.run_id == RUN
    first, second = door.asked("POST", "/runs")
    assert first.body == second.body
    assert first.body["idempotency_key"]
    assert first.body["mode"] == "steer"


def test_patience_has_an_end() -> None:
    client = Client(lambda: Target("http://127.0.0.1:1", TOKEN), answer_seconds=1)
    with pytest.raises(DaemonUnreachable):
        client.send("Hi", SessionRef(), mode=Mode.QUEUE, patience=0.1)


def test_a_patient_client_waits_for_the_daemon(inhabited: Home, door: Door) -> None:
    door.says(
        "GET", "/status", Answer(b"{", cut=True), problem("engine_closed", "Stopping.", status=503), {"version": "1"}
    )
    patient = Client(lambda: find_target(inhabited), answer_seconds=5, patience=5)
    assert patient.status() == {"version": "1"}
    assert len(door.seen) == 3
