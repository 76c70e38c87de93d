"""Secrets as people keep them: set by command, listed without a value, and found nowhere in clear."""

import base64
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import NewDaemon
from tests.e2e.test_bundle import bundle
from tests.support.command import command, environ
from tests.support.daemon import Daemon, until

VALUE = "ghp-hunter2/hunter2+hunter2"
RAW = b"\0\xff" + VALUE.encode()


def keep(home: Path, name: str, *options: str, value: bytes = VALUE.encode()) -> subprocess.CompletedProcess[bytes]:
    """Pipe a secret in."""
    words = [sys.executable, "-m", "palyra", "secrets", "set", name, *options]
    return subprocess.run(words, input=value, capture_output=True, timeout=60, env=environ(home))


def listed(home: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(command(home, "secrets", "--json").stdout)["secrets"]
    return found


def forms(value: bytes) -> list[bytes]:
    """Return how a value may stand in a file."""
    # Base64 of a part that begins at any of the three places, without the ends that depend on what stands beside it.
    parts = [base64.b64encode(value[start:]).rstrip(b"=")[:-2] for start in range(3)]
    return [value, value.hex().encode(), *parts]


def assert_nowhere(folder: Path, value: bytes) -> None:
    seen = 0
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            seen += 1
            for part in (data, gzip.decompress(data) if data[:2] == b"\x1f\x8b" else b""):
                for form in forms(value):
                    assert form not in part, f"{path} holds the secret"
    assert seen > 0


def test_a_secret_is_kept_listed_and_deleted(new_daemon: NewDaemon) -> None:
    daemon = new_daemon().start()
    home = daemon.home.path

    kept = keep(home, "github", "--host", "api.example.org", "--format", "token {}")
    assert (kept.returncode, kept.stderr) == (0, b"")
    assert b"sent to api.example.org as Authorization: token {}" in kept.stdout

    (secret,) = listed(home)
    assert (secret["name"], secret["version"], secret["last_used_at"]) == ("github", 1, None)
    table = command(home, "secrets").stdout
    assert "github" in table
    assert VALUE not in table + json.dumps(secret)

    daemon.kill()
    daemon.start()
    assert [secret["name"] for secret in listed(home)] == ["github"]
    assert command(home, "secrets", "delete", "github").returncode == 0
    assert listed(home) == []
    gone = command(home, "secrets", "delete", "github")
    assert gone.returncode == 1
    assert "[secret_not_found]" in gone.stderr


def test_a_value_is_nowhere_in_clear(new_sqlite_daemon: NewDaemon, tmp_path: Path) -> None:
    daemon = new_sqlite_daemon().start()
    home = daemon.home.path
    for name, value in (("github", VALUE.encode()), ("raw", RAW)):
        assert keep(home, name, value=value).returncode == 0
    made = daemon.ask("PUT", "/secrets/web", body={"value": VALUE})
    assert made.status_code == 200
    refused = daemon.ask("PUT", "/secrets/no name", body={"value": VALUE})
    assert refused.status_code == 400
    run = daemon.send("Hello")
    daemon.finished(run["run_id"])

    tape = "".join(line.text for line in daemon.tape(f"/sessions/{run['session_id']}"))
    shown = command(home, "secrets", "--json").stdout + daemon.ask("GET", "/secrets").text + made.text + refused.text
    for text in (tape, shown, json.dumps(daemon.log()), daemon.output(), *bundle(home, tmp_path / "b.tar.gz").values()):
        assert "hunter2" not in text
    assert_nowhere(home, VALUE.encode())
    daemon.stop()
    assert_nowhere(home, VALUE.encode())


def test_a_question_about_a_request_names_the_secret_that_goes_along(new_daemon: NewDaemon) -> None:
    call = {"do": "call", "tool": "http.fetch", "arguments": {"url": "https://api.example.org/user"}}
    rule = {"when": {"tools": True}, "turns": [[call], [{"do": "text", "text": "{result}"}]]}
    daemon = new_daemon({"rules": [rule], "default": [{"do": "text", "text": "Nothing."}]}).start()
    assert keep(daemon.home.path, "github", "--host", "api.example.org").returncode == 0
    run = daemon.send("Look.")
    question = until(lambda: daemon.get("/approvals", open="true")["approvals"])[0]
    assert question["effect"]["summary"] == "GET https://api.example.org/user with your credential github"
    assert question["effect"]["credentials"] == ["github"]
    shown = command(daemon.home.path, "approvals", "show", question["approval_id"]).stdout
    assert "with your credential github" in shown
    tape = "".join(line.text for line in daemon.tape(f"/sessions/{run['session_id']}"))
    assert "with your credential github" in tape
    assert "hunter2" not in tape + shown


def back_up(daemon: Daemon, target: Path) -> None:
    where = {"PALYRA_JOURNAL_DATABASE_URL": daemon.database_url} if daemon.database_url is not None else {}
    command = [sys.executable, "-m", "palyra", "backup", "create", "-o", str(target), "--with-token"]
    subprocess.run(command, capture_output=True, timeout=60, env=environ(daemon.home.path) | where, check=True)


def test_neither_the_key_nor_a_value_is_in_a_backup(new_daemon: NewDaemon, tmp_path: Path) -> None:
    daemon = new_daemon().start()
    assert keep(daemon.home.path, "github").returncode == 0
    key = daemon.home.vault_key.read_text().strip()
    back_up(daemon, tmp_path / "saved")

    assert not (tmp_path / "saved" / "vault.key").exists()
    assert_nowhere(tmp_path / "saved", VALUE.encode())
    assert_nowhere(tmp_path / "saved", bytes.fromhex(key))


def test_a_restored_vault_says_that_it_lacks_its_key_and_works_with_it(
    new_sqlite_daemon: NewDaemon, tmp_path: Path
) -> None:
    daemon = new_sqlite_daemon().start()
    assert keep(daemon.home.path, "github").returncode == 0
    back_up(daemon, tmp_path / "saved")
    again = new_sqlite_daemon()
    assert command(again.home.path, "backup", "restore", str(tmp_path / "saved")).returncode == 0
    again.start()

    assert [secret["name"] for secret in listed(again.home.path)] == ["github"]
    lost = keep(again.home.path, "another")
    assert lost.returncode == 1
    assert b"Restore it" in lost.stderr
    assert b"[vault_key_missing]" in lost.stderr
    again.home.vault_key.touch(mode=0o600)
    again.home.vault_key.write_text(daemon.home.vault_key.read_text())
    assert keep(again.home.path, "another").returncode == 0


def test_a_value_that_turns_up_in_the_log_is_hidden(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon().start()
    # What the daemon logs of its own when it reads its settings again.
    assert keep(daemon.home.path, "odd", value=b"settings reloaded").returncode == 0
    assert command(daemon.home.path, "config", "reload").returncode == 0

    said = [str(line["message"]) for line in daemon.log()]
    assert any(message.startswith("[secret odd]: ") for message in said)
    assert "settings reloaded" not in "".join(said)


def test_a_key_from_elsewhere_is_used_and_none_is_made(new_sqlite_daemon: NewDaemon, tmp_path: Path) -> None:
    place = tmp_path / "the-key"
    daemon = new_sqlite_daemon(vault_key=f"file:{place}").start()
    missing = keep(daemon.home.path, "github")
    assert missing.returncode == 1
    assert b"[vault_key_invalid]" in missing.stderr

    place.write_text("5e" * 32 + "\n")
    assert keep(daemon.home.path, "github").returncode == 0
    assert not daemon.home.vault_key.exists()
    assert "5e" * 32 not in json.dumps(daemon.log())


def test_a_value_as_an_argument_is_refused_and_left_out_of_the_answer(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon().start()
    refused = command(daemon.home.path, "secrets", "set", "github", VALUE)
    assert refused.returncode == 2
    assert "[secret_in_arguments]" in refused.stderr
    assert VALUE not in refused.stderr + refused.stdout
    assert listed(daemon.home.path) == []


BAD = [
    ("x", {"value": ""}, "secret_value_invalid"),
    ("x", {"value": "a" * 65_537}, "secret_value_invalid"),
    ("x", {"value": "***", "encoding": "base64"}, "secret_value_invalid"),
    ("x", {"value": "a\r\nb", "scope": {"hosts": ["a.org"]}}, "secret_value_invalid"),
    ("no name", {"value": "a"}, "secret_name_invalid"),
    ("x", {"value": "a", "scope": {"hosts": ["http://a.org"]}}, "secret_scope_invalid"),
    ("x", {"value": "a", "scope": {"host": "a.org"}}, "request_invalid"),
    ("x", {}, "request_invalid"),
]


def test_bad_input_is_refused_with_its_code(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon().start()
    for name, body, code in BAD:
        answer = daemon.ask("PUT", f"/secrets/{name}", body=body)
        assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert daemon.get("/secrets")["secrets"] == []


def test_a_token_for_reading_sees_names_and_changes_nothing(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon().start()
    assert keep(daemon.home.path, "github").returncode == 0
    made = command(daemon.home.path, "tokens", "create", "eyes", "--scope", "read")
    headers = {"authorization": f"Bearer {made.stdout.strip()}"}

    assert [s["name"] for s in daemon.ask("GET", "/secrets", headers=headers).json()["secrets"]] == ["github"]
    for method, path, body in (("PUT", "/secrets/x", {"value": "y"}), ("DELETE", "/secrets/github", None)):
        refused = daemon.ask(method, path, body=body, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "token_scope_missing")
    assert [secret["name"] for secret in listed(daemon.home.path)] == ["github"]


BACKEND = """
import os
from pathlib import Path
from keyring.backend import KeyringBackend

class Keyring(KeyringBackend):
    priority = 1

    def set_password(self, service, username, password):
        self._place(service, username).write_text(password)

    def get_password(self, service, username):
        place = self._place(service, username)
        return place.read_text() if place.exists() else None

    def _place(self, service, username):
        return Path(os.environ["KEYRING_FOLDER"]) / f"{service}-{username}"
"""


def test_the_key_of_the_vault_may_stand_in_the_systems_keyring(
    new_sqlite_daemon: NewDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_keyring.py").write_text(BACKEND)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "own_keyring.Keyring")
    monkeypatch.setenv("KEYRING_FOLDER", str(tmp_path))
    putting = [sys.executable, "-m", "keyring", "set", "palyra", "vault"]
    subprocess.run(putting, input=b"5a" * 32, capture_output=True, timeout=60, check=True)
    daemon = new_sqlite_daemon(program=True).start(vault_key="keyring:palyra/vault")

    assert keep(daemon.home.path, "github").returncode == 0

    assert not daemon.home.vault_key.exists()
    daemon.stop()
    checked = command(daemon.home.path, "config", "check", PALYRA_VAULT_KEY="keyring:palyra/vault")
    assert checked.returncode == 0, checked.stderr
    (tmp_path / "palyra-vault").unlink()
    checked = command(daemon.home.path, "config", "check", PALYRA_VAULT_KEY="keyring:palyra/vault")
    assert checked.returncode != 0
    assert "keyring:palyra/vault is not set" in checked.stdout + checked.stderr


def test_the_doctor_says_whether_secrets_can_be_opened(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon().start()
    home = daemon.home.path

    def found() -> tuple[str, str]:
        checks = json.loads(command(home, "doctor", "--json").stdout)["checks"]
        (check,) = [one for one in checks if one["name"] == "secrets"]
        return check["state"], check["what"]

    keep(home, "one")
    assert found() == ("ok", "1 secret can be decrypted")
    key = daemon.home.vault_key.read_text()
    daemon.home.vault_key.write_text(key[:20])
    assert found()[0] == "fail"
    assert "does not contain a key" in found()[1]
    daemon.home.vault_key.write_text("0" * 64)
    keep(home, "two")
    assert found() == ("fail", "1 of 2 secrets cannot be decrypted with the vault key")
    daemon.home.vault_key.unlink()
    assert "is missing" in found()[1]
    os.mkfifo(daemon.home.vault_key, 0o600)
    assert "is not a file" in found()[1]
    assert b"[vault_key_invalid]" in keep(home, "three").stderr


def test_a_value_that_is_too_long_is_not_told_to_be_shorter_than_it_is(tmp_path: Path) -> None:
    done = keep(tmp_path / "home", "one", value=b"x" * 1_000_000)
    assert (done.returncode, b"65,536 bytes" in done.stderr) == (2, True)
