"""`palyra stop` and `palyra resume`, with an administrator's token, with another, and without a daemon."""

import json
import os
from pathlib import Path
from typing import Any

from palyra.cli.chat.conversation import ChatSession
from palyra.cli.chat.slash_commands import SlashCommand
from palyra.core.session import SessionRef
from palyra.gateway.client.client import Client
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.home import Home
from tests.unit.cli.door import Answer, Cli, Door, problem
from tests.unit.cli.wire import health, resolved

NO_ADMIN = problem("token_scope_missing", "Your token lacks the scope 'admin'.", status=403)


def a_stop(**changes: object) -> dict[str, Any]:
    stop = {"stop_id": "s1", "principal": None, "by": "user:owner", "at": "2026-01-02T03:04:05Z", "reason": "smoke"}
    return stop | changes


def test_everything_is_stopped_and_told(cli: Cli, inhabited: Home, door: Door) -> None:
    door.says("POST", "/admin/v1/stops", {"stop": a_stop(), "cancelled_runs": 2})
    result = cli("stop", "--reason", " smoke \n in here ")
    assert result.out == (
        "Everything has been stopped since 2026-01-02 03:04:05 UTC by user:owner: smoke. Cancelled 2 active runs."
        " Resume with `palyra resume`.\n"
    )
    assert door.seen[-1].body == {"reason": "smoke in here"}


def test_with_a_token_that_is_no_administrators_its_own_work_is_stopped(cli: Cli, inhabited: Home, door: Door) -> None:
    door.says("POST", "/admin/v1/stops", NO_ADMIN)
    door.says("POST", "/stops", {"stop": a_stop(principal="user:ana", by="user:ana"), "cancelled_runs": 1})
    assert "All work of user:ana has been stopped" in cli("stop").out
    assert door.seen[-1].body == {}


def test_with_such_a_token_nobody_else_is_stopped(cli: Cli, inhabited: Home, door: Door) -> None:
    door.says("POST", "/admin/v1/stops", NO_ADMIN)
    result = cli("stop", "--principal", "user:ben")
    assert (result.code, "[token_scope_missing]" in result.err) == (1, True)
    assert not door.asked("POST", "/stops")


def test_all_and_one_contradict_one_another(cli: Cli, home: Path) -> None:
    result = cli("stop", "--all", "--principal", "user:ana")
    assert (result.code, "[stop_target_conflict]" in result.err) == (2, True)
    assert not (home / "STOP").exists()


def test_without_a_daemon_a_file_is_left_for_the_next_one(cli: Cli, home: Path) -> None:
    assert str(home / "STOP") in cli("stop", "--reason", "smoke").out
    assert (home / "STOP").read_text() == "smoke\n"
    assert json.loads(cli("stop", "--json").out) == {"file": str(home / "STOP"), "database": False}
    assert (home / "STOP").read_text().startswith("smoke\n")
    refused = cli("stop", "--principal", "user:ana")
    assert (refused.code, "[daemon_required]" in refused.err) == (1, True)


def test_a_daemon_that_does_not_answer_is_stopped_by_the_file(cli: Cli, inhabited: Home, door: Door) -> None:
    door.says("POST", "/admin/v1/stops", Answer(cut=True))
    cli("stop")
    assert inhabited.stop.exists()


def test_a_daemon_that_can_not_write_is_stopped_by_the_file(cli: Cli, inhabited: Home, door: Door) -> None:
    door.says("POST", "/admin/v1/stops", problem("storage_full", "The disk is full.", status=503, retry_after=1.0))
    assert str(inhabited.stop) in cli("stop", "--reason", "smoke").out
    assert inhabited.stop.read_text() == "smoke\n"


def test_palyra_alone_says_that_everything_is_stopped(cli: Cli, inhabited: Home, door: Door) -> None:
    part = pb.PartHealth(name="stop", status="stopped", detail="Everything is stopped since then by user:owner.")
    door.tells("GetHealth", health(parts=[part]))
    assert "Everything is stopped since then" in cli().out


def test_a_file_that_can_not_be_written_is_told_with_what_to_do(cli: Cli, home: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    home.write_text("no folder")
    result = cli("stop")
    assert (result.code, "[stop_file_not_writable]" in result.err) == (1, True)


def test_work_goes_on_and_what_still_stands_is_told(cli: Cli, inhabited: Home, door: Door) -> None:
    left = a_stop(principal="user:ana", by="user:ana", reason="")
    door.says("POST", "/admin/v1/stops/resume", {"resumed": [a_stop()], "stops": [left]})
    result = cli("resume", "--remove-file")
    assert result.out == "Resumed all work.\n"
    assert "Still in effect: All work of user:ana has been stopped" in result.err
    assert door.seen[-1].body == {"remove_file": True}


def test_without_a_daemon_nothing_can_be_resumed(cli: Cli, home: Path) -> None:
    result = cli("resume")
    assert (result.code, "palyra up" in result.err) == (3, True)


def test_the_status_says_what_is_stopped(cli: Cli, inhabited: Home, door: Door) -> None:
    door.tells("GetHealth", health(engine="sqlite", schema=11))
    door.says("GET", "/stops", {"stops": [a_stop()]})
    assert "by user:owner: smoke. Resume with `palyra resume`" in cli("status").out
    assert json.loads(cli("status", "--json").out)["stops"][0]["reason"] == "smoke"


def test_the_chat_stops_the_run_or_all_of_ones_work(client: Client, door: Door) -> None:
    door.tells("ResolveSession", resolved(key="cli"))
    conversation = ChatSession(client, SessionRef(key="cli"))
    door.says("POST", "/stops", {"stop": a_stop(principal="user:ana", by="user:ana"), "cancelled_runs": 1})
    door.says("POST", "/stops/resume", {"resumed": [], "stops": []})

    def do(name: str, argument: str = "") -> str:
        return " ".join(conversation.do(SlashCommand(name, argument), active=None, typing_along=True).lines)

    assert do("/stop") == "No active run."
    assert "/stop all" in do("/stop", "everything")
    assert "All work of user:ana has been stopped" in do("/stop", "all")
    assert door.seen[-1].body == {"reason": "stopped in the chat"}
    assert do("/resume") == "Work resumed."


def test_a_reason_that_is_no_text_stops_all_the_same(cli: Cli, inhabited: Home, door: Door) -> None:
    door.says("POST", "/admin/v1/stops", {"stop": a_stop(), "cancelled_runs": 0})
    assert cli("stop", "--reason", "smoke \udcff").code == 0
    assert door.seen[-1].body == {"reason": "smoke ?"}


def test_whatever_is_called_stop_stops_though_no_reason_can_be_written_into_it(cli: Cli, home: Path) -> None:
    home.mkdir(parents=True)
    os.mkfifo(home / "STOP")
    assert str(home / "STOP") in cli("stop", "--reason", "smoke").out
    (home / "STOP").unlink()
    (home / "STOP").mkdir()
    assert str(home / "STOP") in cli("stop").out
