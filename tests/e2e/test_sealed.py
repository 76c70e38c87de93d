"""Secrets that are pasted or read: sealed whatever way they come in, and in no file of the home but their own."""

import json
from pathlib import Path

import httpx

from palyra.core.text.secret_markers import markers_in
from tests.e2e.conftest import NewDaemon
from tests.e2e.test_bundle import bundle
from tests.e2e.test_secrets import assert_nowhere, back_up
from tests.support.command import command
from tests.support.daemon import Daemon, until

KEYS = {
    "http": "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "command": "glpat-9vX2kQ7mZpL4nR8tW1sG",
    "piped": "npm_k3Jq0dYk2b9cUuV7aQ1eZpL5nR8tW4sG6hMf",
    "v1": "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
    "before": "xoxb-17653672481-19874698323-pdFZKVeTuE8sk7oO",
    "system": "AKIA2E0A8F3B244C9986",
    "file": "q8#Vt2!mZp$xK",
    "long": "hf_k3Jq0dYk2b9cUuV7aQ1eZpL5nR8tW4sG6h",
    "answer": "whsec_k3Jq0dYk2b9cUuV7aQ1eZpL5",
    "title": "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",
}
READ = {"do": "call", "tool": "files.read", "arguments": {"path": "settings.ini"}}
WRITE = {"do": "call", "tool": "files.write", "arguments": {"path": "new.txt", "text": "x"}}
SAY = [{"do": "text", "text": "I see: {input} {result}"}]
SCRIPT = {
    "rules": [
        {"when": {"equals": "read it"}, "turns": [[READ], SAY]},
        {"when": {"equals": "write it"}, "turns": [[WRITE], SAY]},
    ],
    "default": [{"do": "text", "text": "You said: {input}"}],
}


