"""Spending on real daemons: prices and budgets from files, the ledger over a kill, the question, and what is shown."""

import json
import signal
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import NewDaemon
from tests.e2e.test_cli_terminal import ENTER, PROMPT, terminal
from tests.support.command import command, palyra
from tests.support.daemon import Daemon, until

Json = Any

PRICES = '[models."scripted/*"]\ninput = 0\noutput = 1000\n'
"""A thousandth of a dollar for each token of an answer."""
ENDLESS = {"default": [{"do": "endless", "text": "on and on ", "delay_ms": 20}]}
EVER = "2000-01-01"
"""From when on usage is asked for: a month may end while a test runs."""


def prepared(daemon: Daemon, config: str, prices: str = PRICES) -> Daemon:
    daemon.home.path.mkdir(mode=0o700)
    daemon.home.config.write_text(config)
    daemon.home.prices.write_text(prices)
    return daemon


def budget(name: str, **keys: object) -> str:
    lines = (f"{key} = {json.dumps(value)}" for key, value in keys.items())
    return "\n".join([f"[spending.budgets.{name}]", *lines, ""])


def reload(daemon: Daemon, code: int = 0) -> str:
    return palyra(daemon, "config", "reload", code=code)


def test_what_a_message_cost_is_shown_by_model_run_and_cause(new_daemon: NewDaemon) -> None:
    daemon = prepared(new_daemon(), "").start()
    run = daemon.send("Hello there.")
    daemon.finished(run["run_id"])

    (row,) = daemon.get("/usage", by="model", since=EVER)["rows"]
    assert row["name"] == "scripted/scripted"
    assert row["used"]["turns"] == 1
    assert row["used"]["micros"] == 1000 * row["used"]["output_tokens"] > 0
    for by in ("session", "day", "agent", "run"):
        (same,) = daemon.get("/usage", by=by, since=EVER)["rows"]
        assert same["used"] == row["used"]

    why = daemon.get("/usage/why", run=run["run_id"])
    assert [(one["cause"], one["step"]) for one in why["causes"]] == [("http", "input")]
    assert why["total"] == row["used"]
    assert why["turns"][0]["model"] == "scripted/scripted"

    shown = palyra(daemon, "usage", "--since", EVER)
    assert "scripted/scripted" in shown
    assert "programs, over HTTP" in palyra(daemon, "usage", "causes", "--since", EVER)
    assert "cost" in palyra(daemon, "runs", "show", "last")
    assert "cost" in palyra(daemon, "why", "last")
    told = json.loads(palyra(daemon, "usage", "--since", EVER, "--json"))
    assert told["rows"] == [row]
    assert "principal" in palyra(daemon, "usage", "--by", "principal", code=2)
    assert "user:owner" in palyra(daemon, "usage", "--by", "principal", "--all", "--since", EVER)


def test_a_turn_that_a_kill_left_open_stays_spent_and_nothing_stays_set_aside(new_daemon: NewDaemon) -> None:
    script = {"rules": [{"when": {"contains": "long"}, "turns": [ENDLESS["default"]]}], "default": ENDLESS["default"]}
    daemon = prepared(
        new_daemon(script, model_max_output_tokens=100), budget("daily", tokens=100_000, money=10)
    ).start()
    run = daemon.send("A long one.")
    until(lambda: [line for line in daemon.tape(f"/runs/{run['run_id']}") if line.kind == "model_text"])
    (before,) = daemon.get("/usage", since=EVER)["rows"]
    assert before["used"]["reserved_micros"] == 100 * 1000
    daemon.kill()

    daemon.script.write_text(json.dumps({"default": [{"do": "text", "text": "Short."}]}))
    daemon.start()
    daemon.finished(run["run_id"])
    turns = daemon.get("/usage/why", run=run["run_id"])["turns"]
    assert [turn["state"] for turn in turns] == ["discarded", "settled"]
    assert turns[0]["used"]["micros"] == 100 * 1000
    assert turns[0]["used"]["estimated"] == 1
    assert daemon.get("/usage", since=EVER)["total"]["reserved_micros"] == 0
    daemon.stop()
    assert "Journal verified" in palyra(daemon, "journal", "verify", "--deep")
    assert "Nothing to repair" in palyra(daemon, "journal", "rebuild")


def test_a_budget_ends_a_run_and_a_reload_that_raises_it_lets_work_go_on(new_daemon: NewDaemon) -> None:
    daemon = prepared(new_daemon(model_max_output_tokens=100), budget("daily", money=0.05)).start()
    ended = daemon.finished(daemon.send("Hello.")["run_id"])
    assert ended["status"] == "failed"
    assert "The budget 'daily' allows 0.05 USD per day for everything" in ended["reason"]
    said = command(daemon.home.path, "run", "-m", "Hello.")
    assert said.returncode != 0
    assert "config.toml" in said.stdout + said.stderr

    daemon.home.config.write_text(budget("daily", money=5))
    assert "spending" in reload(daemon)

    def spent_today() -> int:
        """A day may end between the two; the next one does not."""
        assert daemon.finished(daemon.send("Hello.")["run_id"])["status"] == "done"
        (budget,) = json.loads(palyra(daemon, "usage", "--json"))["budgets"]
        (cap,) = budget["caps"]
        assert (budget["budget"], cap["cap"], cap["reserved"]) == ("daily", 5_000_000, 0)
        return int(cap["settled"])

    until(spent_today)


