"""Plugins of a real daemon: installed while it runs, used by an agent, upgraded, changed, removed."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from palyra.cli.exit_codes import Exit
from tests.e2e.conftest import NewDaemon
from tests.support import modules
from tests.support.command import command
from tests.support.daemon import Daemon, until
from tests.support.plugins import EXAMPLES, a_plugin, manifest


def calls(tool: str, **arguments: object) -> dict[str, Any]:
    return {
        "when": {"contains": tool, "tools": True},
        "turns": [[{"do": "call", "tool": tool, "arguments": arguments}], [{"do": "text", "text": "{result}"}]],
    }


SCRIPT = {
    "rules": [
        calls("units.convert", **{"value": 10, "from": "km", "to": "m"}),
        calls("csv-stats.describe", file="a.csv"),
        calls("wasm.run", module="echo.wasm", input={"n": 1}),
        calls("probe.run"),
    ],
    "default": [{"do": "text", "text": "{result}"}],
}


@pytest.fixture
def daemon(new_sqlite_daemon: NewDaemon) -> Daemon:
    return new_sqlite_daemon(SCRIPT).start()


def told(daemon: Daemon, *args: str, code: int = 0) -> str:
    done: subprocess.CompletedProcess[str] = command(daemon.home.path, "plugins", *args)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def result_of(daemon: Daemon, tool: str) -> str:
    """Have the agent call the tool, and return what it was told."""
    sent = daemon.send(f"Use {tool}.", session={"key": "plugins"})
    assert daemon.finished(sent["run_id"])["status"] == "done"
    entries = [line.event for line in daemon.tape(f"/runs/{sent['run_id']}")]
    texts = [event["text"] for event in entries if event["kind"] == "tool_finished"]
    texts += [event["reason"] for event in entries if event["kind"] == "policy_decided" and event["verdict"] == "deny"]
    return str(texts[0])


def test_a_plugin_that_is_installed_while_the_daemon_runs_is_used_at_once(daemon: Daemon) -> None:
    assert "Unknown tool 'units.convert'" in result_of(daemon, "units.convert")

    said = told(daemon, "install", str(EXAMPLES / "units"), "--yes")

    assert said.startswith("Installed units 1.0.0. The daemon uses it now.\n")
    assert "no network" in said
    assert json.loads(result_of(daemon, "units.convert")) == {"value": 10_000, "unit": "m"}
    told(daemon, "remove", "units")
    assert "Unknown tool 'units.convert'" in result_of(daemon, "units.convert")


def test_a_plugin_that_is_installed_while_no_daemon_runs_is_there_at_the_next_start(daemon: Daemon) -> None:
    (daemon.home.workspace / "a.csv").write_text("n\n1\n2\n")
    assert daemon.stop() == 0
    assert "the change applies at the next start" in told(daemon, "install", str(EXAMPLES / "csv-stats"), "--yes")
    daemon.start()
    assert json.loads(result_of(daemon, "csv-stats.describe"))["rows"] == 2


def test_a_signal_lets_the_daemon_read_its_plugins_again(daemon: Daemon) -> None:
    told(daemon, "install", str(EXAMPLES / "units"), "--yes")
    for path in daemon.home.plugins.glob("units.json"):
        path.unlink()
    daemon.signal(signal.SIGHUP)
    until(lambda: any("plugins" in line["message"] for line in daemon.log()))
    assert "Unknown tool 'units.convert'" in result_of(daemon, "units.convert")


def test_nothing_is_installed_without_a_yes(daemon: Daemon, tmp_path: Path) -> None:
    refused = told(daemon, "install", str(EXAMPLES / "csv-stats"), code=Exit.BAD_INPUT)
    assert "folder workspace: may read the workspace of the caller" in refused
    assert "[confirmation_required]" in refused
    assert told(daemon, "list") == "No plugins. Install one with `palyra plugins install FOLDER`.\n"


def test_an_upgrade_shows_what_is_new_and_asks_again(daemon: Daemon, tmp_path: Path) -> None:
    told(daemon, "install", str(a_plugin(tmp_path / "p")), "--yes")
    assert result_of(daemon, "probe.run") == "{}"
    rest = '[[tools]]\nname = "run"\ndescription = "Run it."\n[[folders]]\nname = "data"\naccess = "write"\n'
    text = manifest(modules.exits(3), version="2.0.0", rest=rest)
    new = str(a_plugin(tmp_path / "q", modules.exits(3), text=text))
    (tmp_path / "data").mkdir()

    assert "[plugin_folder_missing]" in told(daemon, "install", new, code=Exit.BAD_INPUT)
    asked = told(daemon, "install", new, "--folder", f"data={tmp_path / 'data'}", code=Exit.BAD_INPUT)

    assert "Replaces probe 1.0.0." in asked
    assert f"  + folder data: may change {tmp_path / 'data'}\n" in asked
    assert "  - no files\n" in asked
    assert result_of(daemon, "probe.run") == "{}"
    done = json.loads(told(daemon, "install", new, "--folder", f"data={tmp_path / 'data'}", "--yes", "--json"))
    assert (done["plugin"]["version"], done["daemon"]) == ("2.0.0", "in force")
    assert done["removed"] == ["tool probe.run: low risk, changes nothing", "no files"]


def test_a_changed_plugin_is_not_run_and_named_by_every_command(daemon: Daemon) -> None:
    told(daemon, "install", str(EXAMPLES / "units"), "--yes")
    assert told(daemon, "verify").startswith("ok")
    [module] = daemon.home.plugins.glob("units@*/units.wasm")
    module.write_bytes(module.read_bytes() + b"\0")

    assert "units.wasm is not what was installed" in result_of(daemon, "units.convert")

    assert told(daemon, "verify", code=1).startswith("changed  units: Plugin units is not run")
    [listed] = json.loads(told(daemon, "list", "--json"))["plugins"]
    assert (listed["ok"], listed["code"]) == (False, "plugin_changed")
    checks = json.loads(command(daemon.home.path, "doctor", "--json").stdout)["checks"]
    assert {check["name"]: check["state"] for check in checks if check["name"] in ("wasm", "plugins")} == {
        "wasm": "ok",
        "plugins": "warn",
    }


def test_a_plugin_with_a_changed_manifest_is_left_out_at_the_next_look(daemon: Daemon) -> None:
    assert [part for part in daemon.get("/status")["parts"] if part["name"] == "plugins"] == []
    for name in ("units", "csv-stats"):
        told(daemon, "install", str(EXAMPLES / name), "--yes")
    [text] = daemon.home.plugins.glob("units@*/plugin.toml")
    text.write_text(text.read_text().replace("memory_mb = 4", "memory_mb = 400"))

    assert command(daemon.home.path, "config", "reload").stdout == "Applied: plugins.\n"

    [part] = [part for part in daemon.get("/status")["parts"] if part["name"] == "plugins"]
    assert (part["status"], part["detail"]) == ("plugins_skipped", "1 in force, skipped: units")
    assert "Unknown tool 'units.convert'" in result_of(daemon, "units.convert")


def test_bad_plugins_are_refused_with_a_reason(daemon: Daemon, tmp_path: Path) -> None:
    for module, text, code in (
        (modules.IMPORTS, None, "module_invalid"),
        (b"no module", None, "module_invalid"),
        (modules.ECHOES, manifest(top='hosts = ["example.org"]'), "plugin_network_unsupported"),
        (modules.ECHOES, manifest(top='modul = "x"'), "plugin_invalid"),
        (modules.TRAPS, manifest(modules.ECHOES), "plugin_mismatch"),
    ):
        folder = a_plugin(tmp_path / "p", module, text=text)
        done = command(daemon.home.path, "plugins", "install", str(folder), "--yes")
        assert done.returncode != 0
        assert f"[{code}]" in done.stderr
    assert json.loads(told(daemon, "list", "--json")) == {"plugins": []}


def test_a_module_of_the_workspace_runs_after_a_yes(daemon: Daemon) -> None:
    (daemon.home.workspace / "echo.wasm").write_bytes(modules.ECHOES)
    sent = daemon.send("Use wasm.run.", session={"key": "w"})
    waiting = until(lambda: daemon.get("/approvals")["approvals"])
    assert waiting[0]["effect"]["summary"] == f"run the module echo.wasm ({len(modules.ECHOES)} bytes)"
    assert command(daemon.home.path, "approvals", "allow", waiting[0]["approval_id"]).returncode == 0
    daemon.finished(sent["run_id"])
    entries = [line.event for line in daemon.tape(f"/runs/{sent['run_id']}")]
    [finished] = [event for event in entries if event["kind"] == "tool_finished"]
    assert '{"n":1}' in finished["text"]


def test_a_backup_brings_plugins_back_as_they_were_pinned(daemon: Daemon, tmp_path: Path) -> None:
    for name in ("units", "csv-stats"):
        told(daemon, "install", str(EXAMPLES / name), "--yes")
    pinned = told(daemon, "verify")
    daemon.home.policy.mkdir()
    forbids = '@id("no-shell")\nforbid (principal, action, resource == Tool::"shell.run");\n'
    (daemon.home.policy / "own.cedar").write_text(forbids)
    copy, home = tmp_path / "copy", tmp_path / "elsewhere"
    assert command(daemon.home.path, "backup", "create", "-o", str(copy)).returncode == 0
    daemon.stop()

    assert command(home, "backup", "restore", str(copy)).returncode == 0

    assert command(home, "plugins", "verify").stdout == pinned
    assert (home / "policy" / "own.cedar").read_text() == forbids
    assert {path.stat().st_mode & 0o777 for path in home.rglob("*") if path.is_dir()} == {0o700}
    again = Daemon(home, output=tmp_path / "output", model_provider="scripted", model_script=daemon.script).start()
    try:
        assert json.loads(result_of(again, "units.convert")) == {"value": 10_000, "unit": "m"}
    finally:
        again.close()


@pytest.mark.parametrize("name", ["units@*/units.wasm", "units@*/plugin.toml", "units.json"])
def test_a_backup_whose_plugin_was_changed_is_refused(daemon: Daemon, tmp_path: Path, name: str) -> None:
    told(daemon, "install", str(EXAMPLES / "units"), "--yes")
    copy, home = tmp_path / "copy", tmp_path / "elsewhere"
    assert command(daemon.home.path, "backup", "create", "-o", str(copy)).returncode == 0
    [file] = (copy / "plugins").glob(name)
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    checked = command(home, "backup", "verify", str(copy))
    restored = command(home, "backup", "restore", str(copy))

    assert checked.returncode == 1
    assert f"the file {file.relative_to(copy)} was changed" in checked.stdout
    assert restored.returncode == 1
    assert "[backup_damaged]" in restored.stderr
    assert not home.exists()


def test_a_plugin_that_is_not_what_was_installed_is_left_out_of_a_backup(daemon: Daemon, tmp_path: Path) -> None:
    for name in ("units", "csv-stats"):
        told(daemon, "install", str(EXAMPLES / name), "--yes")
    [module] = daemon.home.plugins.glob("units@*/units.wasm")
    module.write_bytes(module.read_bytes() + b"\0")

    done = command(daemon.home.path, "backup", "create", "-o", str(tmp_path / "copy"))

    assert done.returncode == 0
    assert "Plugin units is not included: Plugin units is not run" in done.stderr
    assert "[plugin_changed]" in done.stderr
    made = json.loads((tmp_path / "copy" / "manifest.json").read_text())
    kept = sorted(name.split("/")[1] for name in made["files"] if name.startswith("plugins/"))
    assert kept[0] == "csv-stats.json"
    assert all(name.startswith("csv-stats") for name in kept)
