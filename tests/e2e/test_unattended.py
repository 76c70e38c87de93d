"""Questions of a run that a script started: nobody sits there, and the script must neither hang nor lose work."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palyra.gateway.client.target import find_daemon, is_held
from palyra.home import Home
from tests.e2e.conftest import NewDaemon
from tests.e2e.test_cli_terminal import terminal
from tests.support.command import command, environ
from tests.support.daemon import Daemon, until

WRITE = {"do": "call", "tool": "files.write", "arguments": {"path": "notes.txt", "text": "hello\n"}}
SAY = [{"do": "text", "text": "{result}"}]
ON = {"do": "call", "tool": "agent.delegate", "arguments": {"task": "write it"}}
DEEPER = {"do": "call", "tool": "agent.delegate", "arguments": {"task": "hand it on"}}
SLOWLY = {"do": "text", "text": "Well, " * 20, "chunk": 6, "delay_ms": 50}
SCRIPT = {
    "rules": [
        {"when": {"contains": "deeper", "tools": True}, "turns": [[DEEPER], SAY]},
        {"when": {"contains": "hand it on", "tools": True}, "turns": [[ON], SAY]},
        {"when": {"contains": "slowly", "tools": True}, "turns": [[SLOWLY, WRITE], SAY]},
        {"when": {"contains": "write", "tools": True}, "turns": [[WRITE], SAY]},
    ],
    "default": [{"do": "text", "text": "You said: {input}"}],
}
CANCELLED = 4
LEFT = 5
SECONDS = 60.0


def run(daemon: Daemon, *args: str) -> subprocess.CompletedProcess[str]:
    return command(daemon.home.path, "run", *args)


def questions(daemon: Daemon) -> list[Any]:
    found: list[Any] = daemon.get("/approvals", open="true")["approvals"]
    return found


def notes(daemon: Daemon) -> Path:
    return daemon.home.workspace / "notes.txt"


@pytest.mark.parametrize("message", ["write it", "hand it on", "deeper"])
def test_a_run_is_left_with_its_question_and_goes_on_when_it_is_answered(
    new_sqlite_daemon: NewDaemon, message: str
) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    done = run(daemon, "-m", message, "--key", "script")
    (question,) = questions(daemon)
    code = question["approval_id"][-6:]
    assert done.returncode == LEFT, done.stderr
    assert done.stdout == ""
    assert "write notes.txt (1 line, new)" in done.stderr
    assert f"`palyra approvals allow {code}` or `palyra approvals deny {code}`" in done.stderr

    assert command(daemon.home.path, "approvals", "allow", code).returncode == 0
    (run_id,) = [one["run_id"] for one in daemon.get("/runs")["runs"] if one.get("parent_run_id") is None]
    assert f"`palyra runs attach {run_id}`" in done.stderr
    attached = command(daemon.home.path, "runs", "attach", run_id)
    assert (attached.returncode, "notes.txt was written" in attached.stdout) == (0, True)
    assert notes(daemon).read_text() == "hello\n"


def test_a_program_gets_the_entries_up_to_the_question_and_nothing_else(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    done = run(daemon, "-m", "write it", "--json")
    assert done.returncode == LEFT
    entries = [json.loads(line) for line in done.stdout.splitlines()]
    assert entries[-1]["event"]["kind"] == "approval_requested"
    assert entries[-1]["event"]["approval_id"] == questions(daemon)[0]["approval_id"]
    assert entries[-1]["run_id"] in done.stderr


@pytest.mark.parametrize("message", ["write it", "hand it on", "deeper"])
def test_no_is_said_in_the_place_of_somebody(new_sqlite_daemon: NewDaemon, message: str) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    done = run(daemon, "-m", message, "--on-approval", "deny")
    assert (done.returncode, questions(daemon)) == (0, [])
    assert "No approver is available." in done.stdout
    assert "denied, because no approver is available" in done.stderr
    assert not notes(daemon).exists()


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_who_asks_for_it_waits_until_somebody_answers_elsewhere(
    new_sqlite_daemon: NewDaemon, form: tuple[str, ...]
) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    with subprocess.Popen(
        [sys.executable, "-m", "palyra", "run", "-m", "write it", "--on-approval", "wait", *form],
        env=environ(daemon.home.path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as waiting:
        code = until(lambda: questions(daemon))[0]["approval_id"][-6:]
        assert waiting.stderr is not None
        assert any(f"palyra approvals allow {code}" in line for line in waiting.stderr)
        assert waiting.poll() is None
        assert command(daemon.home.path, "approvals", "allow", code).returncode == 0
        said, _ = waiting.communicate(timeout=SECONDS)
    assert (waiting.returncode, "notes.txt was written" in said) == (0, True)


def test_a_message_behind_a_question_is_left_too_and_not_lost(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    assert run(daemon, "-m", "write it", "--key", "script").returncode == LEFT
    # It can not say no to a question that is not its own.
    for rule in ("leave", "deny"):
        done = run(daemon, "-m", f"hello {rule}", "--key", "script", "--on-approval", rule)
        assert done.returncode == LEFT
        assert f"palyra approvals allow {questions(daemon)[0]['approval_id'][-6:]}" in done.stderr
    assert command(daemon.home.path, "approvals", "allow", questions(daemon)[0]["approval_id"]).returncode == 0
    for run_ in daemon.get("/runs")["runs"]:
        assert daemon.finished(run_["run_id"])["status"] == "done"


def test_a_question_that_comes_up_in_a_run_before_it_is_noticed(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    first = daemon.send("write slowly", session={"key": "script"})
    done = run(daemon, "-m", "hello", "--key", "script")
    assert done.returncode == LEFT
    assert f"waits for run {first['run_id']}" in done.stderr


def test_what_was_answered_before_is_no_question(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    send = ("-m", "write it", "--key", "script", "--idempotency-key", "once")
    assert run(daemon, *send).returncode == LEFT
    assert run(daemon, *send).returncode == LEFT
    (question,) = questions(daemon)
    assert command(daemon.home.path, "approvals", "deny", question["approval_id"]).returncode == 0
    for rule in ("leave", "deny"):
        done = run(daemon, *send, "--on-approval", rule)
        assert (done.returncode, "denied, because no approver is available" in done.stderr) == (0, False)


def test_at_a_terminal_one_may_leave_too(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    with terminal(daemon.home.path, "run", "-m", "write it", "--on-approval", "leave") as screen:
        screen.wait_for("palyra approvals allow")
        assert screen.end() == LEFT
    with terminal(daemon.home.path, "run", "-m", "write it", "--json") as screen:
        screen.wait_for("palyra approvals allow")
        assert screen.end() == LEFT


def test_where_nothing_is_waited_for_the_option_is_refused(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    done = run(daemon, "-m", "hello", "--detach", "--on-approval", "deny")
    assert (done.returncode, "--detach" in done.stderr) == (2, True)
    with terminal(daemon.home.path, "chat", "--on-approval", "deny") as screen:
        screen.wait_for("an interactive chat asks you")
        assert screen.end() == 2


@pytest.fixture
def free(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home that nothing lives in, neither before nor after the test."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    yield Home(home)
    daemon = find_daemon(Home(home))
    if daemon is not None:
        os.kill(daemon.pid, signal.SIGKILL)


@pytest.mark.parametrize("args", [("run", "-m", "write a note: hello"), ("chat",)])
def test_a_daemon_that_was_started_for_it_goes_on_until_the_question_is_answered(
    free: Home, args: tuple[str, ...]
) -> None:
    done = command(free.path, *args, stdin="write a note: hello", PALYRA_HTTP_PORT="0")
    assert done.returncode == LEFT, done.stderr
    assert "the daemon keeps running in the background" in done.stderr
    assert is_held(free)
    (code,) = [row.split()[0] for row in command(free.path, "approvals").stdout.splitlines()[1:]]
    assert command(free.path, "approvals", "allow", code).returncode == 0
    assert command(free.path, "runs", "attach").returncode == 0
    assert (free.workspace / "notes.txt").read_text() == "hello\n"
    assert command(free.path, "down").returncode == 0


def test_a_daemon_that_was_started_for_a_run_that_is_denied_is_ended(free: Home) -> None:
    args = ("run", "-m", "write a note: hello", "--on-approval", "deny")
    assert command(free.path, *args, PALYRA_HTTP_PORT="0").returncode == 0
    assert not is_held(free)


def test_at_a_terminal_an_answer_from_elsewhere_is_enough(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    with terminal(daemon.home.path, "run", "-m", "write it") as screen:
        screen.wait_for("or a time such as 30m:")
        code = questions(daemon)[0]["approval_id"][-6:]
        assert command(daemon.home.path, "approvals", "allow", code).returncode == 0
        screen.wait_for("notes.txt was written")
        assert screen.end() == 0


def test_ctrl_c_at_a_question_cancels_the_run(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    with terminal(daemon.home.path, "run", "-m", "write it") as screen:
        screen.wait_for("or a time such as 30m:")
        assert screen.interrupt() == CANCELLED
    (run_,) = daemon.get("/runs")["runs"]
    assert (run_["status"], questions(daemon)) == ("cancelled", [])


def test_who_attaches_at_a_terminal_is_asked_what_is_still_open(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(SCRIPT).start()
    assert run(daemon, "-m", "write it").returncode == LEFT
    with terminal(daemon.home.path, "runs", "attach", "last") as screen:
        screen.wait_for("or a time such as 30m:")
        screen.type("yes\r")
        screen.wait_for("notes.txt was written")
        assert screen.end() == 0
    with terminal(daemon.home.path, "runs", "attach", "last") as screen:
        screen.wait_for("notes.txt was written")
        assert screen.end() == 0
        assert "30m?" not in screen.raw