def test_the_owner_is_asked_at_the_doors_and_the_answer_survives_a_restart(new_daemon: NewDaemon) -> None:
    daemon = prepared(
        new_daemon(model_max_output_tokens=100, approvals_inbox="true"), budget("daily", money=0.01, action="ask")
    ).start()
    run = daemon.send("Hello.")
    (question,) = until(lambda: daemon.get("/approvals", open="true")["approvals"])
    assert question["effect"]["summary"] == "exceed the budget daily"
    assert daemon.run(run["run_id"])["status"] == "waiting"
    listed = palyra(daemon, "approvals")
    assert "exceed the budget daily" in listed
    assert "to exceed the budget daily" in palyra(daemon, "why", question["approval_id"])
    daemon.stop()
    daemon.start()
    code = question["approval_id"][-6:]
    palyra(daemon, "approvals", "allow", code)
    assert daemon.finished(run["run_id"])["status"] == "done"

    second = daemon.send("Again.")
    (question,) = until(lambda: daemon.get("/approvals", open="true")["approvals"])
    palyra(daemon, "approvals", "deny", question["approval_id"], "--reason", "enough for today")
    ended = daemon.finished(second["run_id"])
    assert (ended["status"], "enough for today" in ended["reason"]) == ("failed", True)
    failed = daemon.tape(f"/runs/{second['run_id']}")[-1]
    assert failed.event["code"] == "budget_denied"


def test_prices_are_read_again_and_a_broken_file_changes_nothing(new_sqlite_daemon: NewDaemon) -> None:
    daemon = prepared(new_sqlite_daemon(), "").start()

    def cost() -> int:
        run = daemon.send("Hello.")
        daemon.finished(run["run_id"])
        return int(daemon.get("/usage/why", run=run["run_id"])["total"]["micros"])

    first = cost()
    daemon.home.prices.write_text(PRICES.replace("1000", "2000"))
    assert "prices" in reload(daemon)
    assert cost() == 2 * first
    daemon.home.prices.write_text(PRICES.replace("output", "outptu"))
    daemon.signal(signal.SIGHUP)
    until(lambda: [line for line in daemon.log() if "prices.toml:3: unknown key 'outptu'" in json.dumps(line)])
    assert cost() == 2 * first
    assert "unknown key 'outptu'" in palyra(daemon, "usage", "prices", code=2)
    assert "unknown key 'outptu'" in palyra(daemon, "config", "check", code=1)


def test_each_sees_what_is_theirs(new_sqlite_daemon: NewDaemon) -> None:
    budgets = budget("all", money=5) + budget("each", subject="principal", tokens=9999)
    daemon = prepared(new_sqlite_daemon(), budgets).start()
    daemon.finished(daemon.send("Hello.")["run_id"])
    owner = {"authorization": f"Bearer {daemon.token}"}
    made = httpx.post(
        f"{daemon.address}/admin/v1/tokens", headers=owner, json={"principal": "user:ben", "name": "ben"}, verify=False
    ).json()
    ben = httpx.Client(base_url=daemon.address, headers={"authorization": f"Bearer {made['secret']}"}, verify=False)
    with ben:
        theirs = ben.get("/console/v1/usage").json()
        assert theirs["rows"] == []
        assert [one["budget"] for one in theirs["budgets"]] == ["each"]
        assert theirs["budgets"][0]["caps"][0]["settled"] == 0
        assert ben.get("/admin/v1/usage").status_code == 403
        run_id = daemon.runs()[0]["run_id"]
        assert ben.get("/console/v1/usage/why", params={"run": run_id}).status_code == 404
        for bad in ({"by": "principal"}, {"by": "colour"}, {"since": "yesterday"}, {"since": "9" * 400}):
            assert ben.get("/console/v1/usage", params=bad).status_code == 400


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_child_run_asks_whoever_chats_about_its_budget(new_sqlite_daemon: NewDaemon, term: str) -> None:
    hand_on = {"do": "call", "tool": "agent.delegate", "arguments": {"task": "Do the work."}}
    turns = [[{"do": "text", "text": "Let me see."}, hand_on], [{"do": "text", "text": "They said: {result}"}]]
    script = {
        "rules": [{"when": {"contains": "Hand it on", "tools": True}, "turns": turns}],
        "default": [{"do": "text", "text": "All is done."}],
    }
    # The first turn fits, and no turn after it.
    config = budget("small", period="run", money=0.1, action="ask")
    daemon = prepared(new_sqlite_daemon(script, model_max_output_tokens=100), config).start()
    end = ENTER if term == "xterm" else "\n"
    with terminal(daemon.home.path, "chat", term=term) as chat:
        chat.wait_for(PROMPT, seconds=60)
        chat.type(f"Hand it on.{end}")
        chat.wait_for("needs approval:", seconds=60)
        chat.wait_for("exceed the budget small", seconds=60)
        (question,) = daemon.get("/approvals", open="true")["approvals"]
        assert question["approval_id"][-6:] in palyra(daemon, "approvals")
        chat.type(f"yes{end}")
        own = until(lambda: _other(daemon.get("/approvals", open="true")["approvals"], question))
        palyra(daemon, "approvals", "allow", own["approval_id"])
        chat.wait_for("They said: All is done.", seconds=60)


def _other(asked: list[Json], than: Json) -> Json:
    return next((one for one in asked if one["approval_id"] != than["approval_id"]), None)
