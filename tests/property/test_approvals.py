"""Random races about questions: answers at once, time that runs out, other words, a cancel, a carrier that dies.

Hypothesis draws what is done to a journal with two carriers: two workers of one daemon on SQLite, two daemons on
PostgreSQL. Everything in one move is done at once, and a carrier may be killed in the middle of it. Whoever is refused
is told so, and leaves it at that.

The laws: each question has one outcome, and whoever was told that it is theirs is right; no call runs without its
allow, none twice unless it may be repeated; every run ends, and the tape adds up to what the rows say.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, event, example, given, settings
from hypothesis import strategies as st

from palyra.background import queue
from palyra.core.errors import Conflict, NotFound, Unavailable
from palyra.core.events import (
    ApprovalDecision,
    ApprovalRequested,
    ApprovalResolved,
    InputMode,
    PolicyDecided,
    TapeEvent,
    ToolProposed,
    ToolStarted,
)
from palyra.core.ids import CallId
from palyra.core.model.prompt import CallProposed, ModelEvent, Prompt, Role, StopReason, TextDelta, TurnDone
from palyra.core.policy.approval import Approval, ApprovalScope
from palyra.core.policy.effect import Effect
from palyra.core.run.state import RunStatus
from palyra.core.spending.usage import Usage
from palyra.core.tool import Risk, Verdict
from palyra.runs.engine import worker
from palyra.tools import catalog
from palyra.tools.base import Tool, ToolContext, tool
from tests.support.builders import ANA
from tests.support.clock import MovableClock
from tests.support.eventually import eventually
from tests.support.postgres import drop_schema, new_schema
from tests.support.world import CountedIds, Model, World

DRAWN = settings(
    max_examples=60,
    deadline=None,
    phases=set(Phase) - {Phase.explain},
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
TURNS = 2
REFUSED = (Conflict, NotFound, Unavailable)

ACTS = ("allow", "allow", "deny", "edit", "session", "expire", "steer", "interrupt", "cancel", "reissue", "say")


@dataclass(frozen=True)
class Act:
    """Something that somebody does, to one of the questions or runs there are."""

    what: str
    which: int = 0
    door: int = 0
    """At which of the daemons."""


@dataclass(frozen=True)
class Turmoil:
    """What is done at once; a carrier may die after so many commits of it."""

    acts: tuple[Act, ...]
    dies_after: int = 0
    at_rest: bool = True
    """It begins when nobody can do anything without an answer; else in the middle of whatever is under way."""


acts = st.builds(Act, st.sampled_from(ACTS), st.integers(0, 3), st.integers(0, 1))
moves = st.builds(
    Turmoil,
    st.lists(acts, min_size=1, max_size=4).map(tuple),
    st.sampled_from((3, 0, 4, 0, 2, 0, 5, 1, 8)),
    st.sampled_from((True, True, True, False)),
)
stories = st.lists(moves, min_size=1, max_size=6)


@dataclass
class Cast:
    """Tools that must be asked about, and a model that wants them in its first turns."""

    written: Counter[str] = field(default_factory=Counter)
    numbers: "count[int]" = field(default_factory=lambda: count(1))

    def tools(self) -> tuple[Tool, Tool]:
        async def preview(context: ToolContext, given: msgspec.Struct) -> Effect:
            text = given.text  # type: ignore[attr-defined]
            return Effect(risk=Risk.MEDIUM, summary=f"write {text}", detail=text, kind="book:diary")

        @tool(name="pen.write", risk=Risk.MEDIUM, preview=preview)
        async def write(context: ToolContext, *, text: str) -> str:
            """Write; must never be done twice."""
            self.written[text] += 1
            await asyncio.sleep(0)
            return f"wrote {text}"

        @tool(name="lamp.look", risk=Risk.MEDIUM, repeatable=True)
        async def look(context: ToolContext, *, text: str) -> str:
            """Look at a lamp; may be done again."""
            await asyncio.sleep(0)
            return "it is lit"

        return write, look

    async def speak(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        since = [place for place, message in enumerate(prompt.messages) if message.role is Role.USER]
        turns = sum(message.role is Role.ASSISTANT for message in prompt.messages[since[-1] :])
        if prompt.tools and turns < TURNS:
            for name in ("pen.write", "lamp.look")[: 1 + turns]:
                number = next(self.numbers)
                yield CallProposed(call_id=str(number), tool=name, arguments={"text": f"note {number}"})
        else:
            yield TextDelta("Well.")
        yield TurnDone(stop=StopReason.END, usage=Usage())


@dataclass
class Race:
    """A journal, those who work on it, and what they were told."""

    cast: Cast
    worlds: list[World]
    told: dict[str, list[ApprovalDecision]] = field(default_factory=dict)
    """For each question, which answers were taken."""
    edited: dict[str, str] = field(default_factory=dict)

    async def play(self, story: list[Turmoil]) -> None:
        await self.worlds[0].say("Begin.")
        for move in story:
            if move.at_rest:
                await self.rest()
            victim = self.worlds[move.acts[0].door % len(self.worlds)]
            if move.dies_after:
                victim.dies_after(move.dies_after)
            await asyncio.gather(*(self.act(act) for act in move.acts))
            if move.dies_after:
                await self.rest(unless_dead=victim)
                await victim.crash()
        await self.let_all_end()

    async def rest(self, *, unless_dead: World | None = None) -> None:
        """Wait until the session's active run waits for a person, or there is none; or for a death that was ordered."""

        async def look() -> bool:
            if unless_dead is not None and unless_dead.line.cut:
                return True
            open_runs = [run for run in await self.worlds[0].runs() if run.ended_at is None]
            assert not open_runs or any(run.status is RunStatus.WAITING for run in open_runs)
            return True

        _: bool = await eventually(look, timeout=60)

    async def act(self, act: Act) -> None:
        with suppress(*REFUSED):
            await self._act(act, self.worlds[act.door % len(self.worlds)])

    async def _act(self, act: Act, world: World) -> None:
        match act.what:
            case "expire":
                # Nobody works in that time, or their wall clock would be over too.
                world.clock.sleep(world.expires + timedelta(seconds=1))
            case "steer" | "interrupt":
                await world.say("Or rather not.", mode=InputMode(act.what))
            case "say":
                await world.say("And another thing.")
            case "cancel":
                if runs := [run for run in await world.runs() if run.ended_at is None]:
                    await world.cancel(runs[act.which % len(runs)])
            case "reissue":
                if late := [one for one in await self.questions(world) if one.decision == "timed_out"]:
                    await world.intake.reissue(ANA, late[act.which % len(late)].approval_id)
            case _:
                if asked := await self.questions(world):
                    await self.answer(world, asked[act.which % len(asked)], act.what)

    async def questions(self, world: World) -> list[Approval]:
        """Return the latest questions, those that are answered too."""
        return await world.approvals.page(ANA, only_open=False, before=None, limit=4)

    async def answer(self, world: World, question: Approval, how: str) -> None:
        words = f"edited {next(self.cast.numbers)}"
        taken = await world.approvals.resolve(
            ANA,
            question.approval_id,
            allow=how != "deny",
            scope=ApprovalScope.SESSION if how == "session" and question.effect.kind else ApprovalScope.ONCE,
            arguments={"text": words} if how == "edit" else None,
        )
        decision = ApprovalDecision.DENIED if how == "deny" else ApprovalDecision.ALLOWED
        assert taken.decision == decision.value, "somebody was told of an answer that is not theirs"
        self.told.setdefault(question.approval_id, []).append(decision)
        if how == "edit":
            self.edited[words] = question.approval_id

    async def let_all_end(self) -> None:
        """Allow whatever is still asked, until nothing is left to do."""
        world = self.worlds[0]

        async def look() -> bool:
            for question in await world.approvals.page(ANA, only_open=True, before=None, limit=50):
                with suppress(*REFUSED):
                    await self.answer(world, question, "allow")
            left = [run for run in await world.runs() if run.ended_at is None]
            assert not left, [(run.run_id, run.status) for run in left]
            return True

        _: bool = await eventually(look, timeout=60)

    # -- the laws

    async def check(self) -> None:
        world = self.worlds[0]
        found = await world.approvals.page(ANA, only_open=False, before=None, limit=500)
        rows = {one.approval_id: one for one in found}
        for decision in {one.decision for one in found}:
            event(f"some were {decision}")
        allowed: set[str] = set()
        for run in await world.runs():
            assert run.status in (RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED)
            assert run.status is not RunStatus.FAILED, run.reason
            events = await world.events(run)
            self.each_question_has_one_outcome(events, rows)
            allowed |= nothing_runs_without_its_allow(events)
            nothing_runs_twice(events)
        assert all(times == 1 for times in self.cast.written.values()), self.cast.written
        assert self.cast.written.keys() <= allowed, "something was written that nobody allowed"
        for approval_id, answers in self.told.items():
            assert len(answers) == 1, f"two were told that their answer to {approval_id} counts"

    def each_question_has_one_outcome(self, events: list[TapeEvent], rows: dict[str, Approval]) -> None:
        asked = [event.approval_id for event in events if isinstance(event, ApprovalRequested)]
        ends = Counter(event.approval_id for event in events if isinstance(event, ApprovalResolved))
        assert ends.keys() <= set(asked)
        assert len(asked) == len(set(asked))
        decisions = {event.approval_id: event.decision for event in events if isinstance(event, ApprovalResolved)}
        for approval_id in asked:
            assert ends[approval_id] <= 1, "a question ended twice"
            # One that its run left open was withdrawn with the run's end.
            decision = decisions.get(approval_id, ApprovalDecision.WITHDRAWN)
            assert rows[approval_id].decision == decision.value
            if approval_id in self.told:
                assert self.told[approval_id] == [decision], "the answer that was taken is not the one that counts"


