"""The doors to sessions: who finds which, and what can be done with one."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

import msgspec
import pytest

from palyra.core.errors import PalyraError, SearchQueryEmpty
from palyra.core.events import InputMode
from palyra.core.ids import IdInvalid, PrincipalId
from palyra.core.message import MessageEmpty, MessageTooLarge, TextInvalid
from palyra.core.run.state import RunStatus
from palyra.core.session import Session, SessionArchivedError, SessionNameInvalid, SessionNotFound, SessionRef
from palyra.core.session_events import SessionArchived, SessionRenamed, SessionReset, SessionUnarchived
from palyra.journal.stores import search
from palyra.providers.scripted import Script, ScriptCall, ScriptCondition, ScriptRule, ScriptText
from palyra.runs.services import session_export
from palyra.runs.services.agents import AgentMissing
from palyra.runs.services.sessions import SessionBusy, SessionReferenceConflict
from tests.integration.cast import ECHO, first_calls, held, inputs, on_sqlite
from tests.integration.conftest import Begin
from tests.support.builders import ANA
from tests.support.world import BEN, World

UNKNOWN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


async def resolve(world: World, **names: object) -> tuple[Session, bool]:
    return await world.sessions.resolve(ANA, SessionRef(**names))  # type: ignore[arg-type]


async def refusal(world: World, kind: type[PalyraError], **names: object) -> str:
    with pytest.raises(kind) as refused:
        await resolve(world, **names)
    return refused.value.detail


# -- resolving


async def test_a_session_is_made_once_and_found_by_id_key_and_label(begin: Begin) -> None:
    world = await begin(ECHO)
    made, created = await resolve(world, key="work", label="Work")
    assert created
    for names in (
        {"session_id": made.session_id},
        {"session_id": made.session_id.lower()},
        {"key": "work"},
        {"label": "Work"},
        {"session_id": made.session_id, "key": "work", "label": "Work"},
        {"key": "work", "require_existing": True},
    ):
        found, created = await resolve(world, **names)
        assert (found.session_id, created) == (made.session_id, False), names


async def test_without_a_name_each_session_is_a_new_one(begin: Begin) -> None:
    world = await begin(ECHO)
    assert (await resolve(world))[0].session_id != (await resolve(world))[0].session_id


async def test_names_of_different_sessions_do_not_go_together(begin: Begin) -> None:
    world = await begin(ECHO)
    work, _ = await resolve(world, key="work", label="Work")
    await resolve(world, key="home", label="Home")
    await refusal(world, SessionReferenceConflict, session_id=work.session_id, key="home")
    await refusal(world, SessionReferenceConflict, session_id=work.session_id, label="Home")
    await refusal(world, SessionReferenceConflict, key="work", label="Home")
    await refusal(world, SessionReferenceConflict, key="work", label="unknown")


async def test_a_label_that_another_session_has_is_a_mismatch_for_a_new_key(begin: Begin) -> None:
    world = await begin(ECHO)
    await resolve(world, label="Work")
    await refusal(world, SessionReferenceConflict, key="new", label="Work")
    with pytest.raises(SessionReferenceConflict):
        await world.say("Hello.", session=SessionRef(key="new", label="Work"))


@on_sqlite
async def test_names_are_neither_empty_nor_over_long_nor_unclean(begin: Begin) -> None:
    world = await begin(ECHO)
    for name in ("key", "label"):
        for bad in ("", "   ", "x" * 201):
            assert name in await refusal(world, SessionNameInvalid, **{name: bad})
        await refusal(world, TextInvalid, **{name: "a\0b"})
        await refusal(world, TextInvalid, **{name: "a\ud800"})
        assert (await resolve(world, **{name: "x" * 200}))[1]


@on_sqlite
async def test_a_malformed_id_is_told_from_an_unknown_one(begin: Begin) -> None:
    world = await begin(ECHO)
    for bad in ("", "nonsense", UNKNOWN[:-1], UNKNOWN + "0", "8" + UNKNOWN[1:], "I" * 26):
        assert "session id" in await refusal(world, IdInvalid, session_id=bad)
    await refusal(world, SessionNotFound, session_id=UNKNOWN)


async def test_what_must_exist_is_not_made(begin: Begin) -> None:
    world = await begin(ECHO)
    await refusal(world, SessionNotFound, key="work", require_existing=True)
    await refusal(world, SessionNotFound, label="Work", require_existing=True)
    await refusal(world, SessionNotFound, require_existing=True)
    assert await _sessions(world) == []


async def test_somebody_elses_session_looks_like_one_that_does_not_exist(begin: Begin) -> None:
    world = await begin(ECHO)
    his, _ = await world.sessions.resolve(BEN, SessionRef(key="secret", label="Secret"))
    doors: dict[str, Callable[[str], Awaitable[object]]] = {
        "resolve": lambda session_id: resolve(world, session_id=session_id),
        "say": lambda session_id: world.say("Hello.", session=SessionRef(session_id=session_id)),
        "rename": lambda session_id: world.sessions.rename(ANA, session_id, "Mine"),
        "reset": lambda session_id: world.sessions.reset(ANA, session_id),
        "archive": lambda session_id: world.sessions.archive(ANA, session_id),
        "unarchive": lambda session_id: world.sessions.unarchive(ANA, session_id),
        "cleanup": lambda session_id: world.sessions.cleanup(ANA, session_id),
    }
    for name, door in doors.items():
        told = set()
        for session_id in (his.session_id, UNKNOWN):
            with pytest.raises(SessionNotFound) as refused:
                await door(session_id)
            told.add((refused.value.detail, refused.value.code))
        assert len(told) == 1, name
    hers, created = await resolve(world, key="secret", label="Secret")
    assert created
    assert hers.session_id != his.session_id
    assert len(await world.tape(his.session_id)) == 1


@on_sqlite
async def test_a_stranger_without_an_agent_is_not_answered_and_leaves_no_session(begin: Begin) -> None:
    world = await begin(ECHO)
    nobody = PrincipalId("user:nobody")
    with pytest.raises(AgentMissing):
        await world.say("Hello.", who=nobody)
    with pytest.raises(SessionNotFound):
        await world.sessions.resolve(nobody, SessionRef(key="main", require_existing=True))


@on_sqlite
async def test_a_message_must_say_something_and_not_too_much(begin: Begin) -> None:
    world = await begin(ECHO)
    with pytest.raises(MessageEmpty):
        await world.say(" \n ")
    with pytest.raises(MessageTooLarge):
        await world.say("ä" * 128 * 1024 + "x")
    with pytest.raises(TextInvalid):
        await world.say("a\0b")
    assert await _sessions(world) == []
    said = await world.say("ä" * 128 * 1024)
    assert (await world.ended(said)).status is RunStatus.DONE


# -- reset


async def test_after_a_reset_the_model_sees_nothing_from_before_and_the_tape_still_has_it(begin: Begin) -> None:
    world = await begin(ECHO)
    said = await world.say("The code word is marmalade.")
    await world.ended(said)
    await world.quiet()
    before = await world.tape(said.session_id)
    session = await world.sessions.reset(ANA, said.session_id)
    assert session.reset_seq == len(before) + 1
    await world.ask("What was it?")
    assert inputs(world.prompts[-1]) == ["What was it?"]
    after = await world.tape(said.session_id)
    assert after[: len(before)] == before
    assert isinstance(after[len(before)].event, SessionReset)
    assert len(await world.messages(said)) == 4


async def test_a_message_may_reset_its_session_first(begin: Begin) -> None:
    world = await begin(ECHO)
    await world.ask("One.")
    said = await world.say("Two.", session=SessionRef(key="main", reset=True))
    await world.ended(said)
    assert inputs(world.prompts[-1]) == ["Two."]
    await world.ask("Three.")
    assert inputs(world.prompts[-1]) == ["Two.", "Three."]


async def test_a_session_in_use_is_neither_reset_nor_archived(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    said = await world.say("Hello.")
    with pytest.raises(SessionBusy):
        await world.sessions.reset(ANA, said.session_id)
    with pytest.raises(SessionBusy):
        await world.sessions.archive(ANA, said.session_id)
    with pytest.raises(SessionBusy):
        await world.say("Again.", session=SessionRef(key="main", reset=True))
    gate.set()
    await world.ended(said)
    assert not {"session_reset", "session_archived"} & set(await world.kinds(said.session_id))


# -- rename


@on_sqlite
async def test_a_title_is_changed_and_the_change_recorded(begin: Begin) -> None:
    world = await begin(ECHO)
    made, _ = await resolve(world)
    session = await world.sessions.rename(ANA, made.session_id, "  Groceries  ")
    assert session.title == "Groceries"
    event = (await world.events(made.session_id))[-1]
    assert isinstance(event, SessionRenamed)
    assert (event.title, event.actor) == ("Groceries", ANA)
    for bad in ("", "  ", "x" * 121):
        with pytest.raises(SessionNameInvalid):
            await world.sessions.rename(ANA, made.session_id, bad)
    with pytest.raises(TextInvalid):
        await world.sessions.rename(ANA, made.session_id, "a\0b")
    with pytest.raises(IdInvalid):
        await world.sessions.rename(ANA, "nonsense", "Groceries")


# -- archive


async def test_an_archived_session_is_put_away_keeps_its_key_and_comes_back(begin: Begin) -> None:
    world = await begin(ECHO)
    said = await world.say("Hello.")
    await world.ended(said)
    await world.quiet()
    for _ in range(2):  # the second time nothing happens
        session = await world.sessions.archive(ANA, said.session_id)
        assert session.archived_at is not None
    assert [listed.session_id for listed in await _sessions(world, archived=True)] == [said.session_id]
    assert await _sessions(world) == []
    with pytest.raises(SessionArchivedError):
        await world.say("Again.")
    for _ in range(2):
        session = await world.sessions.unarchive(ANA, said.session_id)
        assert session.archived_at is None
    events = [type(event) for event in await world.events(said.session_id)]
    assert events[-2:] == [SessionArchived, SessionUnarchived]
    assert (await world.say("Again.")).session_id == said.session_id


async def test_the_label_of_an_archived_session_may_be_used_again(begin: Begin) -> None:
    world = await begin(ECHO)
    old, _ = await resolve(world, label="Work")
    await world.sessions.archive(ANA, old.session_id)
    new, created = await resolve(world, label="Work")
    assert created
    with pytest.raises(SessionReferenceConflict, match="label 'Work'"):
        await world.sessions.unarchive(ANA, old.session_id)
    await world.sessions.archive(ANA, new.session_id)
    assert (await world.sessions.unarchive(ANA, old.session_id)).archived_at is None


# -- clean up


async def test_cleaning_up_cancels_what_is_open_archives_and_frees_the_key(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    first, second, third = await world.say("One."), await world.say("Two."), await world.say("Three.")
    await world.seen(first, "model_text")
    session = await world.sessions.cleanup(ANA, first.session_id)
    assert session.archived_at is not None
    assert session.key is None
    runs = await world.all_ended([first, second, third])
    assert {(run.status, run.reason) for run in runs} == {(RunStatus.CANCELLED, "the session was cleaned up")}
    assert len(world.prompts) == 1, "ending the active run must not start the next"
    gate.set()
    another = await world.say("Hello.")
    assert another.session_id != first.session_id
    await world.ended(another)
    event = next(event for event in await world.events(first.session_id) if isinstance(event, SessionArchived))
    assert event.freed_key == "main"


async def test_cleaning_up_twice_changes_nothing_more(begin: Begin) -> None:
    world = await begin(ECHO)
    said = await world.say("Hello.")
    await world.ended(said)
    await world.quiet()
    await world.sessions.cleanup(ANA, said.session_id)
    before = await world.tape(said.session_id)
    await world.sessions.cleanup(ANA, said.session_id)
    assert await world.tape(said.session_id) == before


async def test_an_archived_session_may_still_be_cleaned_up(begin: Begin) -> None:
    world = await begin(ECHO)
    said = await world.say("Hello.")
    await world.ended(said)
    await world.sessions.archive(ANA, said.session_id)
    assert (await world.sessions.cleanup(ANA, said.session_id)).key is None
    assert (await world.say("Hello.")).session_id != said.session_id


async def test_messages_that_race_a_clean_up_come_before_it_or_go_elsewhere_or_are_refused(begin: Begin) -> None:
    world = await begin(ECHO)
    for number in range(10):
        first = await world.say("One.", key=f"session {number}")

        async def say(number: int = number) -> str:
            try:
                return (await world.say("Two.", key=f"session {number}")).run_id
            except SessionArchivedError:
                return ""

        async with asyncio.TaskGroup() as group:
            cleaning = group.create_task(world.sessions.cleanup(ANA, first.session_id))
            saying = [group.create_task(say()) for _ in range(4)]
        assert cleaning.result().archived_at is not None
        await world.all_ended([first, *(run_id for run_id in (task.result() for task in saying) if run_id)])
        kinds = await world.kinds(first.session_id)
        assert "run_accepted" not in kinds[kinds.index("session_archived") :]


# -- search and export


async def test_what_was_said_is_found_by_its_owner_alone(begin: Begin) -> None:
    world = await begin(ECHO)
    hers = await world.say("The code word is marmalade, not Käsekuchen.")
    his = await world.say("Marmalade is for breakfast.", who=BEN)
    await world.ended(hers)

    async def find(query: str) -> list[str]:
        return [hit.session_id for hit in await world.engine.read(lambda conn: search.find(conn, ANA, query, limit=10))]

    for query in ("marmalade", "MARMALADE", "code word", "marma", "Käsekuchen", '"marmalade" code*', "word & code"):
        assert set(await find(query)) == {hers.session_id}, query
    assert await find("breakfast") == []
    assert his.session_id not in await find("marmalade")
    with pytest.raises(SearchQueryEmpty):
        await find("!?")


async def test_a_session_is_exported_whole_as_json(begin: Begin) -> None:
    world = await begin(first_calls(ScriptCall(tool="time.now")))
    said = await world.say("What time is it?")
    await world.ended(said)
    await world.quiet()
    session = await world.session(said)
    document = msgspec.json.decode("".join([part async for part in session_export.as_json(world.engine, session)]))
    assert document["session"]["session_id"] == said.session_id
    entries = await world.tape(said.session_id)
    assert [item["tape_seq"] for item in document["tape"]] == [entry.tape_seq for entry in entries]
    assert [item["event"]["kind"] for item in document["tape"]] == [entry.kind for entry in entries]


async def test_a_session_is_exported_as_markdown_as_it_would_be_read(begin: Begin) -> None:
    looks = ScriptRule(
        when=ScriptCondition(contains="fence"),
        turns=((ScriptCall(tool="files.read", arguments={"path": "notes.txt"}),), (ScriptText(text="As **shown**."),)),
    )
    world = await begin(Script(rules=(looks,), default=(ScriptText(text="Hm."),)))
    said = await world.say("Show the fence.")
    await world.ended(said)
    await world.quiet()
    session = await world.session(said)
    page = "".join([part async for part in session_export.as_markdown(world.engine, session)])
    assert page.startswith(f"# Show the fence.\n\nSession {said.session_id}, begun {datetime.now():%Y-}")
    assert "## You, " in page
    assert '- calls `files.read` with `{"path":"notes.txt"}`' in page
    assert "```\nnotes.txt, 27 bytes, from line 1:\nThe milk is in the fridge.\n" in page
    assert page.endswith("As **shown**.\n")


@on_sqlite
async def test_a_long_session_is_exported_in_slices_without_a_gap(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_export, "SLICE", 3)
    world = await begin(ECHO)
    for number in range(5):
        said = await world.say(f"Number {number}.")
        await world.ended(said)
    await world.quiet()
    session = await world.session(said)
    page = "".join([part async for part in session_export.as_markdown(world.engine, session)])
    for number in range(5):
        assert page.count(f"\n\nNumber {number}.\n") == 1
        assert page.count(f"\n\nYou said: Number {number}.\n") == 1


async def _sessions(world: World, *, archived: bool = False) -> list[Session]:
    return await world.sessions.page(ANA, archived=archived, before=None, limit=100)


@on_sqlite
async def test_the_sessions_of_children_are_not_listed(begin: Begin) -> None:
    world = await begin(first_calls(ScriptCall(tool="agent.delegate", arguments={"task": "Do it."}), then="Done."))
    await world.ended(await world.say("Go."))
    assert len(await _sessions(world)) == 1


@on_sqlite
async def test_steering_and_interrupting_name_their_session_as_any_message_does(begin: Begin) -> None:
    world = await begin(ECHO)
    for mode in InputMode:
        with pytest.raises(SessionNotFound):
            await world.say("Hello.", session=SessionRef(session_id=UNKNOWN), mode=mode)
