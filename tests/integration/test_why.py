"""What is named is found and traced back, on either engine."""

from collections.abc import Callable
from pathlib import Path

import pytest

from palyra.core.events import ToolFinished, ToolProposed
from palyra.core.ids import PrincipalId
from palyra.core.run.state import RunStatus
from palyra.core.tool import Risk
from palyra.core.trace.tree import Trace, TraceNode, walk_nodes
from palyra.daemon.process.system_clock import SystemIds
from palyra.journal.stores import stops
from palyra.providers.scripted import Script, ScriptCall, ScriptText
from palyra.runs.services.why import TraceService, TraceSubjectNotFound
from palyra.sandbox.files.workspace import Workspace
from palyra.tools.base import Tool, ToolContext, tool
from tests.integration.cast import ECHO, first_calls, on_sqlite
from tests.integration.conftest import Begin
from tests.support.builders import ANA
from tests.support.clock import MovableClock
from tests.support.world import BEN, World


@tool(name="tale.tell", risk=Risk.LOW, read_only=True)
async def tell(context: ToolContext) -> str:
    """Tell a long tale."""
    return "once upon a time " * 20_000


LONG: Tool = tell
WRITE = ScriptCall(tool="files.write", arguments={"path": "a.txt", "text": "hello"})


@pytest.fixture
def why(workspace: Path) -> Callable[[World], TraceService]:
    return lambda world: TraceService(world.engine, clock=world.clock, workspace=lambda _: Workspace((workspace,)))


def subject(trace: Trace) -> TraceNode:
    (found,) = [link for link in walk_nodes(trace.tree) if link.subject]
    return found


async def test_a_result_that_was_kept_is_traced_to_its_call_and_to_who_read_it(
    begin: Begin, why: Callable[[World], TraceService]
) -> None:
    world = await begin(first_calls(ScriptCall(tool="tale.tell"), then="Told."), tools=[LONG])
    said = await world.say("Tell me.")
    await world.ended(said)
    (finished,) = [event for event in await world.events(said) if isinstance(event, ToolFinished)]
    assert finished.artifact is not None
    trace = await why(world).trace(ANA, finished.artifact)
    assert trace.kind == "artifact"
    assert (subject(trace).kind, subject(trace).facts["size"]) == ("artifact", 17 * 20_000)
    assert trace.tree.what == "“Tell me.”"
    with pytest.raises(TraceSubjectNotFound):
        await why(world).trace(BEN, finished.artifact)


async def test_arguments_that_a_person_changed_are_told_apart_from_the_models(
    begin: Begin, why: Callable[[World], TraceService]
) -> None:
    world = await begin(first_calls(WRITE, then="Done."))
    world.inbox = True
    said = await world.say("Write.")
    await world.reaches(said, RunStatus.WAITING)
    (asked,) = await world.approvals.page(ANA, only_open=True, before=None, limit=1)
    await world.approvals.resolve(ANA, asked.approval_id, allow=True, arguments={"path": "b.txt", "text": "hello"})
    await world.ended(said)
    trace = await why(world).trace(ANA, "b.txt")
    call, answer = (next(link for link in walk_nodes(trace.tree) if link.kind == kind) for kind in ("call", "approval"))
    assert call.facts["arguments"]["path"] == "a.txt"
    assert (answer.by, answer.facts["edited"], answer.facts["arguments"]["path"]) == (ANA, True, "b.txt")
    with pytest.raises(TraceSubjectNotFound, match="No agent of yours has changed"):
        await why(world).trace(ANA, "a.txt")
    code = asked.approval_id[-6:]
    with pytest.raises(TraceSubjectNotFound):
        await why(world).trace(ANA, code)  # only open questions go by their code


async def test_a_call_is_found_by_its_id_among_many_runs(begin: Begin, why: Callable[[World], TraceService]) -> None:
    clock = MovableClock()
    world = await begin(first_calls(ScriptCall(tool="clock.now"), then="Now."), clock=clock, ids=SystemIds(clock))
    runs = [await world.say(f"Message {number}.", key=None) for number in range(5)]
    await world.all_ended(runs)
    (proposed,) = [event for event in await world.events(runs[2]) if isinstance(event, ToolProposed)]
    trace = await why(world).trace(ANA, proposed.call_id)
    assert (trace.kind, trace.tree.what, subject(trace).kind) == ("call", "“Message 2.”", "call")


async def test_a_run_that_was_stopped_says_by_whom(begin: Begin, why: Callable[[World], TraceService]) -> None:
    world = await begin(Script(default=(ScriptText(text="Well."),)))
    await world.worker.park(seconds=0)
    said = await world.say("Go.")
    await world.stops.stop(BEN, principal=None, reason="smoke")
    await world.ended(said)
    assert len(await world.engine.read(stops.in_force)) == 1
    trace = await why(world).trace(ANA, "last")
    ends = [link for link in walk_nodes(trace.tree) if link.kind == "end"]
    assert [(end.by, end.what) for end in ends][-1] == (BEN, "was cancelled: stopped by user:ben: smoke")


@on_sqlite
@pytest.mark.parametrize("name", ["no-such-file", "ABCDEF", "/etc/passwd", "01ARZ3NDEKTSV4RRFFQ69G5FAV"])
async def test_what_is_not_there_is_told_with_what_can_be_asked(
    begin: Begin, why: Callable[[World], TraceService], name: str
) -> None:
    world = await begin(ECHO)
    with pytest.raises(TraceSubjectNotFound, match="SESSION:SEQ"):
        await why(world).trace(PrincipalId("user:ana"), name)


@on_sqlite
async def test_entries_of_the_session_itself_have_no_run(begin: Begin, why: Callable[[World], TraceService]) -> None:
    world = await begin(ECHO)
    said = await world.say("Hello.")
    await world.ended(said)
    trace = await why(world).trace(ANA, f"{said.session_id}:1")
    assert (trace.tree.kind, trace.tree.what, trace.tree.by) == ("session", "session created", ANA)
    with pytest.raises(TraceSubjectNotFound, match="no such entry"):
        await why(world).trace(ANA, f"{said.session_id}:999")
    assert (await why(world).trace(ANA, said.session_id)).tree.run_id == said.run_id
