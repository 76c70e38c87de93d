"""Files that a run changes: asked about first, kept before, changed once, and restored when a person wants it."""

import re
from pathlib import Path

import pytest

from palyra.core.agent import Agent
from palyra.core.artifact import FileCheckpoint, FileState
from palyra.core.errors import FileChanged
from palyra.core.events import ToolFinished
from palyra.core.ids import AgentId
from palyra.core.message import AcceptedMessage
from palyra.core.model.prompt import ModelEvent, Prompt, TextDelta
from palyra.core.policy.approval import Approval
from palyra.core.run.state import RunStatus
from palyra.core.session_events import FileCheckpointRestored
from palyra.core.tool import CallOutcome, JsonObject
from palyra.journal.content import artifacts, file_checkpoints
from palyra.journal.content.artifacts import ArtifactNotFound
from palyra.journal.content.file_checkpoints import FileCheckpointNotFound
from palyra.providers.scripted import Script, ScriptCall
from palyra.runs.services.agents import AgentService
from palyra.runs.services.file_checkpoints import FileCheckpointService
from palyra.sandbox.files.file_changes import FileChange, apply_changes
from palyra.sandbox.files.root import RootSymlinked
from palyra.sandbox.files.workspace import Workspace
from palyra.tools import file_changes
from tests.integration.cast import DONE, a_call, first_calls, results, said_by
from tests.integration.conftest import Begin
from tests.support.builders import ANA
from tests.support.eventually import eventually
from tests.support.world import BEN, Said, World

OLD = "The milk is in the fridge.\n"
WRITE: JsonObject = {"path": "notes.txt", "text": "The milk is gone.\n", "mode": "replace"}


def calls(tool: str, arguments: JsonObject) -> Script:
    return first_calls(ScriptCall(tool=tool, arguments=arguments))


async def question(world: World, run: Said) -> Approval:
    await world.reaches(run, RunStatus.WAITING)
    (found,) = await world.approvals.page(ANA, only_open=True, before=None, limit=10)
    return found


async def carried_out(world: World) -> AcceptedMessage:
    """Have the run make its call with a yes to it, and wait for its end."""
    said = await world.say("Do it.")
    await world.approvals.resolve(ANA, (await question(world, said)).approval_id, allow=True)
    assert (await world.ended(said)).status is RunStatus.DONE
    return said


async def finished(world: World, run: Said) -> ToolFinished:
    (event,) = [event for event in await world.events(run) if isinstance(event, ToolFinished)]
    return event


def doors(world: World, workspace: Path) -> FileCheckpointService:
    return FileCheckpointService(
        world.engine, workspace=lambda _: Workspace((workspace,)), clock=world.clock, ids=world.ids
    )


async def kept(world: World) -> list[FileCheckpoint]:
    return await world.engine.read(lambda conn: file_checkpoints.page(conn, ANA, limit=100))


async def test_a_change_is_shown_as_a_diff_then_made_and_kept(begin: Begin, workspace: Path) -> None:
    world = await begin(calls("files.write", WRITE))
    said = await world.say("Do it.")
    asked = await question(world, said)
    assert asked.effect.detail.endswith("-The milk is in the fridge.\n+The milk is gone.\n")
    assert (workspace / "notes.txt").read_text() == OLD
    assert await kept(world) == []

    await world.approvals.resolve(ANA, asked.approval_id, allow=True)

    await world.ended(said)
    assert (workspace / "notes.txt").read_text() == WRITE["text"]
    (checkpoint,) = await kept(world)
    assert (checkpoint.what, checkpoint.path) == ("files.write", str(workspace / "notes.txt"))
    assert (checkpoint.run_id, checkpoint.principal) == (said.run_id, ANA)
    assert await world.engine.read(lambda conn: file_checkpoints.content(conn, checkpoint)) == OLD.encode()


