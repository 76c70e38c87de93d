"""Many tools of a plugin in a real daemon: found by search, used, and still there after a kill."""

from pathlib import Path

from tests.e2e.conftest import NewDaemon
from tests.support.command import command
from tests.support.daemon import Daemon
from tests.support.plugins import a_plugin, manifest

COLOURS = ("red", "green", "blue", "grey", "black", "white", "brown", "pink", "violet", "orange", "teal", "gold")
TOOLS = "".join(
    f"""
[[tools]]
name = "paint_{colour}"
description = "Paint a wall in {colour}, with two coats, a brush for the corners and a roller for the rest of it."
read_only = true
repeatable = true
"""
    for colour in COLOURS
)
SEARCH = {"do": "call", "tool": "tools.search", "arguments": {"query": "paint the wall violet"}}
PAINT = {"do": "call", "tool": "probe.paint_violet", "arguments": {}}
SAY = [{"do": "text", "text": "{result}"}]
SCRIPT = {
    "rules": [
        {"when": {"contains": "Search", "tools": True}, "turns": [[SEARCH], [PAINT], SAY]},
        {"when": {"contains": "Paint", "tools": True}, "turns": [[PAINT], SAY]},
    ],
    "default": SAY,
}


def events(daemon: Daemon, text: str, *, key: str = "walls") -> list[dict[str, object]]:
    """Say something, and return what came of it when the run has ended."""
    sent = daemon.send(text, session={"key": key})
    assert daemon.finished(sent["run_id"])["status"] == "done"
    return [line.event for line in daemon.tape(f"/runs/{sent['run_id']}")]


def of_kind(found: list[dict[str, object]], kind: str) -> list[dict[str, object]]:
    return [event for event in found if event["kind"] == kind]


def test_a_tool_is_found_and_used_and_still_there_after_a_kill(new_daemon: NewDaemon, tmp_path: Path) -> None:
    daemon = new_daemon(SCRIPT).start()
    folder = a_plugin(tmp_path / "probe", text=manifest(rest=TOOLS))
    assert command(daemon.home.path, "plugins", "install", str(folder), "--yes").returncode == 0

    (refused,) = of_kind(events(daemon, "Paint.", key="elsewhere"), "policy_decided")
    assert refused["verdict"] == "deny"
    assert "Find it with tools.search" in str(refused["reason"])

    found = events(daemon, "Search and paint.")
    search, paint = of_kind(found, "tool_finished")
    assert isinstance(search["discovered_tools"], list)
    assert search["discovered_tools"][0] == "probe.paint_violet"
    assert paint["outcome"] == "ok"
    shown = of_kind(found, "context_assembled")
    assert all(int(str(event["estimated_tokens"])) < 4_000 for event in shown)
    assert int(str(shown[0]["estimated_tokens"])) < 2_000

    daemon.kill()
    daemon.start()
    (again,) = of_kind(events(daemon, "Paint."), "tool_finished")
    assert again["outcome"] == "ok"
