"""The command line and the daemon's life: who starts it, who ends it, and what is left behind."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from palyra.gateway.client.target import find_daemon, is_held
from palyra.home import Home
from tests.support.command import beyond_sandbox, run
from tests.support.sqlite_file import opened


@pytest.fixture
def free(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home that nothing lives in, neither before nor after the test."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("PALYRA_HTTP_PORT", "0")
    yield Home(home)
    daemon = find_daemon(Home(home))
    if daemon is not None:
        os.kill(daemon.pid, signal.SIGKILL)


def palyra(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run(*args, environ=os.environ, stdin=stdin)


def eventually_free(home: Home) -> bool:
    deadline = monotonic() + 5
    while is_held(home) and monotonic() < deadline:
        sleep(0.02)
    return not is_held(home)


def test_a_daemon_is_started_shown_and_stopped(free: Home) -> None:
    up = palyra("up")
    assert up.returncode == 0
    daemon = find_daemon(free)
    assert daemon is not None
    assert f"{daemon.address} (process {daemon.pid})" in up.stdout
    # It is in a session of its own: a Ctrl-C here is none there.
    assert os.getsid(daemon.pid) == daemon.pid
    assert palyra("up").stdout.startswith("The daemon is already running")
    status = palyra("status", "--json")
    assert (status.returncode, json.loads(status.stdout)["pid"]) == (0, daemon.pid)
    assert "ready at" in palyra("logs").stdout
    assert palyra("down").stdout == f"Stopped the daemon (process {daemon.pid}).\n"
    assert not is_held(free)
    assert not free.daemon.exists()
    assert palyra("status").returncode == 3
    assert palyra("down").returncode == 0


def test_a_restart_is_another_process(free: Home) -> None:
    palyra("up")
    before = find_daemon(free)
    assert palyra("restart").returncode == 0
    after = find_daemon(free)
    assert before is not None
    assert after is not None
    assert before.pid != after.pid


def _config(text: str) -> Callable[[Home], object]:
    return lambda home: home.config.write_text(text)


def _policy(home: Home) -> None:
    home.policy.mkdir()
    (home.policy / "mine.cedar").write_text('@id("mine") permit (principal, action resource);')


def _newer_schema(home: Home) -> None:
    with opened(home.journal) as journal:
        journal.execute("INSERT INTO migrations (number, name, applied_ms) VALUES (9999, 'later', 0)")


def _is_refused(home: Home, code: str) -> None:
    """Restart the daemon that runs, and see that it goes on; then see that a start is refused for the same reason."""
    before = find_daemon(home)
    assert before is not None
    done = palyra("restart")
    assert done.returncode != 0
    assert f"The running daemon (process {before.pid}) was not stopped. [{code}]" in done.stderr
    assert (find_daemon(home), is_held(home)) == (before, True)
    # Nobody is kept from a restart without need.
    assert palyra("down").returncode == 0
    assert f"[{code}]" in palyra("up").stderr


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (_config("[runs]\nconcurency = 3\n"), "settings_invalid"),
        (_config('[workspace]\nroot = "/nowhere"\n'), "settings_invalid"),
        (_config('[http]\ntls_certificate = "/nowhere.pem"\ntls_key = "/nowhere.key"\n'), "settings_invalid"),
        (_config('[model]\nprovider = "scripted"\nscript = "/nowhere.json"\n'), "script_invalid"),
        (_config('[journal]\ndatabase_url = "postgresql://127.0.0.1:1/none"\n'), "storage_unavailable"),
        (_policy, "policy_invalid"),
        (lambda home: home.prices.write_text("nonsense"), "prices_invalid"),
        (lambda home: home.key.unlink(), "journal_key_missing"),
        (_newer_schema, "schema_version_unsupported"),
    ],
)
def test_a_restart_that_would_fail_stops_nothing(free: Home, spoil: Callable[[Home], object], code: str) -> None:
    assert palyra("up").returncode == 0
    spoil(free)
    _is_refused(free, code)


@pytest.mark.parametrize(("section", "code"), [("http", "port_in_use"), ("grpc", "port_in_use")])
def test_a_restart_on_a_port_of_another_program_stops_nothing(
    free: Home, monkeypatch: pytest.MonkeyPatch, section: str, code: str
) -> None:
    assert palyra("up").returncode == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv(f"PALYRA_{section.upper()}_PORT", str(taken.getsockname()[1]))
        _is_refused(free, code)


def test_a_restart_may_keep_the_ports_that_are_set(free: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        monkeypatch.setenv("PALYRA_HTTP_PORT", str(one.getsockname()[1]))
        monkeypatch.setenv("PALYRA_GRPC_PORT", str(two.getsockname()[1]))
    assert palyra("up").returncode == 0
    before = find_daemon(free)
    done = palyra("restart")
    assert (done.returncode, beyond_sandbox(done.stderr)) == (0, "")
    after = find_daemon(free)
    assert before is not None
    assert after is not None
    assert (after.pid != before.pid, after.address, after.grpc) == (True, before.address, before.grpc)


def test_without_a_daemon_a_restart_that_would_fail_says_only_why(free: Home) -> None:
    free.path.mkdir(mode=0o700)
    _policy(free)
    done = palyra("restart")
    assert (done.returncode, "[policy_invalid]" in done.stderr, "Nothing was stopped" in done.stderr) == (
        1,
        True,
        False,
    )


def test_what_a_killed_daemon_leaves_behind_is_no_daemon(free: Home) -> None:
    palyra("up")
    daemon = find_daemon(free)
    assert daemon is not None
    os.kill(daemon.pid, signal.SIGKILL)
    assert eventually_free(free)
    assert free.daemon.exists()
    assert palyra("status").returncode == 3
    assert palyra("down").stdout.startswith("The daemon is not running")
    assert palyra("up").stdout.startswith("Started the daemon at")


def test_the_home_is_its_owners_only(free: Home) -> None:
    palyra("up")
    assert stat.S_IMODE(free.path.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in free.path.iterdir())


def test_a_piped_chat_ends_the_daemon_that_it_started(free: Home) -> None:
    done = palyra("chat", stdin="hello")
    assert done.returncode == 0
    assert "built-in helper" in done.stdout
    assert "started the daemon" in done.stderr
    assert not is_held(free)


def test_a_piped_chat_leaves_a_daemon_that_was_there(free: Home) -> None:
    palyra("up")
    assert palyra("chat", stdin="Hello").stderr == ""
    assert is_held(free)


def test_bad_input_starts_nothing(free: Home) -> None:
    assert palyra("chat", stdin="").returncode == 2
    assert not free.path.exists()


def test_a_detached_run_leaves_the_daemon_at_work(free: Home) -> None:
    done = palyra("run", "-m", "Hello", "--detach")
    assert done.returncode == 0
    assert "Stop it with `palyra down`" in done.stderr
    assert is_held(free)
    assert palyra("runs", "attach").returncode == 0


def test_a_daemon_that_was_started_for_one_command_goes_on_if_somebody_wants_it(free: Home, tmp_path: Path) -> None:
    script = tmp_path / "slow.json"
    script.write_text(json.dumps({"default": [{"do": "text", "text": "Well, " * 40, "chunk": 6, "delay_ms": 50}]}))
    environ = os.environ | {"PALYRA_MODEL_PROVIDER": "scripted", "PALYRA_MODEL_SCRIPT": str(script)}
    command = [sys.executable, "-m", "palyra", "run", "-m", "Hello."]
    with subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as running:
        while find_daemon(free) is None:
            assert running.poll() is None
            sleep(0.02)
        assert palyra("up").stdout.startswith("The daemon is already running")
        assert "Well" in running.communicate(timeout=60)[0]
    assert palyra("status").returncode == 0
    assert palyra("down").returncode == 0


def test_a_command_that_is_ended_ends_what_it_started(
    free: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"default": [{"do": "endless", "text": "on ", "delay_ms": 20}]}')
    monkeypatch.setenv("PALYRA_MODEL_PROVIDER", "scripted")
    monkeypatch.setenv("PALYRA_MODEL_SCRIPT", str(script))
    with subprocess.Popen(
        [sys.executable, "-m", "palyra", "run", "-m", "hello", "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        while b"model_text" not in process.stdout.readline():
            pass
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert not is_held(free)


def test_a_stream_goes_on_over_a_restart_with_no_gap(
    free: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.json"
    words = [{"do": "text", "text": "one two three four five six seven eight", "chunk": 4, "delay_ms": 150}]
    script.write_text(json.dumps({"default": words}))
    monkeypatch.setenv("PALYRA_MODEL_PROVIDER", "scripted")
    monkeypatch.setenv("PALYRA_MODEL_SCRIPT", str(script))
    palyra("up")
    with subprocess.Popen(
        [sys.executable, "-m", "palyra", "run", "-m", "hello", "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        first: list[bytes] = []
        while not first or b"model_text" not in first[-1]:
            first.append(process.stdout.readline())
        daemon = find_daemon(free)
        assert daemon is not None
        os.kill(daemon.pid, signal.SIGKILL)
        assert eventually_free(free)
        palyra("up")
        rest, err = process.communicate(timeout=60)
    entries = [json.loads(line) for line in [*first, *rest.splitlines()]]
    assert process.returncode == 0
    assert [entry["run_seq"] for entry in entries] == list(range(1, len(entries) + 1))
    assert "run_resumed" in [entry["event"]["kind"] for entry in entries]
    assert entries[-1]["event"]["kind"] == "run_completed"
    assert b"lost the connection to the daemon" in err


def test_two_who_start_at_once_share_one_daemon(free: Home) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "palyra", "up", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    answers = [process.communicate(timeout=60) for process in started]
    assert [beyond_sandbox(err.decode()) for _, err in answers] == ["", "", ""]
    said = [json.loads(out) for out, _ in answers]
    assert len({one["daemon"]["pid"] for one in said}) == 1
    assert sum(one["started"] for one in said) == 1


def test_a_daemon_that_can_not_start_says_why(free: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALYRA_MODEL_PROVIDER", "scripted")
    done = palyra("up")
    assert done.returncode == 1
    assert "[script_missing]" in done.stderr


def test_a_port_that_is_taken_is_told(free: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    palyra("up")
    daemon = find_daemon(free)
    assert daemon is not None
    monkeypatch.setenv("PALYRA_HTTP_PORT", daemon.address.rpartition(":")[2])
    done = palyra("up", "--profile", "other")
    assert done.returncode == 1
    assert "[port_in_use]" in done.stderr


def test_profiles_have_daemons_of_their_own(free: Home) -> None:
    assert palyra("up").returncode == 0
    try:
        assert palyra("up", "--profile", "work").returncode == 0
        assert json.loads(palyra("status", "--json", "--profile", "work").stdout)["home"] == f"{free.path}-work"
    finally:
        assert palyra("--profile", "work", "down").returncode == 0
    assert is_held(free)


def test_commands_at_the_same_time_need_no_daemon_that_stays(free: Home) -> None:
    asked = [
        subprocess.Popen(
            [sys.executable, "-m", "palyra", "chat", "--key", f"k{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(3)
    ]
    for number, process in enumerate(asked):
        assert process.stdin is not None
        process.stdin.write(f"read missing{number}.txt".encode())
        process.stdin.close()
        process.stdin = None
    answers = [process.communicate(timeout=60) for process in asked]
    assert [process.returncode for process in asked] == [0, 0, 0], answers
    assert all(f"missing{number}.txt".encode() in out for number, (out, _) in enumerate(answers))
    assert eventually_free(free)
