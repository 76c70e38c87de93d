"""MCP servers through a real daemon: accepted by the owner, used through approval, ended with the daemon."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import NewDaemon
from tests.e2e.test_approvals import asked, palyra
from tests.support.daemon import Daemon, until

Json = Any

pytestmark = pytest.mark.timeout(90)

SERVER = Path(__file__).parent.parent / "support" / "mcp_server.py"
START_SECONDS = 40.0


def calling(tool: str, arguments: Json) -> Json:
    turns = [[{"do": "call", "tool": tool, "arguments": arguments}], [{"do": "text", "text": "It says: {result}"}]]
    return {"rules": [{"when": {"tools": True}, "turns": turns}], "default": [{"do": "text", "text": "Nothing."}]}


NOTE = calling("mcp.notes.note", {"text": "milk", "times": 2})


def configured(daemon: Daemon, **settings: Json) -> Daemon:
    """Write a server into the settings."""
    given = {"command": sys.executable, "args": [str(SERVER)], **settings}
    lines = [f"{key} = {json.dumps(value)}" for key, value in given.items() if not isinstance(value, dict)]
    for key, value in given.items():
        if isinstance(value, dict):
            lines += [f"[mcp.servers.notes.{key}]", *(f"{name} = {json.dumps(text)}" for name, text in value.items())]
    daemon.home.path.mkdir(parents=True, exist_ok=True)
    daemon.home.config.write_text("[approvals]\ninbox = true\n[mcp.servers.notes]\n" + "\n".join(lines) + "\n")
    return daemon


def standing(daemon: Daemon) -> Json:
    (found,) = json.loads(palyra(daemon, "mcp", "list", "--json"))["servers"]
    return found


def ready(daemon: Daemon) -> Json:
    """Wait until the server is there, and return how it stands."""
    return until(lambda: found if (found := standing(daemon))["state"] == "ready" else None, seconds=START_SECONDS)


def states(server: Json) -> dict[str, str]:
    return {tool["tool"]: tool["state"] for tool in server["tools"]}


def said(daemon: Daemon, run_id: str) -> str:
    return "".join(line.event["text"] for line in daemon.tape(f"/runs/{run_id}") if line.kind == "model_text")


def allowed(daemon: Daemon, text: str = "Go.") -> str:
    """Send a message, allow the call that it leads to, and return the answer."""
    sent = daemon.send(text)
    palyra(daemon, "approvals", "allow", asked(daemon)["approval_id"])
    assert daemon.finished(sent["run_id"], seconds=30)["status"] == "done"
    return said(daemon, sent["run_id"])


def below(pid: int) -> set[int]:
    """Return every process that descends from one."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found, before = {pid}, set[int]()
    while found != before:
        before = set(found)
        found |= {child for child, parent in parents.items() if parent in found}
    return found - {pid}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_tool_is_used_once_it_is_accepted_and_the_call_is_approved(new_daemon: NewDaemon) -> None:
    daemon = configured(new_daemon(NOTE)).start()
    server = ready(daemon)
    assert states(server)["note"] == "new"
    sent = daemon.send("Before it is accepted.")
    daemon.finished(sent["run_id"])
    assert "There is no tool 'mcp.notes.note'" in said(daemon, sent["run_id"])
    assert "Write a note." in palyra(daemon, "mcp", "show", "notes", "note")
    assert "not_confirmed" in palyra(daemon, "mcp", "accept", "notes", "note", code=2)

    palyra(daemon, "mcp", "accept", "notes", "note", "--yes")
    sent = daemon.send("Now.")
    question = asked(daemon)

    assert question["effect"]["risk"] == "high"
    assert '"text": "milk"' in question["effect"]["detail"]
    assert "mcp.notes.note" in question["effect"]["summary"]
    palyra(daemon, "approvals", "allow", question["approval_id"])
    daemon.finished(sent["run_id"])
    assert said(daemon, sent["run_id"]) == "It says: noted 'milk' 2x"
    (result,) = [line.event for line in daemon.tape(f"/runs/{sent['run_id']}") if line.kind == "tool_finished"]
    assert result["labels"] == ["web"]
    assert "1 tools accepted" in palyra(daemon, "status")
