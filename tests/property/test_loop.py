"""Random lives through the real loop, with others writing before any of its commits, and a daemon that may die.

Every world has a few sessions with a message each. Before each commit of the worker and of the queue somebody else may
write: a further message of any mode, a cancel, a change of the session. What the model says is up to the dice; it
calls tools that may and that may not be repeated, ones that do not exist, and hands tasks to children. In some worlds
the daemon is killed a few times on the way, and in some it hears of nothing that others write.

The laws are those of the house: every run ends, the tape holds and replays to what the rows say (`World.check_books`,
at the end of each world), no tool is started twice, nobody who is answered was not heard, and none of it is ever a
fault of ours.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from palyra.background import queue
from palyra.core.errors import Conflict, NotFound, Unavailable
from palyra.core.events import (
    CancelRequested,
    ChildStarted,
    ContextAssembled,
    InputMode,
    InputSteered,
    LimitReached,
    RunAccepted,
    RunFailed,
    TapeEvent,
    ToolProposed,
    ToolStarted,
)
from palyra.core.limits import Limits
from palyra.core.model.prompt import CallProposed, ModelEvent, Prompt, Role, StopReason, TextDelta, TurnDone
from palyra.core.run.record import RunRecord
from palyra.core.run.state import RunStatus
from palyra.core.spending.usage import Usage
from palyra.core.tool import Risk
from palyra.journal.engines.base import Connection
from palyra.providers.base import ProviderFailed
from palyra.runs.engine import worker
from palyra.tools import catalog
from palyra.tools.base import ToolContext, tool
from palyra.tools.toolbox import BUILTIN_ONLY
from tests.support.builders import ANA
from tests.support.world import Model, World

SEEDS = range(16)
SESSIONS = 6
MEDDLINGS = 40
DEATHS = 3


class Fate:
    """Decides by the dice what the model says and what others do."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._numbers = count(1)
        self.meddlings = MEDDLINGS
        self._short = self._dice.random() < 0.25
        self.rung: Counter[str] = Counter()
        self.limits = Limits(
            model_turns=self._dice.randint(1, 5),
            tool_calls=self._dice.randint(0, 6),
            wall_clock_ms=150 if self._short else 100_000,
            last_turn_timeout_ms=100 if self._short else 60_000,
            max_children=2,
        )
        self.deaths = self._dice.choice((0, DEATHS))
        self.deaf = self._dice.random() < 0.5

        @tool(name="bell.ring", risk=Risk.LOW)
        async def ring(context: ToolContext, *, who: str) -> str:
            """Ring a bell."""
            self.rung[who] += 1
            await asyncio.sleep(self._dice.choice((0, 0.001)))
            return "rung"

        self.bell = ring

    def commits(self) -> int:
        return self._dice.randint(3, 60)

    async def speak(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        dice = self._dice
        for _ in range(dice.randint(0, 2)):
            yield TextDelta("Well. ")
            await asyncio.sleep(dice.choice((0, 0, 0.001)))
        if self._short and dice.random() < 0.2:
            await asyncio.Event().wait()
        if dice.random() < 0.05:
            raise ProviderFailed("The line is cut.")
        for number in range(dice.choice((0, 0, 1, 2, 3)) if prompt.tools else 0):
            yield self._call(number)
        yield TurnDone(stop=StopReason.END, usage=Usage())

    def _call(self, number: int) -> CallProposed:
        name, arguments = self._dice.choice(
            (
                ("bell.ring", {"who": f"bell {next(self._numbers)}"}),
                ("bell.ring", {"who": f"bell {next(self._numbers)}"}),
                ("time.now", {}),
                ("files.list", {}),
                ("agent.delegate", {"task": f"task {next(self._numbers)}"}),
                ("bell.ring", {}),
                ("no.such", {}),
            )
        )
        return CallProposed(call_id=str(number), tool=name, arguments=arguments)

    def rules(self, world: World) -> None:
        """Take hold of the present life of a world."""
        world.line.before_write = lambda: self.meddle(world)
        world.line.deaf = self.deaf

    async def meddle(self, world: World) -> None:
        """Let somebody write something, now and then."""
        if self.meddlings == 0 or self._dice.random() < 0.6:
            return
        self.meddlings -= 1
        # A full queue, a session that is busy, a run that has ended: they are told so, and leave it at that.
        with suppress(Conflict, NotFound, Unavailable):
            await self._write(world)

    async def _write(self, world: World) -> None:
        key = f"session {self._dice.randrange(SESSIONS)}"
        match self._dice.choice(("steer", "steer", "queue", "interrupt", "cancel", "rename", "reset", "cleanup")):
            case "cancel":
                if open_runs := await world.engine.read(_open_runs):
                    await world.cancel(self._dice.choice(open_runs))
            case "rename":
                said = await world.say(self.words(), key=key)
                await world.sessions.rename(ANA, said.session_id, "Renamed")
            case "reset":
                said = await world.say(self.words(), key=key)
                await world.sessions.reset(ANA, said.session_id)
            case "cleanup" if self._dice.random() < 0.2:
                said = await world.say(self.words(), key=key)
                await world.sessions.cleanup(ANA, said.session_id)
            case mode if mode in [*InputMode]:
                await world.say(self.words(), key=key, mode=InputMode(mode))

    def words(self) -> str:
        return f"message {next(self._numbers)}"


def _open_runs(conn: Connection) -> list[str]:
    return [row[0] for row in conn.fetch("SELECT run_id FROM runs WHERE ended_ms IS NULL")]


@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_others_write_and_whenever_it_dies_the_loop_keeps_the_laws(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker, "SWEEP_SECONDS", 0.02)
    monkeypatch.setattr(queue, "SWEEP_SECONDS", 0.02)
    fate = Fate(seed)
    monkeypatch.setattr(catalog, "BUILTIN", (*catalog.BUILTIN, fate.bell))
    world = World(tmp_path / "journal.db", model=Model(fate.speak), folder=tmp_path, limits=fate.limits)
    await world.start()
    for number in range(SESSIONS):
        await world.say(fate.words(), key=f"session {number}")
    for _ in range(fate.deaths):
        fate.rules(world)
        world.dies_after(fate.commits())
        await world.dies_before_rest()
        await world.crash()
    fate.rules(world)
    await world.dies_before_rest()
    fate.meddlings = 0
    await world.dies_before_rest()
    await world.quiet()
    for run in await world.runs():
        events = await world.events(run)
        every_run_has_ended(run)
        no_run_fails_but_by_its_model(events)
        no_call_starts_twice(events)
        nothing_starts_after_a_limit_or_a_cancel(events)
        whoever_is_answered_was_heard(run, events, world.prompts)
    assert all(times == 1 for times in fate.rung.values()), fate.rung
    assert not [record.getMessage() for record in caplog.records if "broke" in record.getMessage()]
    await world.stop()


def every_run_has_ended(run: RunRecord) -> None:
    assert run.ended_at is not None
    assert run.status in (RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED)


def no_run_fails_but_by_its_model(events: list[TapeEvent]) -> None:
    failures = [event for event in events if isinstance(event, RunFailed)]
    assert all(event.code in ("model_unavailable", "model_answer_missing") for event in failures), failures


def no_call_starts_twice(events: list[TapeEvent]) -> None:
    repeatable = {spec.name for spec in BUILTIN_ONLY.catalog(None).specs() if spec.repeatable}
    tools = {event.call_id: event.tool for event in events if isinstance(event, ToolProposed)}
    started = Counter(event.call_id for event in events if isinstance(event, ToolStarted))
    for call_id, times in started.items():
        assert times == 1 or tools[call_id] in repeatable
    children = Counter(event.call_id for event in events if isinstance(event, ChildStarted))
    assert all(times == 1 for times in children.values())


def nothing_starts_after_a_limit_or_a_cancel(events: list[TapeEvent]) -> None:
    stopped = cancelled = False
    for event in events:
        stopped |= isinstance(event, LimitReached | CancelRequested)
        cancelled |= isinstance(event, CancelRequested)
        assert not (stopped and isinstance(event, ToolStarted | ChildStarted))
        assert not (cancelled and isinstance(event, ContextAssembled))


def whoever_is_answered_was_heard(run: RunRecord, events: list[TapeEvent], prompts: list[Prompt]) -> None:
    if run.status is not RunStatus.DONE:
        return
    said = [event.text for event in events if isinstance(event, RunAccepted | InputSteered)]
    heard = {message.text for prompt in prompts for message in prompt.messages if message.role is Role.USER}
    assert heard.issuperset(said)
