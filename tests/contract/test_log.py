"""The log on a full disk: no line is torn, none of the latest is lost, and it goes on when there is room."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from palyra import telemetry
from palyra.telemetry import JsonLogFormatter, LogHandler
from tests.support.disk import SmallDisk, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path) as disk:
        yield disk


@pytest.fixture
def log(disk: SmallDisk) -> Iterator[logging.Logger]:
    handler = LogHandler(disk.path / "log")
    handler.setFormatter(JsonLogFormatter(lambda text: text))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    yield logger
    handler.close()


def messages(path: Path) -> list[str]:
    """Return the messages of a log, each of whose lines is whole."""
    return [json.loads(line)["message"] for line in path.read_text().splitlines()]


def test_a_line_that_does_not_fit_is_not_torn_and_comes_when_there_is_room(
    disk: SmallDisk, log: logging.Logger
) -> None:
    log.error("before")
    disk.take()
    for number in range(100):
        log.error("%d %s", number, "x" * 1_000)
    full = messages(disk.path / "log")
    assert len(full) < 101  # a page that was begun has room for some
    disk.free()
    log.error("after")
    found = [message.split()[0] for message in messages(disk.path / "log")]
    assert found == ["before", *map(str, range(100)), "after"]


def test_a_log_that_is_rotated_on_a_full_disk_goes_on(
    disk: SmallDisk, log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    (handler,) = log.handlers
    assert isinstance(handler, LogHandler)
    handler.maxBytes = 10_000
    log.error("x" * 9_000)
    disk.take()
    for number in range(20):
        log.error("%d %s", number, "x" * 1_000)
    disk.free()
    log.error("after")
    found = messages(disk.path / "log.1") + messages(disk.path / "log")
    assert [message.split()[0] for message in found[1:]][-2:] == ["19", "after"]
    assert len(set(found)) == len(found)


def test_a_line_that_a_dead_process_left_torn_is_ended_before_the_next(disk: SmallDisk) -> None:
    path = disk.path / "log"
    path.write_text('{"message": "whole"}\n{"mess')
    handler = LogHandler(path)
    handler.setFormatter(JsonLogFormatter(lambda text: text))
    handler.handle(logging.makeLogRecord({"msg": "next"}))
    handler.close()
    first, torn, following = path.read_text().splitlines()
    assert json.loads(first) == {"message": "whole"}
    assert torn == '{"mess'
    assert json.loads(following)["message"] == "next"


def test_only_the_latest_lines_wait_for_room(disk: SmallDisk, log: logging.Logger) -> None:
    disk.take()
    for number in range(telemetry.MAX_WAITING_LINES + 500):
        log.error("%d", number)
    disk.free()
    log.error("after")
    assert messages(disk.path / "log")[-2:] == [str(telemetry.MAX_WAITING_LINES + 499), "after"]