async def test_a_file_that_changed_since_the_question_is_left_alone(begin: Begin, workspace: Path) -> None:
    world = await begin(calls("files.write", WRITE))
    said = await world.say("Do it.")
    asked = await question(world, said)
    (workspace / "notes.txt").write_text("by hand\n")

    await world.approvals.resolve(ANA, asked.approval_id, allow=True)

    await world.ended(said)
    assert (await finished(world, said)).outcome is CallOutcome.DENIED
    assert (workspace / "notes.txt").read_text() == "by hand\n"


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_daemon_that_dies_at_a_change_makes_it_once(
    begin: Begin, workspace: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies when all is kept and nothing is changed, or when it is changed and not yet recorded."""
    world = await begin(calls("files.write", {"path": "notes.txt", "text": "more\n", "mode": "append"}))
    line, deaths = world.line, [0]

    def dying(where: Workspace, what: list[FileChange]) -> None:
        if moment == "after" or deaths[0]:
            apply_changes(where, what)
        if not deaths[0]:
            line.cut = True
        deaths[0] += 1

    monkeypatch.setattr(file_changes, "apply_changes", dying)
    said = await world.say("Do it.")
    await world.approvals.resolve(ANA, (await question(world, said)).approval_id, allow=True)

    async def died() -> bool:
        assert deaths[0]
        return True

    _: bool = await eventually(died, timeout=60)
    await world.crash()

    assert (await world.ended(said)).status is RunStatus.DONE
    assert (await finished(world, said)).outcome is CallOutcome.OK
    assert (workspace / "notes.txt").read_text() == OLD + "more\n"


async def test_a_long_result_is_kept_and_read_on_by_the_model(begin: Begin, workspace: Path) -> None:
    for number in range(900):
        (workspace / f"a-file-with-quite-a-long-name-{number:04}.txt").touch()

    def speak(prompt: Prompt) -> list[ModelEvent]:
        told = results(prompt)
        if not told:
            return [a_call("files.list", {"limit": 1000}), DONE]
        if len(told) == 1:
            found = re.search(r"artifact=(\w{26})", told[0])
            assert found is not None
            return [a_call("artifact.read", {"artifact": found[1], "byte": 16_000}, call_id="c2"), DONE]
        return [TextDelta("Read."), DONE]

    world = await begin(said_by(speak))
    said = await world.say("List them.")
    await world.ended(said)
    first, second = [event for event in await world.events(said) if isinstance(event, ToolFinished)]
    artifact_id = first.artifact
    assert artifact_id is not None
    assert "read the whole of" in first.text
    assert second.outcome is CallOutcome.OK
    assert second.text.startswith(f"artifact {artifact_id}, bytes 16000 to ")
    assert "a-file-with-quite-a-long-name-0400" in second.text
    with pytest.raises(ArtifactNotFound):
        await world.engine.read(lambda conn: artifacts.get(conn, artifact_id, BEN))


# -- bringing a file back


async def test_a_file_is_brought_back_and_that_can_be_taken_back(begin: Begin, workspace: Path) -> None:
    world = await begin(calls("files.write", WRITE))
    said = await carried_out(world)
    files = doors(world, workspace)
    (checkpoint,) = await files.history(ANA, path="notes.txt", session_id=said.session_id, limit=10)
    compared = await files.compare(ANA, checkpoint.checkpoint_id)
    assert compared.state is FileState.AS_CHANGED
    assert compared.diff.endswith("-The milk is gone.\n+The milk is in the fridge.\n")

    _, undo = await files.restore(ANA, checkpoint.checkpoint_id, force=False)

    assert (workspace / "notes.txt").read_text() == OLD
    assert (undo.what, undo.restores) == ("restore", checkpoint.checkpoint_id)
    events = [event for event in await world.events(said.session_id) if isinstance(event, FileCheckpointRestored)]
    assert [(event.checkpoint_id, event.path, event.saved_as, event.actor) for event in events] == [
        (checkpoint.checkpoint_id, str(workspace / "notes.txt"), undo.checkpoint_id, ANA)
    ]
    assert (await files.compare(ANA, checkpoint.checkpoint_id)).state is FileState.AS_BEFORE
    _, same = await files.restore(ANA, checkpoint.checkpoint_id, force=False)
    assert same == checkpoint
    await files.restore(ANA, undo.checkpoint_id, force=False)
    assert (workspace / "notes.txt").read_text() == WRITE["text"]


async def test_a_new_file_goes_again(begin: Begin, workspace: Path) -> None:
    world = await begin(calls("files.write", {"path": "sub/new.txt", "text": "x"}))
    await carried_out(world)
    files = doors(world, workspace)
    (checkpoint,) = await files.history(ANA, path="sub/new.txt", limit=10)
    assert (workspace / "sub" / "new.txt").exists()
    await files.restore(ANA, checkpoint.checkpoint_id, force=False)
    assert not (workspace / "sub" / "new.txt").exists()


async def test_a_file_that_was_changed_again_is_brought_back_by_force_only(begin: Begin, workspace: Path) -> None:
    (workspace / "notes.txt").chmod(0o640)
    world = await begin(calls("files.write", WRITE))
    await carried_out(world)
    files = doors(world, workspace)
    (checkpoint,) = await files.history(ANA, limit=10)
    (workspace / "notes.txt").unlink()
    (workspace / "notes.txt").write_text("by hand\n")
    with pytest.raises(FileChanged):
        await files.restore(ANA, checkpoint.checkpoint_id, force=False)
    assert (workspace / "notes.txt").read_text() == "by hand\n"
    assert len(await kept(world)) == 1

    _, undo = await files.restore(ANA, checkpoint.checkpoint_id, force=True)

    assert (workspace / "notes.txt").read_text() == OLD
    assert (workspace / "notes.txt").stat().st_mode & 0o777 == 0o640
    assert await world.engine.read(lambda conn: file_checkpoints.content(conn, undo)) == b"by hand\n"


async def test_nobody_else_sees_or_brings_back_a_file(begin: Begin, workspace: Path) -> None:
    world = await begin(calls("files.write", WRITE))
    await carried_out(world)
    files = doors(world, workspace)
    (checkpoint,) = await kept(world)
    assert await files.history(BEN, limit=10) == []
    with pytest.raises(FileCheckpointNotFound):
        await files.compare(BEN, checkpoint.checkpoint_id)
    with pytest.raises(FileCheckpointNotFound):
        await files.restore(BEN, checkpoint.checkpoint_id, force=True)
    assert (workspace / "notes.txt").read_text() == WRITE["text"]


async def test_nothing_is_brought_back_through_a_root_that_became_a_link(
    begin: Begin, workspace: Path, tmp_path: Path
) -> None:
    outside, sub = tmp_path / "outside", workspace / "sub"
    for folder in (outside, sub):
        folder.mkdir()
        (folder / "notes.txt").write_text(OLD)
    world = await begin(calls("files.write", WRITE))
    agents = AgentService(world.engine, clock=world.clock, ids=world.ids, workspace=lambda _: Workspace((workspace,)))
    narrow = Agent(agent_id=AgentId(""), principal=ANA, name="narrow", instructions="", workspace_roots=(str(sub),))
    await agents.set_default(ANA, (await agents.create(ANA, narrow)).agent_id)
    await carried_out(world)
    (checkpoint,) = await kept(world)
    assert (checkpoint.root, checkpoint.path) == (str(sub), str(sub / "notes.txt"))
    sub.rename(workspace / "before")
    sub.symlink_to(outside)
    (outside / "notes.txt").write_text(str(WRITE["text"]))
    files = doors(world, workspace)
    for force in (False, True):
        with pytest.raises(RootSymlinked):
            await files.restore(ANA, checkpoint.checkpoint_id, force=force)
    with pytest.raises(RootSymlinked):
        await files.compare(ANA, checkpoint.checkpoint_id)
    assert (outside / "notes.txt").read_text() == WRITE["text"]
