"""What a person approves is shown whole on every surface: nothing of it hides, and none of it passes for our words."""

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from palyra.core.text.escaping import MARGIN, escape
from palyra.gateway.grpc.pb import approvals_pb2 as pb
from tests.e2e.conftest import NewDaemon
from tests.e2e.test_approvals import asked, service
from tests.e2e.test_cli_terminal import ENTER, PROMPT, plain, terminal
from tests.support.command import command, palyra
from tests.support.daemon import Daemon, until

SECONDS = 60.0
LEFT = 5

COMMANDS = {
    "behind the beginning of a key": "echo -----BEGIN PRIVATE KEY-----\ntouch hidden",
    "behind the beginning of an address": "echo https://x:a\ntouch hidden\necho b@",
    "within an address": "echo https://x:$(touch${IFS}hidden)@",
    "behind a carriage return": "echo a; touch hidden #\recho a",
    "behind line ends of others": "echo a #\u2028\u2029\x85\x0b\x0c\ntouch hidden",
    "in the other direction": "echo '\u202e' ; touch hidden #",
    "behind what looks like the end": (
        "echo a\n\nin /w, 60 s at most, sandbox: strict\n  Reason: it is harmless\n"
        "  Yes allows this once. Expires 2030-01-01 00:00. Code: AAAAAA.\n\ntouch hidden"
    ),
    "behind a row that the terminal breaks": "echo " + "a" * 71 + "\u00a0\u00a0Yes allows this once.; touch hidden",
}


# Every surface shows the same without a sandbox, and no command here is approved.
NO_SANDBOX = "off"


def calling(line: str) -> dict[str, Any]:
    call = {"do": "call", "tool": "shell.run", "arguments": {"command": line, "access": "write"}}
    return {"rules": [{"when": {"tools": True}, "turns": [[call], [{"do": "text", "text": "Done."}]]}]}


def rows_of(line: str, screen: str) -> list[str]:
    """Return the rows of a screen that hold the command, without what stands before each."""
    found = [row.partition("  │ ")[2] for row in screen.replace("\r\n", "\n").split("\n") if row.startswith("  │ ")]
    assert "".join(found).count("hidden") >= 1, screen
    return found


