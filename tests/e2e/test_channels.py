"""Channels on a real daemon: what is denied over HTTP is asked about at the command line, and tried before."""

import json
from typing import Any

from tests.e2e.conftest import NewDaemon
from tests.support.command import palyra
from tests.support.daemon import Daemon, until

Json = Any

SCRIPT = {
    "rules": [
        {
            "when": {"tools": True},
            "turns": [
                [{"do": "call", "tool": "files.write", "arguments": {"path": "a.txt", "text": "x"}}],
                [{"do": "text", "text": "{result}"}],
            ],
        }
    ],
    "default": [{"do": "text", "text": "Nothing."}],
}
RULE = """@id("not-by-http") @reason("Not from there.")
forbid (principal in Principal::"user:owner", action, resource in Family::"files")
when { context.channel == Channel::"http" };
"""


def decided(daemon: Daemon, run_id: str) -> tuple[str, list[str]]:
    def look() -> Json:
        return [line.event for line in daemon.tape(f"/runs/{run_id}") if line.kind == "policy_decided"]

    (event,) = until(look)
    return event["verdict"], event["policies"]


def sent_by_command_line(daemon: Daemon) -> str:
    return str(json.loads(palyra(daemon, "run", "-m", "Write.", "--detach", "--json"))["run_id"])


def test_a_rule_for_one_channel_is_tried_and_then_counts_for_that_one_alone(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(SCRIPT).start()
    http = daemon.send("Write.")["run_id"]
    command_line = sent_by_command_line(daemon)
    assert decided(daemon, http) == decided(daemon, command_line) == ("ask", ["changes-ask"])

    new = daemon.home.path / "new.cedar"
    new.write_text(RULE)
    found = json.loads(palyra(daemon, "policy", "simulate", str(new), "--json"))
    assert [(flip["run_id"], flip["verdict"], flip["channels"]) for flip in found["flips"]] == [
        (http, "deny", ["http"])
    ]

    daemon.home.policy.mkdir(exist_ok=True)
    new.rename(daemon.home.policy / "own.cedar")
    palyra(daemon, "config", "reload")
    denied = daemon.send("Write.")["run_id"]
    assert daemon.finished(denied)["status"] == "done"
    assert decided(daemon, denied) == ("deny", ["not-by-http"])
    assert decided(daemon, sent_by_command_line(daemon)) == ("ask", ["changes-ask"])

    imagined = ("policy", "explain", "--tool", "files.write", "--risk", "medium", "--json")
    assert json.loads(palyra(daemon, *imagined, "--channel", "http"))["reason"] == "Not from there."
    assert json.loads(palyra(daemon, *imagined, "--channel", "grpc"))["verdict"] == "ask"
    (call,) = json.loads(palyra(daemon, "policy", "explain", command_line, "--json"))["calls"]
    assert (call["channels"], call["verdict"]) == (["grpc"], "ask")
    (call,) = json.loads(palyra(daemon, "policy", "explain", http, "--json"))["calls"]
    assert (call["channels"], call["was"], call["verdict"]) == (["http"], "ask", "deny")
    assert "from the HTTP API (http)" in palyra(daemon, "why", denied)
