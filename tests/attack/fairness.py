"""One tenant that keeps everything busy, and others who want an answer meanwhile."""

from collections.abc import Sequence
from typing import Any

import httpx

from tests.attack.case import attack
from tests.attack.ground import Ground
from tests.support.daemon import Daemon, Json, until

HANG_MS = 600_000
GREETING = "hello"


class Tenant:
    """A person with a token of their own."""

    def __init__(self, daemon: Daemon, name: str) -> None:
        owner = {"authorization": f"Bearer {daemon.token}"}
        asked = {"principal": f"user:{name}", "name": name}
        made = httpx.post(f"{daemon.address}/admin/v1/tokens", headers=owner, json=asked, timeout=60, verify=False)
        assert made.is_success, made.text
        self.headers = {"authorization": f"Bearer {made.json()['secret']}"}
        self._http = httpx.Client(
            base_url=f"{daemon.address}/console/v1", headers=self.headers, timeout=60, verify=False
        )

    def post(self, path: str, body: object) -> httpx.Response:
        return self._http.post(path, json=body)

    def get(self, path: str) -> Json:
        answer = self._http.get(path)
        assert answer.is_success, answer.text
        return answer.json()

    def send(self, text: str, *, session: str = "") -> str:
        """Send a message to a session of its own and return the run."""
        answer = self.post("/runs", {"text": text, "session": {"key": session} if session else {}})
        assert answer.is_success, answer.text
        return str(answer.json()["run_id"])

    def status(self, run_id: str) -> str:
        return str(self.get(f"/runs/{run_id}")["run"]["status"])

    def kinds(self, run_id: str) -> list[str]:
        return [entry["event"]["kind"] for entry in self.get(f"/runs/{run_id}/tape")["entries"]]


def script(**turns: Sequence[Json]) -> Json:
    """Return a script in which a message that contains a name makes the model do what is said under it."""
    rules = [
        {"when": {"contains": name.replace("_", " "), "turn": 0}, "actions": list(actions)}
        for name, actions in turns.items()
    ]
    return {"rules": rules, "default": [{"do": "text", "text": "You said: {input}"}]}


def call(tool: str, **arguments: Any) -> Json:
    return {"do": "call", "tool": tool, "arguments": arguments}


def started(tenant: Tenant, runs: Sequence[str], *, kind: str) -> None:
    """Wait until the runs have got to an event of this kind."""
    for run in runs:
        until(lambda run=run: kind in tenant.kinds(run), seconds=60)  # type: ignore[misc]


def others_are_answered(daemon: Daemon, busy: Tenant, runs: Sequence[str], *, names: Sequence[str]) -> None:
    """Check that each of the others gets an answer while none of the busy tenant's runs has ended."""
    for name in names:
        other = Tenant(daemon, name)
        greeting = other.send(GREETING)
        until(lambda other=other, run=greeting: other.status(run) == "done", seconds=60)  # type: ignore[misc]
    ended = [run for run in runs if busy.get(f"/runs/{run}")["run"]["ended_at"]]
    assert not ended, "the busy tenant's runs ended first, so nothing is shown"


@attack("seventy runs of one tenant whose model hangs")
def hanging_models(ground: Ground) -> None:
    daemon = ground.daemon(script(hang=[{"do": "delay", "ms": HANG_MS}]))
    busy = Tenant(daemon, "busy")
    runs = [busy.send("hang") for _ in range(70)]
    started(busy, runs[:60], kind="model_turn_started")
    others_are_answered(daemon, busy, runs, names=("ana", "ben", "cid"))


@attack("runs of one tenant that sleep in the shell")
def sleeping_shells(ground: Ground) -> None:
    daemon = ground.daemon(
        script(sleep=[call("shell.run", command="sleep 600")]), sandbox_tier="off", runs_max_concurrent=4
    )
    busy = Tenant(daemon, "busy")
    runs = [busy.send("sleep") for _ in range(4)]

    def running() -> bool:
        for one in busy.get("/approvals?open=true")["approvals"]:
            busy.post(f"/approvals/{one['approval_id']}/resolve", {"decision": "allow"})
        return sum("tool_started" in busy.kinds(run) for run in runs) >= 3

    until(running, seconds=60)
    others_are_answered(daemon, busy, runs, names=("ana", "ben"))


@attack("runs of one tenant that search with an expression that takes for ever")
def endless_searches(ground: Ground) -> None:
    endless = call("files.search", text="(a+)+$", regex=True)
    daemon = ground.daemon(script(search=[endless] * 8, hello=[call("files.list"), call("time.now")]))
    busy = Tenant(daemon, "busy")
    folder = daemon.home.path / "workspaces" / "user%3Abusy"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in range(20):
        (folder / f"{number}.txt").write_text("a" * 40 + "!\n")
    runs = [busy.send("search") for _ in range(12)]
    started(busy, runs, kind="tool_started")
    others_are_answered(daemon, busy, runs, names=("ana", "ben"))


@attack("an agent whose limits are above the daemon's")
def limits_above(ground: Ground) -> None:
    daemon = ground.daemon(limits_model_turns=4, limits_tool_timeout_ms=1000)
    tenant = Tenant(daemon, "greedy")
    for limits in ({"model_turns": 5}, {"tool_timeout_ms": 10**9}, {"wall_clock_ms": 2**63 - 1}, {"max_children": -1}):
        answer = tenant.post("/agents", {"name": f"agent {limits}", "limits": limits})
        assert answer.status_code in (400, 422), f"{limits} was accepted: {answer.text}"
    made = tenant.post("/agents", {"name": "modest", "limits": {"model_turns": 3}})
    assert made.json()["agent"]["limits"]["tool_timeout_ms"] == 1000, "what is left out is not the daemon's own"
    # The owner lowers the limits later.
    daemon.stop()
    daemon.start(limits_model_turns=2)
    tenant = Tenant(daemon, "greedy")
    tenant.post(f"/agents/{made.json()['agent']['agent_id']}/default", {})
    run = tenant.send(GREETING)
    events = [entry["event"] for entry in tenant.get(f"/runs/{run}/tape")["entries"]]
    (accepted,) = [event for event in events if event["kind"] == "run_accepted"]
    assert accepted["limits"]["model_turns"] == 2, accepted["limits"]
