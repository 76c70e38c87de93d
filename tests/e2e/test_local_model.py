"""A real model in a real daemon: asked over gRPC and at `/v1`, held to a tool, cancelled."""

import json
import os
import tomllib
from pathlib import Path
from time import sleep
from typing import Any

import httpx

from palyra.gateway.client.client import Client
from palyra.gateway.client.target import find_target
from tests.e2e.conftest import NewDaemon
from tests.support.command import command
from tests.support.daemon import Daemon, line_of, until
from tests.support.needs import OPENMP, needs

Json = Any

SETTINGS = """\
[model]
provider = "here"
max_output_tokens = {longest}

[model.providers.here]
dialect = "local"
path = "{path}"
model = "small"
max_attempts = 1

[model.providers.here.models.small]
window_tokens = 2048
tools = "{tools}"
"""
LIGHT = {
    "type": "function",
    "function": {
        "name": "turn_light",
        "description": "Turn the light on or off.",
        "parameters": {"type": "object", "properties": {"to": {"enum": ["on", "off"]}}, "required": ["to"]},
    },
}


def a_daemon(new: NewDaemon, path: Path, *, tools: str = "none", longest: int = 24) -> Daemon:
    made = new(model_provider=None, model_script=None)
    made.home.path.mkdir(mode=0o700, parents=True)
    made.home.config.write_text(SETTINGS.format(path=path, tools=tools, longest=longest))
    return made.start()


def at_v1(daemon: Daemon) -> str:
    return f"{daemon.address}/v1/chat/completions"


def token(daemon: Daemon) -> dict[str, str]:
    return {"authorization": f"Bearer {daemon.token}"}


def test_a_real_answer_streams_over_grpc(new_sqlite_daemon: NewDaemon, weights: Path) -> None:
    daemon = a_daemon(new_sqlite_daemon, weights)
    accepted = daemon.send("Tell me about Paris.")
    client = Client(lambda: find_target(daemon.home))
    lines = [line_of(text) for text in client.attach_run(accepted["run_id"], after_seq=0)]
    pieces = [line.event["text"] for line in lines if line.kind == "model_text"]
    assert len(pieces) > 1, "it comes piece by piece"
    (asked,) = [line.event for line in lines if line.kind == "model_turn_started"]
    assert (asked["provider"], asked["model"]) == ("here", "small")
    (ended,) = [line.event for line in lines if line.kind == "model_turn_ended"]
    assert ended["usage"]["output_tokens"] in range(2, 25)
    assert ended["usage"]["input_tokens"] > 10
    assert "estimated" not in ended["usage"]
    assert lines[-1].kind == "run_completed"


def test_the_command_line_prints_what_the_model_says(new_sqlite_daemon: NewDaemon, weights: Path) -> None:
    daemon = a_daemon(new_sqlite_daemon, weights)
    done = command(daemon.home.path, "run", "-m", "What is the capital of France?")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_a_real_answer_streams_at_v1(new_sqlite_daemon: NewDaemon, weights: Path) -> None:
    daemon = a_daemon(new_sqlite_daemon, weights)
    asked = {
        "model": "here/small",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is the capital of France?"},
        ],
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with httpx.stream("POST", at_v1(daemon), json=asked, headers=token(daemon), timeout=60, verify=False) as answer:
        assert answer.status_code == 200, answer.read()
        *pieces, last = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert last == "[DONE]"
    said = [json.loads(piece) for piece in pieces]
    texts = [choice["delta"].get("content") or "" for piece in said for choice in piece["choices"]]
    assert "Paris" in "".join(texts)
    assert sum(bool(text) for text in texts) > 1
    assert said[-1]["usage"]["completion_tokens"] in range(1, 25)


def test_a_model_without_tool_calls_is_held_to_one_at_v1(new_sqlite_daemon: NewDaemon, weights: Path) -> None:
    daemon = a_daemon(new_sqlite_daemon, weights, tools="schema", longest=120)
    asked = {
        "model": "here/small",
        "messages": [{"role": "user", "content": "It is dark in here."}],
        "tools": [LIGHT],
        "tool_choice": "required",
    }
    answer = httpx.post(at_v1(daemon), json=asked, headers=token(daemon), timeout=60, verify=False)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "turn_light"
    assert json.loads(call["function"]["arguments"])["to"] in ("on", "off")


def test_a_cancel_frees_the_processor(new_sqlite_daemon: NewDaemon, weights: Path) -> None:
    daemon = a_daemon(new_sqlite_daemon, weights, longest=512)
    run = daemon.send("Tell a very long story about the sea, with many chapters.")["run_id"]
    for line in daemon.events(f"/runs/{run}"):
        if line.kind == "model_text":
            break
    daemon.post(f"/runs/{run}/cancel", {"reason": "enough"})
    assert daemon.finished(run)["status"] == "cancelled"
    until(lambda: is_idle(daemon))
    assert daemon.stop() == 0


@needs(OPENMP)
def test_a_file_that_is_missing_ends_the_run_with_one_sentence(new_sqlite_daemon: NewDaemon, tmp_path: Path) -> None:
    daemon = a_daemon(new_sqlite_daemon, tmp_path / "missing.gguf")
    done = command(daemon.home.path, "run", "-m", "Hello.")
    assert done.returncode != 0
    assert "missing.gguf cannot be read: No such file or directory" in done.stderr
    assert daemon.alive


def is_idle(daemon: Daemon) -> bool:
    """Tell whether the daemon hardly calculates."""

    def spent() -> int:
        ticks = Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()
        return int(ticks[11]) + int(ticks[12])

    before = spent()
    sleep(0.3)
    return (spent() - before) / os.sysconf("SC_CLK_TCK") < 0.1


def test_a_model_file_is_added_with_the_way_to_call_tools_that_it_masters(
    new_sqlite_daemon: NewDaemon, weights: Path
) -> None:
    daemon = new_sqlite_daemon(model_provider=None, model_script=None).start()
    given = ("providers", "add", "here", "--path", str(weights), "--default", "--json")
    done = command(daemon.home.path, *given)
    assert done.returncode == 0, done.stdout + done.stderr
    tools = json.loads(done.stdout)["tools"]
    assert tools["tested"]
    settings = tomllib.loads(daemon.home.config.read_text())
    assert settings["model"]["providers"]["here"]["models"][weights.stem]["tools"] == tools["mode"]