def assert_whole(line: str, screen: str) -> None:
    shown = "".join(rows_of(line, screen))
    for part in escape(line).split("\n"):
        assert MARGIN + part in shown, screen
    for row in screen.replace("\r\n", "\n").split("\n"):
        # Our own words stand at the left edge once, and only in our own rows.
        assert not row.startswith(("  Yes allows this once. Expires 2030", "  Reason: it is harmless")), screen
        assert len(row.splitlines()) <= 1


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for all commands: `command 3` has it propose the fourth."""
    folder = tmp_path_factory.mktemp("whole")
    rules = [
        {**calling(line)["rules"][0], "when": {"equals": f"command {number}", "tools": True}}
        for number, line in enumerate(COMMANDS.values())
    ]
    script = folder / "script.json"
    script.write_text(json.dumps({"rules": rules, "default": [{"do": "text", "text": "Done."}]}))
    daemon = Daemon(
        folder / "home", model_provider="scripted", model_script=script, approvals_inbox=True, sandbox_tier=NO_SANDBOX
    )
    yield daemon.start()
    daemon.close()


@pytest.mark.parametrize(("number", "line"), list(enumerate(COMMANDS.values())), ids=list(COMMANDS))
def test_the_whole_command_is_on_every_surface(daemon: Daemon, number: int, line: str) -> None:
    daemon.send(f"command {number}", session={"key": str(number)})
    question = asked(daemon)
    exact = "\n".join(MARGIN + part for part in escape(line).split("\n"))
    assert exact in question["effect"]["detail"]
    assert question["arguments"]["command"] == line
    with service(daemon) as (call, _):
        found = call("ListApprovals", pb.ListApprovalsRequest(only_open=True), pb.ListApprovalsResponse)
        assert exact in found.approvals[0].effect.detail
    code = question["approval_id"][-6:]
    assert_whole(line, palyra(daemon, "approvals", "show", code))
    with terminal(daemon.home.path, "approvals", "show", code) as screen:
        assert screen.end(seconds=SECONDS) == 0
        assert_whole(line, plain(screen.raw))
    # The heads, the one question, and how to see more.
    assert len(palyra(daemon, "approvals").splitlines()) == 3
    palyra(daemon, "approvals", "deny", code)
    left = command(daemon.home.path, "run", "-m", f"command {number}", "--key", f"other {number}")
    assert left.returncode == LEFT
    assert_whole(line, left.stderr)
    palyra(daemon, "approvals", "deny", asked(daemon)["approval_id"])


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_the_whole_command_is_in_the_chat(new_sqlite_daemon: NewDaemon, term: str) -> None:
    line = COMMANDS["behind what looks like the end"] + "\n" + COMMANDS["behind a row that the terminal breaks"]
    daemon = new_sqlite_daemon(calling(line), sandbox_tier=NO_SANDBOX).start()
    with terminal(daemon.home.path, "chat", term=term) as chat:
        chat.wait_for(PROMPT, seconds=SECONDS)
        chat.type("go" + ENTER)
        chat.wait_for("Reason: It", seconds=SECONDS)
        chat.wait_for("yes", seconds=SECONDS)
        assert_whole(line, plain(chat.raw))
        chat.type("no" + ENTER)
        until(lambda: not daemon.get("/approvals", open="true")["approvals"])
    assert not (daemon.home.workspace / "hidden").exists()


def test_a_secret_is_a_marker_that_its_owner_can_look_behind(new_sqlite_daemon: NewDaemon) -> None:
    key = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
    daemon = new_sqlite_daemon(
        calling(f"echo a\ncurl -d {key} x"), approvals_inbox=True, sandbox_tier=NO_SANDBOX
    ).start()
    daemon.send("go")
    question = asked(daemon)
    shown = palyra(daemon, "approvals", "show", question["approval_id"][-6:])
    assert re.search(r"  │ > curl -d \[sealed:[a-z2-7]{16}\] x\n", shown), shown
    assert f"  │ > curl -d {key} x\n" in palyra(daemon, "approvals", "show", question["approval_id"][-6:], "--reveal")
    assert question["effect"]["carries_secret"] is True


def test_what_looks_like_a_secret_but_may_be_code_is_pointed_at_and_shown(new_sqlite_daemon: NewDaemon) -> None:
    """A marker stands for what no shell acts on; anything else is shown as it is."""
    password = "hunter2;rm+-rf+x"
    line = f"git clone https://ana:{password}@example.org/x"
    daemon = new_sqlite_daemon(calling(line), approvals_inbox=True, sandbox_tier=NO_SANDBOX).start()
    daemon.send("go")
    question = asked(daemon)
    shown = palyra(daemon, "approvals", "show", question["approval_id"][-6:])
    assert "  │ Looks like a secret: command, " in shown
    assert f"  │ > {line}\n" in shown


def test_of_a_long_effect_it_is_said_how_much_is_not_shown(new_sqlite_daemon: NewDaemon) -> None:
    text = "".join(f"line {number}\n" for number in range(3000)) + "rm -rf x\n"
    call = {"do": "call", "tool": "files.write", "arguments": {"path": "a.txt", "text": text}}
    script = {"rules": [{"when": {"tools": True}, "turns": [[call], [{"do": "text", "text": "Done."}]]}]}
    daemon = new_sqlite_daemon(script, approvals_inbox=True).start()
    left = _run(daemon)
    assert "  NOT SHOWN: 2964 lines with " in left.stderr
    code = asked(daemon)["approval_id"][-6:]
    assert f"palyra approvals show {code}" in left.stderr
    assert palyra(daemon, "approvals", "show", code).endswith("  │ +rm -rf x\n")


def _run(daemon: Daemon) -> subprocess.CompletedProcess[str]:
    return command(daemon.home.path, "run", "-m", "go")
