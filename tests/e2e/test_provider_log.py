"""Every failed attempt to ask a provider leaves one line in the log: who, which run, why, and what follows."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import NewDaemon
from tests.support.daemon import Daemon, until
from tests.support.model_server import Reply, answer, breaks_off, silent
from tests.support.provider_thread import Played, played

KEY = "sk-test-8d1e24b6c3f9a77c"
SAID = "the orchid password is heliotrope"

CONFIG = """\
[model]
provider = "first"
{fallback}

[model.providers.first]
dialect = "openai"
base_url = "{first}"
model = "tiny"
key = "env:FIRST_KEY"
max_attempts = {attempts}
first_byte_timeout_seconds = 0.3

[model.providers.second]
dialect = "openai"
base_url = "{second}"
model = "large"
"""


@pytest.fixture
def first() -> Iterator[Played]:
    with played(key=KEY) as made:
        yield made


@pytest.fixture
def second() -> Iterator[Played]:
    with played() as made:
        yield made


def started(
    new_daemon: NewDaemon, monkeypatch: pytest.MonkeyPatch, *, first: str, second: str = "", attempts: int = 1
) -> Daemon:
    monkeypatch.setenv("FIRST_KEY", KEY)
    daemon = new_daemon(model_provider=None, model_script=None)
    daemon.home.path.mkdir(mode=0o700, parents=True)
    fallback = 'fallback = ["second"]' if second else ""
    text = CONFIG.format(first=first, second=second or first, fallback=fallback, attempts=attempts)
    daemon.home.config.write_text(text)
    daemon.home.config.chmod(0o600)
    return daemon.start()


def failures(daemon: Daemon, run_id: str | None = None) -> list[dict[str, Any]]:
    return [
        line
        for line in daemon.log()
        if str(line.get("code", "")).startswith("model_") and (run_id is None or line["run_id"] == run_id)
    ]


def suspended(daemon: Daemon) -> list[dict[str, Any]]:
    return [line for line in daemon.log() if str(line.get("code", "")).startswith("provider_")]


CASES: dict[str, tuple[Reply, str, int | None]] = {
    "status": (answer(503, {"error": {"message": f"no room for: {SAID}"}}), "model_unavailable", 503),
    "rate": (answer(429, {"error": {"message": f"slow down: {SAID} {KEY}"}}), "model_rate_limit", 429),
    "key": (answer(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}), "model_auth", 401),
    "timeout": (silent, "model_timeout", None),
    "broken": (breaks_off('data: {"choices":[{"index":0,"delta":{"content":"Hel'), "model_network", None),
}


@pytest.mark.parametrize("case", CASES)
def test_a_failed_attempt_leaves_one_line_and_the_next_model_is_named(
    new_sqlite_daemon: NewDaemon, monkeypatch: pytest.MonkeyPatch, first: Played, second: Played, *, case: str
) -> None:
    first.instead, code, status = CASES[case]
    daemon = started(new_sqlite_daemon, monkeypatch, first=first.url, second=second.url)
    run = daemon.finished(daemon.send(SAID)["run_id"])
    assert run["status"] == "done"
    (line,) = failures(daemon, run["run_id"])
    assert (line["level"], line["provider"], line["model"]) == ("warning", "first", "tiny")
    assert (line["code"], line["status"]) == (code, status)
    assert (line["next"], line["next_model"], line["attempt"]) == ("failover", "second/large", 1)
    log = daemon.home.log.read_text()
    assert KEY not in log
    assert "orchid" not in log, "nothing of the conversation, also if the server says it back"


def test_a_connection_that_is_refused_is_retried_and_then_fails_the_run_and_each_attempt_is_told(
    new_sqlite_daemon: NewDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    with played() as gone:
        address = gone.url
    daemon = started(new_sqlite_daemon, monkeypatch, first=address, attempts=2)
    run = daemon.finished(daemon.send(SAID)["run_id"])
    assert run["status"] == "failed"
    lines = failures(daemon, run["run_id"])
    assert [(line["code"], line["cause"], line["next"]) for line in lines] == [
        ("model_network", "the connection was refused", "retry"),
        ("model_network", "the connection was refused", "fail"),
    ]
    assert lines[0]["retry_seconds"] > 0
    assert [line["attempt"] for line in lines] == [1, 2]


def test_the_breaker_tells_when_it_opens_and_when_the_provider_is_back(
    new_sqlite_daemon: NewDaemon, monkeypatch: pytest.MonkeyPatch, first: Played
) -> None:
    first.instead = answer(500, {"error": {"message": "broken"}})
    daemon = started(new_sqlite_daemon, monkeypatch, first=first.url)
    for number in range(5):
        daemon.finished(daemon.send(f"try {number}")["run_id"])
    (line,) = suspended(daemon)
    assert (line["code"], line["provider"], line["failures"]) == ("provider_suspended", "first", 5)
    first.instead = None
    # Nobody else is there, so that it is asked all the same.
    assert daemon.finished(daemon.send("and now?")["run_id"])["status"] == "done"
    until(lambda: len(suspended(daemon)) == 2)
    assert suspended(daemon)[1]["code"] == "provider_recovered"
    assert len(failures(daemon)) == 5


def test_a_key_that_is_refused_is_told_though_the_next_one_is_accepted(
    new_sqlite_daemon: NewDaemon, monkeypatch: pytest.MonkeyPatch, first: Played
) -> None:
    monkeypatch.setenv("SECOND_KEY", KEY)
    daemon = started(new_sqlite_daemon, monkeypatch, first=first.url)
    old: Path = daemon.home.path / "old.key"
    old.write_text("sk-test-old-and-revoked-1234")
    keys = f'key = "file:{old}"\nkeys = ["env:SECOND_KEY"]'
    daemon.home.config.write_text(daemon.home.config.read_text().replace('key = "env:FIRST_KEY"', keys))
    daemon.stop()
    daemon.start()
    assert daemon.finished(daemon.send("hello")["run_id"])["status"] == "done"
    (line,) = failures(daemon)
    assert (line["provider"], line["code"], line["status"]) == ("first", "model_auth", 401)
    assert "old-and-revoked" not in json.dumps(daemon.log())
