"""What a case attacks: daemons in homes of their own, and a model that proposes whatever the attacker wants."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import httpx

from tests.support.daemon import Daemon, Json, Line, until

RUN_SECONDS = 60.0


def proposing(*calls: tuple[str, Mapping[str, Any]]) -> Json:
    """Return the script of a model that proposes these calls one after the other, whatever it is told."""
    turns = [[{"do": "call", "tool": tool, "arguments": dict(arguments)}] for tool, arguments in calls]
    return {
        "rules": [{"when": {"tools": True}, "turns": [*turns, [{"do": "text", "text": "Done."}]]}],
        "default": [{"do": "text", "text": "Done."}],
    }


class Ground:
    """Where one case takes place; everything it started is gone afterwards."""

    def __init__(self, folder: Path, stack: ExitStack, *, rounds: int, random: Random) -> None:
        self.folder = folder
        """An empty folder of the case's own."""
        self.rounds = rounds
        """How many variants or repetitions a case with a choice should try: 1 in CI."""
        self.random = random
        """The one source of chance, so that a seed repeats a campaign."""
        self._stack = stack
        self._daemons = 0

    def daemon(self, script: Json = None, **settings: Any) -> Daemon:
        """Start a daemon with a scripted model, on a new home."""
        self._daemons += 1
        place = self.folder / f"daemon-{self._daemons}"
        place.mkdir()
        path = place / "script.json"
        path.write_text(json.dumps(script or proposing()))
        made = Daemon(
            place / "home",
            output=place / "output",
            **{"model_provider": "scripted", "model_script": path, "approvals_inbox": True, **settings},
        )
        self._stack.callback(made.close)
        return made.start()


class Tenant(Daemon):
    """A daemon as somebody sees it who has a token of it and is not its owner."""

    def __init__(self, daemon: Daemon, name: str) -> None:
        self.__dict__.update(daemon.__dict__)
        principal = f"user:{name}"
        answer = httpx.post(
            f"{daemon.address}/admin/v1/tokens",
            headers={"authorization": f"Bearer {daemon.token}"},
            json={"principal": principal, "name": name},
            verify=False,
        )
        self._secret: str = answer.json()["secret"]
        self.workspace = daemon.home.path / "workspaces" / quote(principal, safe="")
        self.workspace.mkdir(parents=True, exist_ok=True)

    @property
    def token(self) -> str:
        return self._secret


def play(daemon: Daemon, text: str, *, decision: str | None = "allow", session: Json = None) -> list[Line]:
    """Send a message, give every approval request the same answer (None: none), and return the tape of the run."""
    sent = daemon.send(text, session=session)
    run_id = sent["run_id"]

    def ended() -> Json:
        waiting = daemon.get("/approvals", open="true")["approvals"]
        if decision is None and waiting:
            return waiting
        for approval in waiting:
            daemon.post(f"/approvals/{approval['approval_id']}/resolve", {"decision": decision})
        return daemon.run(run_id)["ended_at"]

    until(ended, seconds=RUN_SECONDS)
    return daemon.tape(f"/runs/{run_id}")


def results(tape: list[Line]) -> list[Json]:
    """Return how the calls of a run ended, in order."""
    return [line.event for line in tape if line.kind == "tool_finished"]


def approvals(tape: list[Line]) -> list[Json]:
    """Return what a person was asked to approve in a run, in order."""
    return [line.event for line in tape if line.kind == "approval_requested"]
