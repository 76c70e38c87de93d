"""The chat at a terminal: typed keys in, what the terminal is sent out."""

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import stat
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic

import pytest

from palyra.gateway.client.target import find_daemon
from palyra.home import Home
from tests.support.daemon import Daemon, until

CTRL_C = "\x03"
PRESSES = 5
CTRL_D = "\x04"
ENTER = "\r"
ALT_ENTER = "\x1b\r"
PROMPT = ">"

SCRIPT = {
    "rules": [
        {"when": {"contains": "hold on"}, "actions": [{"do": "text", "text": "I heard: {input}"}]},
        {"when": {"contains": "endless"}, "actions": [{"do": "endless", "text": "on and on and\n", "delay_ms": 50}]},
        {
            "when": {"contains": "slow"},
            "turns": [
                [
                    {"do": "text", "text": "tortoise, says the hare, hurry", "chunk": 9, "delay_ms": 500},
                    {"do": "call", "tool": "files.list"},
                ],
                [{"do": "text", "text": "Done."}],
            ],
        },
        {
            "when": {"contains": "evil"},
            "actions": [{"do": "text", "text": "before \u001b]0;owned\u0007 \u009b31m\u0008 after"}],
        },
    ],
    "default": [{"do": "text", "text": "You said: {input}"}],
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for all tests of this module."""
    folder = tmp_path_factory.mktemp("terminal")
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    daemon = Daemon(folder / "home", model_provider="scripted", model_script=script)
    yield daemon.start()
    daemon.close()


class Terminal:
    """A terminal with a command in it."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self._process = process
        self._descriptor = descriptor
        self._seen = 0
        self.raw = ""

    def type(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def wait_for(self, text: str, *, seconds: float = 60.0) -> None:
        """Wait until the terminal is sent this text, after what was waited for before."""
        deadline = monotonic() + seconds
        while (place := plain(self.raw).find(text, self._seen)) < 0:
            assert monotonic() < deadline, f"{text!r} did not come; the terminal shows:\n{plain(self.raw)}"
            self._read(0.1)
        self._seen = place + len(text)

    def end(self, *, seconds: float = 60.0) -> int:
        """Wait until the command has ended, and return its exit code."""
        deadline = monotonic() + seconds
        while self._process.poll() is None:
            assert monotonic() < deadline, f"it did not end; the terminal shows:\n{plain(self.raw)}"
            self._read(0.05)
        self._read(0.1)
        return self._process.returncode

    def interrupt(self) -> int:
        """Press Ctrl-C at a prompt until the command has ended, and return its exit code.

        One that falls between the prompt and Python's wait for a key is seen with the next key only.
        """
        for _ in range(PRESSES):
            self.type(CTRL_C)
            with suppress(AssertionError):
                return self.end(seconds=2.0)
        return self.end()

    def _read(self, seconds: float) -> None:
        if select.select([self._descriptor], [], [], seconds)[0]:
            try:
                self.raw += os.read(self._descriptor, 65536).decode(errors="replace")
            except OSError:  # the other end is closed
                return


@contextmanager
def terminal(home: Path, *args: str, term: str = "xterm") -> Iterator[Terminal]:
    """Run a command at a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PALYRA_", "PYTHONDONT"))}
    setsid = shutil.which("setsid")
    assert setsid is not None
    process = subprocess.Popen(
        # A controlling terminal is what turns Ctrl-C into a signal.
        [setsid, "--ctty", sys.executable, "-m", "palyra", *args],
        # Whoever runs the tests in the background may have them ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=kept
        | {
            "PALYRA_HOME": str(home),
            "PALYRA_HTTP_PORT": "0",
            "TERM": term,
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "PYTHONUTF8": "1",
        },
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def plain(raw: str) -> str:
    """Return what was sent without the commands to the terminal."""
    raw = re.sub(r"\x1b\][^\x07]*\x07", "", raw)
    return re.sub(r"\x1b[\[(][0-9;?]*[A-Za-z]|\x1b[=>]", "", raw)


def test_a_message_is_typed_and_answered(daemon: Daemon) -> None:
    with terminal(daemon.home.path, "chat", "--key", "typed") as screen:
        screen.wait_for(PROMPT)
        screen.type("hello" + ENTER)
        screen.wait_for("You said: hello")
        screen.type(CTRL_D)
        assert screen.end() == 0


def test_coming_back_one_is_told_what_was_said(daemon: Daemon) -> None:
    with terminal(daemon.home.path, "chat", "--key", "back") as screen:
        screen.wait_for(PROMPT)
        screen.type("remember me" + ENTER)
        screen.wait_for("You said: remember me")
        screen.type("/quit" + ENTER)
        assert screen.end() == 0
    with terminal(daemon.home.path, "chat", "--key", "back") as screen:
        screen.wait_for("Continuing session")
        screen.wait_for("> remember me")
        screen.wait_for("You said: remember me")


def test_ctrl_c_cancels_the_run_and_keeps_the_chat(daemon: Daemon) -> None:
    with terminal(daemon.home.path, "chat", "--key", "cancel") as screen:
        screen.wait_for(PROMPT)
        screen.type("endless" + ENTER)
        screen.wait_for("on and on and")
        screen.type(CTRL_C)
        screen.wait_for("(run cancelled")
        screen.type("still there?" + ENTER)
        screen.wait_for("You said: still there?")
        screen.type(CTRL_C)
        screen.wait_for("to quit)")
        screen.type(CTRL_C)
        assert screen.end() == 0
    assert _last(daemon, "endless")["status"] == "cancelled"


def test_ctrl_c_twice_leaves_and_still_cancels(daemon: Daemon) -> None:
    with terminal(daemon.home.path, "chat", "--key", "twice") as screen:
        screen.wait_for(PROMPT)
        screen.type("endless twice" + ENTER)
        screen.wait_for("on and on and")
        screen.type(CTRL_C + CTRL_C)
        assert screen.end() == 0
    until(lambda: _last(daemon, "endless twice")["status"] == "cancelled")


def test_leaving_leaves_the_run_at_work(daemon: Daemon) -> None:
    with terminal(daemon.home.path, "chat", "--key", "left") as screen:
        screen.wait_for(PROMPT)
        screen.type("endless work" + ENTER)
        screen.wait_for("on and on and")
        screen.type(CTRL_D)
        assert screen.end() == 0
        screen.wait_for("(the run continues")
    run = _last(daemon, "endless work")
    assert run["status"] == "in_progress"
    daemon.post(f"/runs/{run['run_id']}/cancel")


def test_one_can_type_while_the_answer_is_written(daemon: Daemon) -> None:
    with terminal(daemon.home.path, "chat", "--key", "along") as screen:
        screen.wait_for(PROMPT)
        screen.type("slow" + ENTER)
        screen.wait_for("tortoise")
        screen.type("hold on" + ENTER)
        screen.wait_for("(added to the current run)")
        screen.wait_for("I heard: hold on")
    run = _last(daemon, "slow")
    assert "input_steered" in [line.kind for line in daemon.tape(f"/runs/{run['run_id']}")]


def test_a_message_may_have_several_lines(daemon: Daemon) -> None:
    with terminal(daemon.home.path, "chat", "--key", "lines") as screen:
        screen.wait_for(PROMPT)
        screen.type("one\\" + ENTER)
        screen.type("two" + ALT_ENTER)
        screen.type("three" + ENTER)
        screen.wait_for("You said: one")
    assert daemon.runs()[0]["input"].split() == ["one", "two", "three"]


def test_the_model_can_not_command_the_terminal(daemon: Daemon) -> None:
    with terminal(daemon.home.path, "chat", "--key", "evil") as screen:
        screen.wait_for(PROMPT)
        screen.type("evil" + ENTER)
        screen.wait_for("after")
        assert "⟨ESC⟩]0;owned⟨BEL⟩" in screen.raw
        assert "\x1b]0;owned" not in screen.raw
        assert "\x9b" not in screen.raw


def test_what_was_typed_is_the_owners_only(daemon: Daemon) -> None:
    with terminal(daemon.home.path, "chat", "--key", "history") as screen:
        screen.wait_for(PROMPT)
        screen.type("a secret wish" + ENTER)
        screen.wait_for("You said: a secret wish")
    assert "a secret wish" in daemon.home.history.read_text()
    assert stat.S_IMODE(daemon.home.history.stat().st_mode) == 0o600


def test_slash_commands_are_for_the_chat(daemon: Daemon) -> None:
    with terminal(daemon.home.path, "chat", "--key", "slash") as screen:
        screen.wait_for(PROMPT)
        screen.type("first words" + ENTER)
        screen.wait_for("You said: first words")
        screen.type("/help" + ENTER)
        screen.wait_for("/sessions  list sessions")
        screen.type("/modle" + ENTER)
        screen.wait_for("Did you mean /model?")
        screen.type("/model" + ENTER)
        screen.wait_for("Answers come from scripted")
        screen.type("/new" + ENTER)
        screen.wait_for("New session.")
        screen.type("second words" + ENTER)
        screen.wait_for("You said: second words")
        screen.type("/sessions" + ENTER)
        screen.wait_for("first words (archived)")


def test_a_plain_terminal_will_do(daemon: Daemon) -> None:
    with terminal(daemon.home.path, "chat", "--key", "plain", term="dumb") as screen:
        screen.wait_for(PROMPT)
        screen.type("hello\n")
        screen.wait_for("You said: hello")
        screen.type("endless plain\n")
        screen.wait_for("on and on and")
        screen.type(CTRL_C)
        screen.wait_for("(run cancelled")
        screen.wait_for(PROMPT)
        screen.type("slow\n")
        screen.wait_for("· files.list … ok")
        screen.wait_for("Done.")
        screen.wait_for(PROMPT)
        screen.type(CTRL_D)
        assert screen.end() == 0
        assert "\x1b" not in screen.raw


def test_ctrl_c_cancels_a_single_run(daemon: Daemon) -> None:
    with terminal(daemon.home.path, "run", "-m", "endless single") as screen:
        screen.wait_for("on and on and")
        screen.type(CTRL_C)
        assert screen.end() == 4
    assert _last(daemon, "endless single")["status"] == "cancelled"


def test_ctrl_c_while_attached_leaves_the_run_alone(daemon: Daemon) -> None:
    run_id = daemon.send("endless watched")["run_id"]
    with terminal(daemon.home.path, "runs", "attach", run_id) as screen:
        screen.wait_for("on and on and")
        screen.type(CTRL_C)
        assert screen.end() == 130
        screen.wait_for("the run continues")
    assert daemon.run(run_id)["status"] == "in_progress"
    daemon.post(f"/runs/{run_id}/cancel")


def test_tables_are_coloured_unless_asked_not_to_be(daemon: Daemon) -> None:
    with terminal(daemon.home.path, "status") as screen:
        screen.end()
        assert "\x1b[32m" in screen.raw


def test_the_first_chat_starts_a_daemon_that_goes_on(home: Path) -> None:
    try:
        with terminal(home, "chat") as screen:
            screen.wait_for("palyra: started the daemon at")
            screen.wait_for(PROMPT)
            screen.type("hello" + ENTER)
            screen.wait_for("built-in helper")
            screen.wait_for("See `palyra runs tape last`")
            screen.type("thank you" + ENTER)
            # The prompt that is there already is not the one that comes next; a key typed between the two may be lost.
            screen.wait_for("You are welcome.")
            screen.wait_for(PROMPT)
            screen.type(CTRL_D)
            assert screen.end() == 0
            screen.wait_for("the daemon keeps running in the background. Stop it with `palyra down`.")
            assert screen.raw.count("`palyra runs tape last`") <= 2
        assert find_daemon(Home(home)) is not None
    finally:
        daemon = find_daemon(Home(home))
        if daemon is not None:
            os.kill(daemon.pid, signal.SIGKILL)


def _last(daemon: Daemon, text: str) -> dict[str, object]:
    return next(run for run in daemon.runs() if run["input"] == text)
