"""What labels cost a person: the questions over fifty ordinary tasks, and how many of them are there for labels alone.

The tasks go through the real loop with the shipped policies, each in a session of its own, over one workspace. The
person says yes to everything, for the session where that can be said. The same is done again with every text taken for
the owner's; what is asked more with labels than without is their price. `standing_` is the same for somebody who has
allowed for good, in his own words, what he does every day. `shell_questions` are those about commands. `unseen_effects`
are calls that could have changed something outside their sandbox, and that nobody was asked about or had allowed.

Fakes stand at ports: a model by script, pages of a server of ours, and a sandbox that runs nothing.
"""

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from palyra.core.events import ApprovalRequested, PolicyDecided, TapeEvent, ToolProposed
from palyra.core.message import AcceptedMessage
from palyra.core.policy import labels
from palyra.core.policy.approval import ApprovalScope, Grant
from palyra.core.run.state import RunStatus
from palyra.core.tool import CallRuntime, FolderAccess
from palyra.policy.gate import Gate, Judgement
from palyra.policy.loader import combine
from palyra.policy.query import PolicyQuery
from palyra.providers.scripted import Script, ScriptCall, ScriptCondition, ScriptRule, ScriptText
from palyra.sandbox.base import CapturedOutput, ProgramOutcome, ResourceLimits, SandboxJob, Tier
from palyra.sandbox.network.egress import Egress
from palyra.tools.toolbox import BUILTIN_ONLY
from tests.bench.figures import Bar, Figures
from tests.bench.ground import Ground, Measurement
from tests.bench.ordinary_tasks import FILES, PORT, TASKS, USUAL, Task
from tests.bench.turns import run
from tests.support.builders import ANA
from tests.support.eventually import eventually
from tests.support.world import World

PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 23\r\n\r\nSomething worth noting.\n"
DONE = (ScriptText(text="Done."),)


class Credulous(Gate):
    """A gate that takes every text for the owner's."""

    def judge(self, question: PolicyQuery, grants: Sequence[Grant]) -> Judgement:
        trusted = [_trusted(grant) for grant in grants]
        return super().judge(replace(question, labels=(labels.OWNER,)), trusted)


class Still:
    """A sandbox that runs nothing, and says that all went well."""

    tier = Tier.STRICT
    enforces_read = True
    bounds = ResourceLimits()

    def __init__(self) -> None:
        self.writing = 0
        """How many programs could have changed the workspace."""

    async def check_ready(self, job: SandboxJob) -> None:
        pass

    async def run(self, job: SandboxJob) -> ProgramOutcome:
        self.writing += not job.read_only
        return ProgramOutcome(self.tier, 0, CapturedOutput(b"ok\n"), CapturedOutput(), timedelta(0))


def rounds(ground: Ground) -> Iterator[Figures]:
    tasks = TASKS[:: ground.amount(1, 10)]
    for _ in range(ground.repeat):
        yield run(measure(tasks))


async def measure(tasks: Sequence[Task]) -> Figures:
    """Return the figures of one round."""
    fresh, credulous = await asked(tasks, careful=True), await asked(tasks, careful=False)
    used, used_credulous = [await asked(tasks, careful=careful, usual=USUAL) for careful in (True, False)]
    extra = _more(fresh, credulous)
    standing_extra = _more(used, used_credulous)
    return {
        "tasks": len(tasks),
        "questions": sum(fresh.questions),
        "shell_questions": fresh.about_commands,
        "unseen_effects": fresh.unseen + used.unseen,
        "extra": sum(extra),
        "extra_per_task_max": max(extra),
        "extra_per_task_mean": sum(extra) / len(extra),
        "standing_questions": sum(used.questions),
        "standing_extra": sum(standing_extra),
        "standing_extra_per_task_max": max(standing_extra),
        "standing_extra_per_task_mean": sum(standing_extra) / len(standing_extra),
    }


@dataclass(slots=True)
class Asked:
    """What a person was asked over all tasks, and what he was not."""

    questions: list[int] = field(default_factory=list)
    """How many each task took."""
    about_commands: int = 0
    unseen: int = 0


def _more(careful: Asked, credulous: Asked) -> list[int]:
    pairs = zip(careful.questions, credulous.questions, strict=True)
    return [with_labels - without for with_labels, without in pairs]