def nothing_runs_without_its_allow(events: list[TapeEvent]) -> set[str]:
    """Check every start against the word before it; return what was allowed to be written."""
    may_run: dict[CallId, bool] = {}
    arguments: dict[CallId, str] = {}
    allowed: set[str] = set()
    for happened in events:
        match happened:
            case ToolProposed(call_id=call_id):
                may_run[call_id], arguments[call_id] = False, str(happened.arguments["text"])
            case PolicyDecided(call_id=call_id, verdict=verdict):
                may_run[call_id] = verdict is Verdict.ALLOW
            case ApprovalResolved(call_id=call_id, decision=decision, arguments=changed):
                # Changed words are judged anew before they count.
                may_run[call_id] = decision is ApprovalDecision.ALLOWED and changed is None
                if changed is not None:
                    arguments[call_id] = str(changed["text"])
            case ToolStarted(call_id=call_id):
                assert may_run[call_id], "a call ran without its allow"
                allowed.add(arguments[call_id])
            case _:
                pass
    return allowed


def nothing_runs_twice(events: list[TapeEvent]) -> None:
    tools = {event.call_id: event.tool for event in events if isinstance(event, ToolProposed)}
    starts = Counter(event.call_id for event in events if isinstance(event, ToolStarted))
    assert all(times == 1 or tools[call_id] == "lamp.look" for call_id, times in starts.items())


