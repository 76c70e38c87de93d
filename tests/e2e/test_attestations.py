"""What a tool did, shown to somebody who has nothing but the public key, with the script of the guide."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from palyra.journal.proof import signing_key
from tests.e2e.conftest import NewDaemon
from tests.support.command import palyra
from tests.support.daemon import Daemon, until

Json = Any
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "attestations.md"
COMMAND = {"command": "echo counted; exit 3"}
SCRIPT = {
    "rules": [
        {
            "when": {"tools": True},
            "turns": [
                [
                    {"do": "call", "tool": "time.now", "arguments": {}},
                    {"do": "call", "tool": "shell.run", "arguments": COMMAND},
                ],
                [{"do": "text", "text": "Done."}],
            ],
        }
    ],
    "default": [{"do": "text", "text": "Nothing to do."}],
}


@pytest.fixture
def told(new_daemon: NewDaemon) -> tuple[Daemon, str]:
    """A daemon that has run two tools, one of them a program that a person allowed; and the id of that run."""
    daemon = new_daemon(SCRIPT).start(sandbox_tier="off", approvals_inbox="true")
    run_id = daemon.send("Count.")["run_id"]
    question = until(lambda: daemon.get("/approvals", open="true")["approvals"])[0]
    daemon.post(f"/approvals/{question['approval_id']}/resolve", {"decision": "allow"})
    daemon.finished(run_id)
    return daemon, run_id


def attested(daemon: Daemon, wanted: str, *more: str, code: int = 0) -> list[Json]:
    found: list[Json] = json.loads(palyra(daemon, "--json", "journal", "attestations", wanted, *more, code=code))[
        "attestations"
    ]
    return found


def test_what_tools_did_is_stated_for_a_run_and_for_a_call(told: tuple[Daemon, str]) -> None:
    daemon, run_id = told
    clock, shell = (json.loads(one["statement"]) for one in attested(daemon, run_id))

    assert (clock["tool"], clock["runtime"], clock["ran"], clock["approval_id"]) == ("time.now", "internal", [], None)
    assert (shell["tool"], shell["runtime"], shell["outcome"]) == ("shell.run", "shell", "ok")
    assert (shell["principal"], shell["run_id"]) == ("user:owner", run_id)
    assert shell["approval_id"] is not None
    (program,) = shell["ran"]
    assert (program["tier"], program["exit_code"]) == ("off", 3)
    assert program["limits"]["wall_ms"] == 60_000
    given = json.dumps(COMMAND, separators=(",", ":"), sort_keys=True)
    assert shell["arguments"] == hashlib.sha256(given.encode()).hexdigest()

    (one,) = attested(daemon, shell["call_id"])
    assert json.loads(one["statement"]) == shell
    said = palyra(daemon, "journal", "attestations", run_id)
    assert "in the off sandbox, exit code 3" in said
    assert said.count(", valid") == 2
    assert "2 attested executions" in palyra(daemon, "journal", "verify")


def test_the_script_of_the_guide_checks_them_with_the_public_key_alone(
    told: tuple[Daemon, str], tmp_path: Path
) -> None:
    daemon, run_id = told
    (script,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)
    (tmp_path / "check.py").write_text(script)
    file, result = tmp_path / "attestations.json", tmp_path / "result"
    shell = attested(daemon, run_id)[1]
    file.write_text(json.dumps({"attestations": [shell]}))
    ended = [line for line in daemon.tape(f"/runs/{run_id}") if line.kind == "tool_finished"]
    (line,) = (line for line in ended if line.event["call_id"] == shell["call_id"])
    result.write_text(line.event["text"])
    key = signing_key.public_key(daemon.home.key)
    assert key is not None

    def checked(*args: str) -> int:
        return subprocess.run(
            [sys.executable, str(tmp_path / "check.py"), *args], capture_output=True, check=False, timeout=60
        ).returncode

    assert checked(str(file), key) == 0
    assert checked(str(file), key, str(result)) == 0
    result.write_text(line.event["text"] + ".")
    assert checked(str(file), key, str(result)) != 0
    assert checked(str(file), "00" * 32) != 0
    shell["statement"] = shell["statement"].replace('"tier":"off"', '"tier":"strict"')
    file.write_text(json.dumps({"attestations": [shell]}))
    assert checked(str(file), key) != 0


def test_an_export_shows_them_without_a_journal(told: tuple[Daemon, str], tmp_path: Path) -> None:
    daemon, run_id = told
    file = tmp_path / "journal.ndjson"
    here = attested(daemon, run_id)
    palyra(daemon, "journal", "export", "-o", str(file))

    assert attested(daemon, run_id, "--file", str(file)) == here
    assert "2 attested executions" in palyra(daemon, "journal", "verify", "--file", str(file))

    file.write_text(file.read_text().replace("exit code 3", "exit code 0"))
    assert [one["holds"] for one in attested(daemon, run_id, "--file", str(file), code=1)] == [True, False]


def test_the_last_run_needs_no_id(told: tuple[Daemon, str], tmp_path: Path) -> None:
    daemon, run_id = told
    file = tmp_path / "journal.ndjson"
    palyra(daemon, "journal", "export", "-o", str(file))
    for named in ((), ("last",), ("last", "--file", str(file))):
        assert palyra(daemon, "journal", "attestations", *named) == palyra(daemon, "journal", "attestations", run_id)

    later = daemon.send("Count again.", session={"key": "another"})["run_id"]
    until(lambda: daemon.get("/approvals", open="true")["approvals"])
    file = tmp_path / "later.ndjson"
    palyra(daemon, "journal", "export", "-o", str(file))
    assert [one["run_id"] for one in attested(daemon, "last")] == [later]
    assert [one["run_id"] for one in attested(daemon, "last", "--file", str(file))] == [later]


def test_what_was_never_executed_is_not_found(told: tuple[Daemon, str]) -> None:
    daemon, _ = told
    palyra(daemon, "journal", "attestations", "01ARZ3NDEKTSV4RRFFQ69G5FAV", code=1)
    palyra(daemon, "journal", "attestations", "not-an-id", code=2)
    palyra(daemon, "journal", "attestations", "nonsense", code=1)