async def asked(tasks: Sequence[Task], *, careful: bool, usual: Sequence[ScriptCall] = ()) -> Asked:
    """Return what all tasks took; `careful` looks at labels."""
    with tempfile.TemporaryDirectory(prefix="palyra-questions-") as name:
        folder = Path(name) / "workspace"
        for path, text in FILES.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        server = await asyncio.start_server(_serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        still, found = Still(), Asked()
        egress = Egress(resolve=_here, judge=lambda address, port: "")
        world = World(
            Path(name) / "journal.db",
            model=_script(tasks, usual, port=port),
            folder=folder,
            egress=egress,
            sandbox=still,
        )
        world.gate = (Gate if careful else Credulous)(combine(()))
        world.inbox = True
        async with server:
            await world.start()
            try:
                for number in range(len(usual)):
                    await _answered(
                        world, await world.say(f"usual {number}", key=f"usual {number}"), ApprovalScope.ALWAYS
                    )
                still.writing = 0
                for number, task in enumerate(tasks):
                    said = await world.say(_placed(task.message, port), key=f"task {number}")
                    found.questions.append(await _answered(world, said))
                    await _look(world, said, found)
                # What was run so that it could write, and was neither asked about nor allowed.
                found.unseen += still.writing
                return found
            finally:
                await world.stop()


async def _answered(world: World, said: AcceptedMessage, scope: ApprovalScope = ApprovalScope.SESSION) -> int:
    """Say yes until the run has ended, and return how often that was."""
    count = 0

    async def rests() -> RunStatus:
        found = await world.run(said)
        waits = found.status is RunStatus.WAITING and await world.approvals.page(
            ANA, only_open=True, before=None, limit=1
        )
        assert found.ended_at is not None or waits
        return found.status

    async def waits() -> bool:
        status: RunStatus = await eventually(rests, timeout=30)
        return status is RunStatus.WAITING

    while await waits():
        for question in await world.approvals.page(ANA, only_open=True, before=None, limit=50):
            lasting = scope if question.effect.kind else ApprovalScope.ONCE
            await world.approvals.resolve(ANA, question.approval_id, allow=True, scope=lasting)
            count += 1
    assert (await world.run(said)).status is RunStatus.DONE
    return count


async def _look(world: World, said: AcceptedMessage, found: Asked) -> None:
    """Take in what was asked in a run, and what was not."""
    events = await world.events(said)
    questions = {event.call_id for event in events if isinstance(event, ApprovalRequested)}
    for event in events:
        if not isinstance(event, PolicyDecided) or event.effect is None:
            continue
        tool = BUILTIN_ONLY.catalog(None).get(_tool_of(events, event.call_id))
        assert tool is not None
        seen = event.call_id in questions or event.grant_id is not None
        if tool.runtime is CallRuntime.SHELL:
            found.about_commands += event.call_id in questions
            found.unseen -= seen and event.effect.access is FolderAccess.WRITE
        elif not (seen or tool.spec.read_only or tool.spec.name == "agent.delegate"):
            # What a child does is judged call by call.
            found.unseen += 1


def _tool_of(events: Sequence[TapeEvent], call_id: str) -> str:
    return next(event.tool for event in events if isinstance(event, ToolProposed) and event.call_id == call_id)


def _script(tasks: Sequence[Task], usual: Sequence[ScriptCall], *, port: int) -> Script:
    rules = [
        ScriptRule(
            when=ScriptCondition(equals=_placed(task.message, port)),
            turns=(*((_call(c, port),) for c in task.calls), DONE),
        )
        for task in tasks
    ]
    rules += [
        ScriptRule(when=ScriptCondition(equals=f"usual {number}"), turns=((_call(call, port),), DONE))
        for number, call in enumerate(usual)
    ]
    return Script(rules=tuple(rules), default=DONE)


def _call(call: ScriptCall, port: int) -> ScriptCall:
    placed = {name: _placed(value, port) if isinstance(value, str) else value for name, value in call.arguments.items()}
    return ScriptCall(tool=call.tool, arguments=placed)


def _placed(text: str, port: int) -> str:
    return text.replace(PORT, str(port))


def _trusted(grant: Grant) -> Grant:
    return Grant(**{name: getattr(grant, name) for name in grant.__struct_fields__} | {"label": labels.WEB})


async def _here(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(PAGE)
    await writer.drain()
    writer.close()


MEASUREMENT = Measurement(
    about="how many questions fifty ordinary tasks take, and how many of them are there for labels alone",
    rounds=rounds,
    bars={"unseen_effects": Bar(0), "extra_per_task_max": Bar(1), "standing_extra_per_task_mean": Bar(1)},
    repeat=1,
)
