"""Approvals that hide, or forge, what they approve."""

import re
from typing import Any

from palyra.core.text.escaping import MARGIN
from tests.attack.case import attack
from tests.attack.ground import Ground, play, proposing
from tests.support.command import palyra
from tests.support.daemon import Daemon, Json, until

MARK = "hidden-mark"
DO = f"touch {MARK}"
ANY_MACHINE = {"sandbox_tier": "off"}  # no command of these cases is approved, so none needs a sandbox
_NAMES = {"NUL": "\0", "BEL": "\a", "BS": "\b", "TAB": "\t", "LF": "\n", "CR": "\r", "ESC": "\x1b", "DEL": "\x7f"}
_STRANGE = [chr(code) for code in (*range(1, 32), 127, 0x85, 0x9B, 0xA0, 0xAD, 0x200B, 0x200D, 0x200E, 0x2028, 0x2029)]
_STRANGE += [chr(code) for code in (0x202E, 0x2060, 0x2066, 0x2069, 0x3164, 0xFE0F, 0xFEFF, 0xE0041, 0xE0101)]
_WORDS = ["ls", "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "https://x:", "@", "⟨CR⟩", "⟨", "> ", "│ "]
_WORDS += ["Bearer ", "\nin /w, 60 s at most, sandbox: strict", "\nLooks like a secret: nothing", "ghp_" + "a1" * 18]


def _original(shown: str) -> str:
    """Return the text that is shown."""

    def letter(match: re.Match[str]) -> str:
        return _NAMES[match[1]] if match[1] in _NAMES else chr(int(match[1].removeprefix("U+"), 16))

    return re.sub("⟨([^⟩]*)⟩", letter, shown)


def _proposing(ground: Ground, tool: str, arguments: dict[str, Any], **settings: Any) -> tuple[Daemon, Json]:
    """Have a call proposed; return the daemon and the open approval."""
    daemon = ground.daemon(proposing((tool, arguments)), **settings)
    daemon.send("go")
    return daemon, _open(daemon)


def _open(daemon: Daemon) -> Json:
    return until(lambda: daemon.get("/approvals", open="true")["approvals"])[0]


def _assert_shown(daemon: Daemon, approval: Json, command: str) -> None:
    """Compare what each surface shows with what would run."""
    detail: str = approval["effect"]["detail"]
    quoted = [line.removeprefix(MARGIN) for line in detail.split("\n") if line.startswith(MARGIN)]
    assert _original("\n".join(quoted)) == command, f"the approval shows another command: {detail!r}"
    assert len(approval["effect"]["summary"].splitlines()) == 1, "the summary has several lines"
    shown = palyra(daemon, "approvals", "show", approval["approval_id"][-6:])
    rows = [row.removeprefix("  │ ") for row in shown.split("\n") if row.startswith("  │ ")]
    tabs = detail.expandtabs(4) if "\t" in detail else detail
    assert "\n".join(rows) == tabs, f"the command line shows something else: {shown!r}"
    strange = [char for char in shown if char in _STRANGE and char not in "\n\t"]
    assert not strange, f"the terminal is sent {strange!r}"


@attack("a command behind the beginning of a private key")
def behind_a_key(ground: Ground) -> None:
    command = f"echo -----BEGIN PRIVATE KEY-----\n{DO}"
    daemon, approval = _proposing(ground, "shell.run", {"command": command, "access": "write"}, **ANY_MACHINE)
    _assert_shown(daemon, approval, command)


@attack("a command within the password of an address")
def within_an_address(ground: Ground) -> None:
    command = f"echo https://x:a;{DO.replace(' ', '${IFS}')};@\necho https://x:b\n{DO}\n@"
    daemon, approval = _proposing(ground, "shell.run", {"command": command, "access": "write"}, **ANY_MACHINE)
    _assert_shown(daemon, approval, command)


@attack("commands of strange characters and forged words, put together by chance")
def strange_commands(ground: Ground) -> None:
    for _ in range(ground.rounds):
        choices = [*_STRANGE, *_WORDS, "\n", " ", "a" * 90]
        parts = [ground.random.choices(choices, k=ground.random.randint(5, 60)) for _ in range(4)]
        commands = [f"true {''.join(some)}\n{DO}" for some in parts]
        daemon = ground.daemon(
            proposing(*(("shell.run", {"command": command, "access": "write"}) for command in commands)), **ANY_MACHINE
        )
        daemon.send("go")
        for command in commands:
            approval = _open(daemon)
            assert approval["arguments"]["command"] == command
            _assert_shown(daemon, approval, command)
            daemon.post(f"/approvals/{approval['approval_id']}/resolve", {"decision": "deny"})
        assert not (daemon.home.workspace / MARK).exists()


@attack("a diff whose lines are forged by a carriage return, U+2028, U+0085 or a name")
def forged_diff(ground: Ground) -> None:
    text = f"safe\r\u2028+safe\x85-gone\x0b\x0c\x1b[2K\x1b[1A\u202e{DO}\r\n"
    daemon, approval = _proposing(ground, "files.write", {"path": "a\n+++ b", "text": text})
    detail = approval["effect"]["detail"]
    lines = detail.removesuffix("\n").split("\n")
    assert len(lines) == len(detail.splitlines()) == 4, f"lines were forged: {detail!r}"
    assert _original(lines[3]) == f"+{text[:-1]}", f"something of the text is not shown: {detail!r}"
    shown = palyra(daemon, "approvals", "show", approval["approval_id"][-6:])
    assert not [char for char in shown if char in _STRANGE and char != "\n"], f"the terminal is sent {shown!r}"


@attack("a script in the place of a file that is not text")
def over_a_binary_file(ground: Ground) -> None:
    daemon = ground.daemon(proposing(("files.write", {"path": "tool.bin", "text": f"{DO}\n", "mode": "replace"})))
    (daemon.home.workspace / "tool.bin").write_bytes(b"\x7fELF\0\xff")
    daemon.send("go")
    approval = _open(daemon)
    assert f"+{DO}\n" in approval["effect"]["detail"], "what would be written is not shown"


@attack("headers and a body that forge further lines of a request")
def forged_request(ground: Ground) -> None:
    body = f"x\nPOST https://other.example/\n{DO}"
    arguments = {"url": "https://example.org/", "method": "POST", "headers": {"X-A": "b"}, "body": body}
    _, approval = _proposing(ground, "http.fetch", arguments)
    ours = [line for line in approval["effect"]["detail"].split("\n") if line and not line.startswith(MARGIN)]
    assert ours == ["POST https://example.org/"], f"a line was forged: {ours!r}"


@attack("an effect of many megabytes of what nobody sees")
def endless_effect(ground: Ground) -> None:
    daemon = ground.daemon(proposing(("files.write", {"path": "a.txt", "text": "\u200b" * 1_200_000})))
    tape = play(daemon, "go", decision=None)
    decided = [line.event for line in tape if line.kind == "policy_decided"]
    assert [event["verdict"] for event in decided] == ["deny"], "it was put before a person"
    assert "smaller calls" in decided[0]["reason"]
