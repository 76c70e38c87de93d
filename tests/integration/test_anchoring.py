"""Anchors: what has moved is stated and signed, and nothing of it is forgotten when the journal can not be written."""

import asyncio

import pytest

from palyra.background import anchoring
from palyra.background.anchoring import AnchorWriter
from palyra.journal.engines.base import StorageFull
from palyra.journal.proof import anchors
from palyra.journal.proof.journal_proof import verify
from palyra.journal.proof.signing_key import KeySigner
from palyra.journal.proof.tape_proof import ProofReport
from palyra.journal.stores import meta
from tests.integration.cast import ECHO, on_sqlite
from tests.integration.conftest import Begin
from tests.support.builders import ANA
from tests.support.eventually import eventually
from tests.support.world import SIGNER, World


@pytest.fixture
def signer() -> KeySigner:
    return SIGNER


async def an_anchoring(world: World, signer: KeySigner) -> AnchorWriter:
    journal_id = await world.engine.write(lambda conn: meta.set_once(conn, "journal_id", world.ids.new()))
    return AnchorWriter(world.line, journal_id=journal_id, signer=signer, clock=world.clock)


async def verified(world: World) -> ProofReport:
    report = await world.engine.read(verify)
    assert report.ok, report.problems
    return report


async def test_what_has_moved_is_anchored_and_nothing_else(begin: Begin, signer: KeySigner) -> None:
    world = await begin(ECHO)
    moved = await an_anchoring(world, signer)
    await world.ask("Hello.", key="one")
    await world.ask("Hello.", key="two")
    await world.quiet()
    await moved.drop()
    report = await verified(world)
    assert (report.anchors, report.after_anchor) == (1, 0)
    await moved.drop()
    assert (await verified(world)).anchors == 1, "nothing has moved"
    await world.ask("Again.", key="two")
    await world.quiet()
    assert (await verified(world)).after_anchor > 0
    await moved.drop()
    latest = await world.engine.read(anchors.latest)
    assert latest is not None
    assert latest.body.count('["') == 1, "only the tape that has moved is in the second anchor"


async def test_what_an_earlier_daemon_left_is_anchored_at_the_start(
    begin: Begin, signer: KeySigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anchors, "MAX_TAPES", 2)
    world = await begin(ECHO)
    for number in range(5):
        await world.ask("Hello.", key=f"session {number}")
    await world.quiet()
    moved = await an_anchoring(world, signer)
    task = asyncio.create_task(moved.run())

    async def look() -> bool:
        return (await verified(world)).after_anchor == 0

    done: bool = await eventually(look)
    assert done
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await verified(world)).anchors == 3


async def test_a_tape_that_moves_while_it_is_anchored_waits_for_the_next_anchor(
    begin: Begin, signer: KeySigner
) -> None:
    """Under steady load some tape has always moved; one drop comes to its end all the same."""
    world = await begin(ECHO)
    moved = await an_anchoring(world, signer)
    said = await world.say("Hello.")
    await world.ended(said)
    await world.quiet()
    writes = 0

    async def rename() -> None:
        nonlocal writes
        writes += 1
        assert writes < 10, "the drop never rests"
        await world.sessions.rename(ANA, said.session_id, f"title {writes}")

    world.line.before_write = rename
    await moved.drop()
    report = await verified(world)
    assert (report.anchors, writes) == (1, 1)
    await moved.drop()
    assert (await verified(world)).anchors == 2, "what moved meanwhile is in the next anchor"


@on_sqlite
async def test_anchors_are_dropped_again_and_again(
    begin: Begin, signer: KeySigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anchoring, "EVERY_SECONDS", 0.01)
    world = await begin(ECHO)
    moved = await an_anchoring(world, signer)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(moved.run())
        for number in range(2):
            await world.ask("Hello.")
            await world.quiet()

            async def look(number: int = number) -> bool:
                report = await verified(world)
                return report.after_anchor == 0 and report.anchors > number

            done: bool = await eventually(look)
            assert done
        task.cancel()


async def test_what_could_not_be_anchored_is_kept_for_the_next_time(begin: Begin, signer: KeySigner) -> None:
    world = await begin(ECHO)
    moved = await an_anchoring(world, signer)
    await world.ask("Hello.")
    await world.quiet()

    async def refuse() -> None:
        raise StorageFull

    async def nothing() -> None:
        pass

    world.line.before_write = refuse
    with pytest.raises(StorageFull):
        await moved.drop()
    world.line.before_write = nothing
    await moved.drop()
    assert (await verified(world)).after_anchor == 0
