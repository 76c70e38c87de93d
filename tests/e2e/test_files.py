"""Files changed through a daemon: asked about, kept, in the backup, and restored at the command line."""

import json
from pathlib import Path
from typing import Any

import httpx

from palyra.cli.exit_codes import Exit
from palyra.core.ids import PrincipalId
from palyra.journal.archive.backup import journal_in, read_manifest
from palyra.journal.content import file_checkpoints
from tests.e2e.conftest import NewDaemon
from tests.support.command import palyra
from tests.support.daemon import Daemon

Json = Any

TOLD = {"do": "text", "text": "That is all."}
SCRIPT = {
    "rules": [
        {
            "when": {"contains": "write", "tools": True},
            "turns": [
                [
                    {
                        "do": "call",
                        "tool": "files.write",
                        "arguments": {"path": "notes.txt", "text": "new\n", "mode": "replace"},
                    }
                ],
                [{"do": "text", "text": "Written."}],
            ],
        },
        {
            "when": {"contains": "token", "tools": True},
            "turns": [[{"do": "call", "tool": "files.read", "arguments": {"path": "HOME/token"}}], [TOLD]],
        },
    ],
    "default": [{"do": "text", "text": "{result}"}],
}


def have_it_written(daemon: Daemon) -> str:
    """Let the agent write with a yes to it, and return the session."""
    with httpx.Client(
        base_url=daemon.address, headers={"authorization": f"Bearer {daemon.token}"}, timeout=60, verify=False
    ) as ask:
        sent: Json = ask.post("/console/v1/runs", json={"text": "write it", "session": {"key": "k"}}).json()
        with ask.stream("GET", f"/console/v1/runs/{sent['run_id']}/events") as stream:
            assert any("approval_requested" in line for line in stream.iter_lines())
        (question,) = ask.get("/console/v1/approvals?open=true").json()["approvals"]
        assert "-old\n+new\n" in question["effect"]["detail"]
        ask.post(f"/console/v1/approvals/{question['approval_id']}/resolve", json={"decision": "allow"})
        ask.get(f"/console/v1/runs/{sent['run_id']}/events")  # ends with the run
    session_id: str = sent["session_id"]
    return session_id


def test_a_file_is_changed_with_a_yes_and_brought_back(new_daemon: NewDaemon, tmp_path: Path) -> None:
    daemon = new_daemon(SCRIPT)
    daemon.start()
    notes = daemon.home.workspace / "notes.txt"
    notes.write_text("old\n")
    session_id = have_it_written(daemon)
    assert notes.read_text() == "new\n"

    (one,) = json.loads(palyra(daemon, "files", "history", "notes.txt", "--session", "k", "--json"))["checkpoints"]
    assert (one["what"], one["path"], one["session_id"]) == ("files.write", str(notes), session_id)
    for name in (one["checkpoint_id"], one["checkpoint_id"][-6:].lower(), "last"):
        assert "-new\n+old\n" in palyra(daemon, "files", "restore", name, "--dry-run")
    assert notes.read_text() == "new\n"
    notes.write_text("by hand\n")
    refused = palyra(daemon, "files", "restore", one["checkpoint_id"], code=Exit.FAILED)
    assert "[file_changed]" in refused
    assert "-by hand\n+old\n" in palyra(daemon, "files", "restore", one["checkpoint_id"], "--force")
    assert notes.read_text() == "old\n"
    tape = httpx.get(
        f"{daemon.address}/console/v1/sessions/{session_id}/tape",
        headers={"authorization": f"Bearer {daemon.token}"},
        verify=False,
    )
    assert tape.json()["entries"][-1]["event"]["kind"] == "file_checkpoint_restored"


def test_what_was_kept_is_in_the_backup(new_daemon: NewDaemon, tmp_path: Path) -> None:
    daemon = new_daemon(SCRIPT)
    daemon.start()
    notes = daemon.home.workspace / "notes.txt"
    notes.write_text("old\n")
    have_it_written(daemon)
    palyra(daemon, "backup", "create", "-o", str(tmp_path / "backup"))
    palyra(daemon, "backup", "verify", str(tmp_path / "backup"))
    manifest = read_manifest(tmp_path / "backup")
    with journal_in(tmp_path / "backup", manifest) as conn:
        (one,) = file_checkpoints.page(conn, PrincipalId("user:owner"), limit=10)
        assert file_checkpoints.content(conn, one) == b"old\n"


def test_the_home_of_another_profile_is_out_of_reach_as_well(new_sqlite_daemon: NewDaemon, tmp_path: Path) -> None:
    root = tmp_path / "ana"
    (root / "home/workspace").mkdir(parents=True)
    (root / "home/token").write_text("the other one's token")
    (root / "home/daemon.lock").touch()
    script = json.loads(json.dumps(SCRIPT).replace("HOME", "home"))
    daemon = new_sqlite_daemon(script, home=root / "home-work", workspace_root=root)
    daemon.start()
    told = palyra(daemon, "run", "-m", "read the token")
    assert "belongs to Palyra itself" in told
    assert "the other one's token" not in told


def test_the_home_is_out_of_the_tools_reach(new_sqlite_daemon: NewDaemon, tmp_path: Path) -> None:
    """Also when the workspace contains it."""
    root = tmp_path / "ana"
    root.mkdir()
    script = json.loads(json.dumps(SCRIPT).replace("HOME", "home"))
    daemon = new_sqlite_daemon(script, home=root / "home", workspace_root=root)
    daemon.start()
    assert (root / "home" / "token").exists()
    told = palyra(daemon, "run", "-m", "read the token")
    assert "belongs to Palyra itself" in told
    assert daemon.token not in told