# -- the races


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "SWEEP_SECONDS", 0.02)
    monkeypatch.setattr(queue, "SWEEP_SECONDS", 0.02)


async def race(places: list[tuple[Path | str, int]], folder: Path, story: list[Turmoil]) -> None:
    cast = Cast()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "BUILTIN", (*catalog.BUILTIN, *cast.tools()))
        worlds: list[World] = []
        clock, ids = MovableClock(), CountedIds()
        for number, (place, workers) in enumerate(places):
            world = World(
                place,
                model=Model(cast.speak),
                folder=folder,
                house=f"house {number}",
                workers=workers,
                clock=clock,
                ids=ids,
            )
            worlds.append(await world.start())
        try:
            running = Race(cast, worlds)
            await running.play(story)
            await running.check()
        finally:
            for world in reversed(worlds):
                await world.stop()


AT_ONCE = [Turmoil((Act("allow"), Act("deny"), Act("edit"), Act("expire")))]
DYING = [Turmoil((Act("allow"), Act("steer"), Act("cancel", 1)), dies_after=2), Turmoil((Act("deny"),), dies_after=1)]
KILLED = [Turmoil((Act("allow"),), dies_after=3), Turmoil((Act("allow"), Act("allow", 1)), dies_after=4)]
LATE = [Turmoil((Act("expire"),)), Turmoil((Act("reissue"), Act("reissue", door=1))), Turmoil((Act("allow"),))]


@pytest.mark.usefixtures("_quick")
@example(story=AT_ONCE)
@example(story=DYING)
@example(story=KILLED)
@example(story=LATE)
@given(story=stories)
@DRAWN
def test_two_workers_of_one_daemon_keep_the_laws(story: list[Turmoil]) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(race([(Path(folder) / "journal.db", 2)], Path(folder), story))


@pytest.mark.usefixtures("_quick")
@example(story=AT_ONCE)
@example(story=DYING)
@example(story=KILLED)
@example(story=LATE)
@given(story=stories)
@settings(DRAWN, max_examples=15)
def test_two_daemons_of_one_journal_keep_the_laws(postgres_server: str, story: list[Turmoil]) -> None:
    url = new_schema(postgres_server)
    try:
        with TemporaryDirectory() as folder:
            asyncio.run(race([(url, 1), (url, 1)], Path(folder), story))
    finally:
        drop_schema(url)