def paste_everywhere(daemon: Daemon) -> str:
    """Bring each of the secrets in by a way of its own; return a session."""
    home = daemon.home.path
    sent = daemon.send(f"my key: {KEYS['http']}")
    assert sent["sealed"] == 1
    daemon.finished(sent["run_id"])
    ran = command(home, "run", "-m", f"and {KEYS['command']}")
    assert ran.returncode == 0
    assert "1 secret in your message was sealed in the vault" in ran.stdout + ran.stderr
    assert command(home, "chat", stdin=f"and {KEYS['piped']}\n").returncode == 0
    messages = [
        {"role": "system", "content": f"AWS id {KEYS['system']}"},
        {"role": "user", "content": f"earlier {KEYS['before']}"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": f"and {KEYS['v1']}"},
    ]
    answer = httpx.post(
        f"{daemon.address}/v1/chat/completions",
        json={"model": "palyra", "messages": messages},
        headers={"authorization": f"Bearer {daemon.token}"},
        timeout=60,
        verify=False,
    )
    assert answer.status_code == 200, answer.text
    assert KEYS["v1"] not in answer.text
    assert markers_in(answer.text)
    read = daemon.send("read it")
    daemon.finished(read["run_id"])
    (finished,) = [line for line in daemon.tape(f"/sessions/{read['session_id']}") if line.kind == "tool_finished"]
    assert json.loads(finished.text)["event"]["sealed"] >= 2
    asked = daemon.send("write it")
    (question,) = until(lambda: daemon.get("/approvals", open="true")["approvals"])
    mine = {"path": "new.txt", "text": f"token = {KEYS['answer']}\n"}
    body = {"decision": "allow", "reason": f"says {KEYS['answer']}", "arguments": mine}
    assert daemon.ask("POST", f"/approvals/{question['approval_id']}/resolve", body=body).status_code == 200
    daemon.finished(asked["run_id"])
    renamed = daemon.ask("PATCH", f"/sessions/{sent['session_id']}", body={"title": f"about {KEYS['title']}"})
    assert renamed.status_code == 200, renamed.text
    session: str = sent["session_id"]
    return session


def test_no_secret_is_anywhere_but_where_it_came_from(new_sqlite_daemon: NewDaemon, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    long = "\n".join(f"line {number} of nothing" for number in range(300))
    (workspace / "settings.ini").write_text(f"password = {KEYS['file']}\n{long}\nhf = {KEYS['long']}\n")
    daemon = new_sqlite_daemon(SCRIPT, workspace_root=workspace).start()
    home = daemon.home.path
    session = paste_everywhere(daemon)
    assert (workspace / "new.txt").read_text() == f"token = {KEYS['answer']}\n"

    out = tmp_path / "out"
    out.mkdir()
    (out / "tape").write_text("".join(line.text for line in daemon.tape(f"/sessions/{session}")))
    for number, args in enumerate(
        (
            ("sessions", "export", session),
            ("sessions", "search", "key"),
            ("journal", "export", "-o", str(out / "journal.ndjson")),
            ("runs", "tape", "last"),
            ("approvals", "list", "--all", "--json"),
            ("secrets", "sealed", "--json"),
        )
    ):
        done = command(home, *args)
        (out / str(number)).write_text(done.stdout + done.stderr)
    (out / "log").write_text(json.dumps(daemon.log()) + daemon.output())
    (out / "bundle").write_text("".join(bundle(home, tmp_path / "b.tar.gz").values()))
    back_up(daemon, out / "backup")
    for value in KEYS.values():
        assert_nowhere(home, value.encode())
        assert_nowhere(out, value.encode())
    assert daemon.verify().ok
    daemon.stop()
    for value in KEYS.values():
        assert_nowhere(home, value.encode())


def test_its_owner_lists_reveals_and_deletes_a_sealed_secret(new_daemon: NewDaemon) -> None:
    daemon = new_daemon().start()
    home = daemon.home.path
    daemon.finished(daemon.send(f"it is {KEYS['http']}")["run_id"])
    (found,) = json.loads(command(home, "secrets", "sealed", "--json").stdout)["sealed"]
    assert found["origins"] == ["message"]
    sealed_id = found["sealed_id"]
    assert "message" in command(home, "secrets", "sealed").stdout
    assert command(home, "secrets", "sealed", "reveal", f"[sealed:{sealed_id}]").stdout == f"{KEYS['http']}\n"
    shown = daemon.ask("POST", f"/sealed/{sealed_id}/reveal", body={})
    assert shown.json() == {"value": KEYS["http"]}
    assert any("was revealed to" in str(line) for line in daemon.log())
    assert daemon.get("/sealed")["sealed"][0]["sealed_id"] == sealed_id
    assert command(home, "secrets", "sealed", "delete", sealed_id).returncode == 0
    gone = command(home, "secrets", "sealed", "reveal", sealed_id)
    assert (gone.returncode, "[sealed_secret_not_found]" in gone.stderr) == (1, True)
    assert daemon.ask("DELETE", f"/sealed/{sealed_id}").status_code == 404


def test_who_must_decide_sees_the_value_if_he_wants_to(new_daemon: NewDaemon, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    made_up = KEYS["command"]
    call = {"do": "call", "tool": "files.write", "arguments": {"path": "new.txt", "text": f"key = {made_up}\n"}}
    script = {"rules": [{"when": {"tools": True}, "turns": [[call], SAY]}], "default": SAY}
    daemon = new_daemon(script, workspace_root=workspace).start()
    home = daemon.home.path
    run = daemon.send("write it")
    (question,) = until(lambda: daemon.get("/approvals", open="true")["approvals"])
    code = question["approval_id"]
    plain = command(home, "approvals", "show", code)
    assert "[sealed:" in plain.stdout
    assert made_up not in plain.stdout
    assert f"key = {made_up}" in command(home, "approvals", "show", code, "--reveal").stdout
    assert daemon.ask("POST", f"/approvals/{code}/resolve", body={"decision": "allow"}).status_code == 200
    daemon.finished(run["run_id"])
    assert (workspace / "new.txt").read_text() == f"key = {made_up}\n"
