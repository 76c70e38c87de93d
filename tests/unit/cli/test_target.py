"""Which daemon a home has."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from palyra.gateway.client.client import Client
from palyra.gateway.client.errors import DaemonNotRunning, GrpcEndpointUnknown, TokenUnusable
from palyra.gateway.client.target import DaemonTarget, find_daemon, find_target, is_held
from palyra.home import Home
from tests.support.builders import RUN
from tests.unit.cli.door import TOKEN, Door, lived_in


def test_a_home_without_a_daemon_is_not_held(tmp_path: Path) -> None:
    assert not is_held(Home(tmp_path))
    assert find_daemon(Home(tmp_path)) is None
    with pytest.raises(DaemonNotRunning):
        find_target(Home(tmp_path))


def test_a_living_daemon_is_found(inhabited: Home, door: Door) -> None:
    assert is_held(inhabited)
    assert find_target(inhabited) == DaemonTarget(
        address=door.address, grpc=door.grpc, token=TOKEN, token_file=str(inhabited.token)
    )


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


def test_a_token_that_is_missing_is_told(inhabited: Home) -> None:
    inhabited.token.unlink()
    with pytest.raises(TokenUnusable, match="No such file"):
        find_target(inhabited)


@pytest.mark.parametrize("content", [b"", b"\n", b"two words", b"two\nlines", b"\xff\xfe", b"\0", "tökén".encode()])
def test_what_is_no_token_is_not_sent(inhabited: Home, content: bytes) -> None:
    inhabited.token.write_bytes(content)
    with pytest.raises(TokenUnusable, match=r"does not contain a token.*palyra restart"):
        find_target(inhabited)


def test_a_daemon_that_does_not_say_where_its_grpc_door_is_is_told_with_a_remedy(inhabited: Home) -> None:
    record = json.loads(inhabited.daemon.read_text())
    del record["grpc"]
    inhabited.daemon.write_text(json.dumps(record))
    assert find_daemon(inhabited) is not None
    client = Client(lambda: find_target(inhabited))
    for ask in (client.status, lambda: client.attach_run(RUN, after_seq=0)):
        with pytest.raises(GrpcEndpointUnknown, match="palyra restart"):
            ask()
