"""`palyra status`, `up` and `down` where a daemon runs already, or none does."""

import json
from pathlib import Path

from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.home import Home
from tests.unit.cli.door import CUT, Cli, Door, Result
from tests.unit.cli.wire import health


def test_the_status_is_a_table(cli: Cli, inhabited: Home, door: Door) -> None:
    door.tells("GetHealth", health(engine="sqlite", schema=2, runs={"waiting": 1}, settings_hash="abc"))
    result = cli("status")
    assert result.code == 0
    assert "sqlite schema 2" in result.out
    assert "1 waiting" in result.out
    assert door.address in result.out
    assert door.grpc in result.out
    assert door.called("GetHealth")[0].parts


def test_the_status_as_json_has_everything(cli: Cli, inhabited: Home, door: Door) -> None:
    part = pb.PartHealth(name="new_part", status="ok", detail="x")
    door.tells("GetHealth", health(parts=[part], counters={"run_completed": 3}, settings_hash="abc", tasks={"a": 1}))
    shown = json.loads(cli("status", "--json").out)
    assert (shown["running"], shown["parts"]) == (True, [{"name": "new_part", "status": "ok", "detail": "x"}])
    assert (shown["counters"], shown["settings_hash"], shown["tasks"]) == ({"run_completed": 3}, "abc", {"a": 1})


def test_a_daemon_of_another_version_is_noticed(cli: Cli, inhabited: Home, door: Door) -> None:
    door.tells("GetHealth", health(version="9.9.9"))
    assert "palyra restart" in cli("status").out


def test_a_daemon_that_does_not_answer_is_unreachable(cli: Cli, inhabited: Home, door: Door) -> None:
    door.tells("GetHealth", CUT)
    result = cli("status")
    assert result.code == 3
    assert "[daemon_unreachable]" in result.err


def test_without_a_daemon_the_status_says_how_to_start_one(cli: Cli, home: Path) -> None:
    assert cli("status") == Result(3, f"The daemon is not running ({home}). Start it with `palyra up`.\n", "")


def test_up_leaves_a_running_daemon_alone(cli: Cli, inhabited: Home, door: Door) -> None:
    result = cli("up")
    assert result.code == 0
    assert result.out.startswith(f"The daemon is already running at {door.address}")


def test_down_without_a_daemon_is_no_error(cli: Cli, home: Path) -> None:
    assert cli("down") == Result(0, f"The daemon is not running ({home}).\n", "")


def test_a_home_that_can_not_be_made_is_told(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = cli("up", "--home", str(tmp_path / "file" / "home"))
    assert result.code == 1
    assert "[home_not_writable]" in result.err
