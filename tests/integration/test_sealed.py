"""A secret that comes in is sealed in the vault: nothing that is recorded, shown or sent to a model has its value."""

# ruff: noqa: ASYNC240
import json
from pathlib import Path

import pytest

from palyra.core.events import InputMode, InputSteered, PolicyDecided, RunAccepted, ToolFinished
from palyra.core.message import Inbound
from palyra.core.model.prompt import Message, Role
from palyra.core.policy.approval import Approval
from palyra.core.run.state import RunStatus
from palyra.core.session import SessionRef
from palyra.core.text.scanner_signals import SECRET
from palyra.core.text.secret_markers import REMOVED, marker, markers_in
from palyra.core.tool import CallOutcome, JsonObject, Risk, ToolCall, Verdict
from palyra.gateway.grpc.pb import vault_pb2
from palyra.gateway.grpc.secrets import SecretMethods
from palyra.journal import table_dump
from palyra.journal.content import artifacts
from palyra.journal.engines.base import Connection
from palyra.journal.stores.idempotency_keys import IdempotencyKeyConflict
from palyra.providers.scripted import Script, ScriptCall
from palyra.runs.services.sealing import SealedSecretNotFound
from palyra.tools.base import ToolContext, tool
from tests.integration.cast import ECHO, first_calls
from tests.integration.conftest import Begin
from tests.support.builders import ANA
from tests.support.world import BEN, Said, World

KEY = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
PASSWORD = "q8#Vt2!mZp$xK"
BODY = "MIIEpAIBAAKCAQEA1fT9x0Zq7Wk4JmR2"
PEM = "-----BEGIN PRIVATE KEY-----\n" + (BODY * 2 + "\n") * 5 + "-----END PRIVATE KEY-----"
ENV = f"# settings\nDB_PASSWORD={PASSWORD}\nGITHUB_TOKEN={KEY}\nDEBUG=1\n"


@pytest.fixture(autouse=True)
def env(workspace: Path) -> Path:
    (workspace / ".env").write_text(ENV)
    return workspace / ".env"


async def everything(world: World) -> str:
    """Return all rows of the journal, and the whole of every prompt."""
    lines: list[bytes] = []
    await world.engine.read(lambda conn: table_dump.write(conn, lines.append))
    return b"".join(lines).decode() + repr(world.prompts)


async def assert_sealed(world: World, *values: str) -> None:
    text = await everything(world)
    for value in values:
        assert value not in text
        assert json.dumps(value)[1:-1] not in text


async def markers(world: World) -> dict[str, str]:
    """Return the marker of each sealed value of Ana's."""
    found = await world.seals.page(ANA, limit=100)
    return {await world.seals.reveal(ANA, one.sealed_id): marker(one.sealed_id) for one in found}


async def finished(world: World, run: Said) -> list[ToolFinished]:
    return [event for event in await world.events(run) if isinstance(event, ToolFinished)]


async def decided(world: World, run: Said) -> PolicyDecided:
    return [event for event in await world.events(run) if isinstance(event, PolicyDecided)][-1]


async def question(world: World, run: Said) -> Approval:
    await world.reaches(run, RunStatus.WAITING)
    (found,) = await world.approvals.page(ANA, only_open=True, before=None, limit=10)
    return found


def calls(tool: str, **arguments: object) -> Script:
    return first_calls(ScriptCall(tool=tool, arguments=dict(arguments)))


# -- messages


async def test_a_key_in_a_message_is_sealed_and_the_person_is_told(begin: Begin) -> None:
    world = await begin(first_calls())
    said = await world.say(f"my key is {KEY}, keep it")
    await world.ended(said)

    await assert_sealed(world, KEY)
    assert said.sealed == 1
    (accepted,) = [event for event in await world.events(said) if isinstance(event, RunAccepted)]
    assert accepted.text == f"my key is {(await markers(world))[KEY]}, keep it"
    assert (accepted.sealed, accepted.removed) == (1, 0)
    assert accepted.text in repr(world.prompts)


async def test_a_value_has_one_marker_for_one_principal_and_another_for_the_next(begin: Begin) -> None:
    world = await begin(first_calls())
    texts = []
    for who, key in ((ANA, "one"), (ANA, "two"), (BEN, "three")):
        said = await world.say(f"it is {KEY}", who=who, key=key)
        texts.append(next(event.text for event in await world.events(said) if isinstance(event, RunAccepted)))

    assert texts[0] == texts[1]
    assert markers_in(texts[0]) != markers_in(texts[2])
    await assert_sealed(world, KEY)
    assert await world.seals.open(BEN, markers_in(texts[0])) == {}


async def test_steered_and_attached_messages_are_sealed(begin: Begin, workspace: Path) -> None:
    world = await begin(calls("files.write", path="notes.txt", text="x", mode="replace"))
    world.inbox = True
    said = await world.say("Do it.")
    await question(world, said)
    steered = await world.say(f"no: use {KEY}", mode=InputMode.STEER)
    await world.seen(said, "approval_requested", times=2)
    await world.cancel(said)
    await world.ended(said)

    assert steered.sealed == 1
    (event,) = [event for event in await world.events(said) if isinstance(event, InputSteered)]
    assert event.sealed == 1
    history = (
        Message(role=Role.USER, text=f"DB_PASSWORD={PASSWORD}"),
        Message(
            role=Role.ASSISTANT,
            text="",
            calls=(ToolCall(call_id="c1", tool="login", arguments={"deep": [f"token: {KEY}"]}),),  # type: ignore[arg-type]
        ),
        Message(role=Role.TOOL, text=f"{PEM} was used", call_id="c1"),  # type: ignore[arg-type]
    )
    given = Inbound(principal=ANA, text="and now?", session=SessionRef(key="other"), history=history)
    accepted = await world.intake.accept(given)

    assert accepted.sealed == 3
    await assert_sealed(world, KEY, PASSWORD, BODY)


async def test_the_same_request_again_is_the_same_run_and_another_secret_is_another_request(begin: Begin) -> None:
    world = await begin(first_calls())
    first = await world.say(f"use {KEY}", idempotency_key="k")
    again = await world.say(f"use {KEY}", idempotency_key="k")
    assert (again.run_id, again.repeated) == (first.run_id, True)
    with pytest.raises(IdempotencyKeyConflict):
        await world.say(f"use {KEY[:-1]}b", idempotency_key="k")
    await world.ended(first)


async def test_a_text_that_looks_like_a_marker_is_a_text(begin: Begin, workspace: Path) -> None:
    fake = marker("a" * 16)
    world = await begin(calls("files.write", path="notes.txt", text=f"see {fake}\n", mode="replace"))
    world.inbox = True
    said = await world.say(f"what is {fake}?")
    await world.approvals.resolve(ANA, (await question(world, said)).approval_id, allow=True)
    await world.ended(said)

    assert (workspace / "notes.txt").read_text() == f"see {fake}\n"


# -- results


async def test_what_a_tool_reads_is_sealed_and_says_where_it_came_from(begin: Begin, env: Path) -> None:
    world = await begin(calls("files.read", path=".env"))
    said = await world.say("Read it.")
    await world.ended(said)

    (event,) = await finished(world, said)
    assert event.sealed == 2
    assert SECRET in event.signals
    known = await markers(world)
    assert event.text.endswith(f"DB_PASSWORD={known[PASSWORD]}\nGITHUB_TOKEN={known[KEY]}\nDEBUG=1\n")
    await assert_sealed(world, KEY, PASSWORD)
    assert {one.origins for one in await world.seals.page(ANA, limit=10)} == {(f"file:{env}",)}


async def test_a_value_that_was_sealed_is_known_without_its_name(begin: Begin, workspace: Path) -> None:
    (workspace / "log.txt").write_text(f"tried {PASSWORD} in vain\n")
    script = first_calls(
        ScriptCall(tool="files.read", arguments={"path": ".env"}),
        ScriptCall(tool="files.read", arguments={"path": "log.txt"}),
    )
    world = await begin(script)
    await world.ended(await world.say("Read them."))
    again = await world.say("Read them again.", key="again")
    await world.ended(again)

    assert all(PASSWORD not in event.text for event in await finished(world, again))


async def test_a_long_result_is_sealed_in_the_part_that_is_kept_elsewhere_too(begin: Begin, workspace: Path) -> None:
    long = f"token: {KEY}\n" + "word " * 20_000 + f"DB_PASSWORD={PASSWORD}\n" + "word " * 20_000

    @tool(name="test.long", risk=Risk.LOW, repeatable=True, read_only=True)
    async def say_much(context: ToolContext) -> str:
        """Say much."""
        return long

    world = await begin(calls("test.long"), tools=[say_much])
    said = await world.say("Do it.")
    await world.ended(said)

    (event,) = await finished(world, said)
    assert event.artifact is not None
    artifact_id = event.artifact

    def query(conn: Connection) -> bytes:
        return artifacts.read(conn, artifact_id, ANA, start=0, length=1_000_000)[1]

    kept = (await world.engine.read(query)).decode()
    known = await markers(world)
    assert kept == long.replace(KEY, known[KEY]).replace(PASSWORD, known[PASSWORD])


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_a_crash_leaves_no_marker_without_its_value(begin: Begin) -> None:
    world = await begin(calls("files.read", path=".env"))
    for commits in range(1, 40):
        world.dies_after(commits)
        try:
            said = await world.say(f"I also have {KEY}b", key=f"s{commits}")
            died = await world.dies_before_end_of(said)
        except Exception:
            died = True
        text = await everything(world) if not world.line.cut else ""
        if world.line.cut:
            await world.crash()
            text = await everything(world)
        opened = await world.seals.open(ANA, markers_in(text))
        assert opened.keys() == markers_in(text)
        assert KEY not in text
        assert PASSWORD not in text
        if not died:
            break
    assert commits > 3
    await world.crash()


# -- without a key


async def test_without_its_key_the_vault_loses_a_secret_and_nothing_else(begin: Begin, workspace: Path) -> None:
    world = await begin(calls("files.read", path=".env"))
    await world.ended(await world.say(f"it is {KEY}"))
    (workspace.parent / "vault.key").unlink()
    said = await world.say(f"it is {PEM}, really", key="other")
    await world.ended(said)

    (accepted,) = [event for event in await world.events(said) if isinstance(event, RunAccepted)]
    assert accepted.text == f"it is {REMOVED}, really"
    assert (accepted.sealed, accepted.removed) == (0, 1)
    assert (await finished(world, said))[0].removed == 2
    assert not (workspace.parent / "vault.key").exists()
    await assert_sealed(world, PASSWORD, KEY, PEM)


# -- back to where it came from


async def predicted(begin: Begin, place: Path | str) -> tuple[World, dict[str, str]]:
    """Return a world in which the file was read, and its markers: a value always has the same one."""
    world = await begin(calls("files.read", path=".env"))
    await world.ended(await world.say("Read it.", key="first"))
    return world, await markers(world)


async def test_a_file_is_written_back_with_its_values(begin: Begin, place: Path | str, env: Path) -> None:
    _, known = await predicted(begin, place)
    text = f"DB_PASSWORD={known[PASSWORD]}\nGITHUB_TOKEN={known[KEY]}\nDEBUG=0\n"
    world = await begin(calls("files.write", path=".env", text=text, mode="replace"))
    world.inbox = True
    said = await world.say("Switch it off.")
    asked = await question(world, said)
    assert asked.arguments["text"] == text
    assert f" DB_PASSWORD={known[PASSWORD]}\n" in asked.effect.detail
    await world.approvals.resolve(ANA, asked.approval_id, allow=True)
    await world.ended(said)

    assert (await finished(world, said))[0].outcome is CallOutcome.OK
    assert env.read_text() == f"DB_PASSWORD={PASSWORD}\nGITHUB_TOKEN={KEY}\nDEBUG=0\n"
    await assert_sealed(world, KEY, PASSWORD)


async def test_a_file_whose_values_are_gone_gets_them_back(begin: Begin, place: Path | str, env: Path) -> None:
    _, known = await predicted(begin, place)
    env.write_text("DEBUG=1\n")
    world = await begin(calls("files.write", path=".env", text=f"TOKEN={known[KEY]}\n", mode="append"))
    world.inbox = True
    said = await world.say("Put it back.")
    asked = await question(world, said)
    assert f"+TOKEN={known[KEY]}\n" in asked.effect.detail
    await world.approvals.resolve(ANA, asked.approval_id, allow=True)
    await world.ended(said)

    assert env.read_text() == f"DEBUG=1\nTOKEN={KEY}\n"
    await assert_sealed(world, KEY)


@pytest.mark.parametrize("with_key", [False, True])
async def test_a_patch_is_made_of_what_the_model_has_seen(
    begin: Begin, place: Path | str, env: Path, with_key: bool
) -> None:
    if with_key:
        # The key takes one line where the model sees it, and seven in the file.
        env.write_text(f"{PEM}\n{ENV}")
    _, known = await predicted(begin, place)
    first = 2 if with_key else 1
    patch = (
        f"--- a/.env\n+++ b/.env\n@@ -{first},4 +{first},4 @@\n # settings\n DB_PASSWORD={known[PASSWORD]}\n"
        f"-GITHUB_TOKEN={known[KEY]}\n+GH_TOKEN={known[KEY]}\n DEBUG=1\n"
    )
    world = await begin(calls("files.patch", patch=patch))
    world.inbox = True
    said = await world.say("Rename it.")
    asked = await question(world, said)
    assert f"-GITHUB_TOKEN={known[KEY]}\n+GH_TOKEN={known[KEY]}\n" in asked.effect.detail
    await world.approvals.resolve(ANA, asked.approval_id, allow=True)
    await world.ended(said)

    begun = f"{PEM}\n" if with_key else ""
    assert env.read_text() == begun + ENV.replace("GITHUB_TOKEN", "GH_TOKEN")
    await assert_sealed(world, KEY, PASSWORD)


async def test_a_patch_beside_a_secret_shows_a_marker_and_its_failure_too(begin: Begin, env: Path) -> None:
    patch = "--- a/.env\n+++ b/.env\n@@ -3,2 +3,2 @@\n GITHUB_TOKEN=wrong\n-DEBUG=1\n+DEBUG=0\n"
    world = await begin(calls("files.patch", patch=patch))
    world.inbox = True
    said = await world.say("Switch it off.")
    await world.ended(said)

    assert "GITHUB_TOKEN=[sealed:" in (await decided(world, said)).reason
    await assert_sealed(world, KEY, PASSWORD)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("files.write", {"path": "copy.txt", "text": "K={}"}),
        ("files.patch", {"patch": "--- /dev/null\n+++ b/copy.txt\n@@ -0,0 +1 @@\n+K={}\n"}),
        ("shell.run", {"command": "echo {}"}),
        ("http.fetch", {"url": "https://example.org/?k={}"}),
        ("http.fetch", {"url": "https://example.org/", "headers": {"X-Key": "{}"}}),
        ("files.search", {"text": "{}"}),
        ("time.now", {"zone": "{}"}),
    ],
)
async def test_anywhere_else_the_call_is_refused(
    begin: Begin, place: Path | str, workspace: Path, tool: str, arguments: JsonObject
) -> None:
    _, known = await predicted(begin, place)
    filled = json.loads(json.dumps(arguments).replace("{}", known[KEY]))
    world = await begin(calls(tool, **filled))
    world.inbox = True
    said = await world.say("Send it.")
    await world.ended(said)

    verdict = await decided(world, said)
    assert (verdict.verdict, verdict.policies) == (Verdict.DENY, ("secret_marker_not_allowed",))
    assert known[KEY] in verdict.reason
    assert "palyra secrets set" in verdict.reason
    assert not (workspace / "copy.txt").exists()
    assert await world.approvals.page(ANA, only_open=True, before=None, limit=10) == []
    await assert_sealed(world, KEY)


async def test_what_the_model_makes_up_is_sealed_and_goes_where_it_meant_it_to(begin: Begin, workspace: Path) -> None:
    made_up = "npm_k3Jq0dYk2b9cUuV7aQ1eZpL5nR8tW4sG6hMf"
    world = await begin(calls("files.write", path="new.txt", text=f"token={made_up}\n"))
    world.inbox = True
    said = await world.say("Make one up.")
    asked = await question(world, said)
    assert "+token=[sealed:" in asked.effect.detail
    await world.approvals.resolve(ANA, asked.approval_id, allow=True)
    await world.ended(said)

    assert (workspace / "new.txt").read_text() == f"token={made_up}\n"
    await assert_sealed(world, made_up)


async def test_arguments_that_a_person_writes_are_sealed_and_carried_out(begin: Begin, workspace: Path) -> None:
    world = await begin(calls("files.write", path="notes.txt", text="x", mode="replace"))
    world.inbox = True
    said = await world.say("Do it.")
    asked = await question(world, said)
    mine: JsonObject = {"path": "notes.txt", "text": f"{PEM}\n", "mode": "replace"}
    await world.approvals.resolve(ANA, asked.approval_id, allow=True, reason=f"as {KEY} says", arguments=mine)
    await world.ended(said)

    assert (workspace / "notes.txt").read_text() == f"{PEM}\n"
    await assert_sealed(world, KEY, BODY)


async def test_nothing_that_a_shell_acts_on_hides_behind_a_marker(begin: Begin) -> None:
    hidden = 'DB_PASSWORD="q8$(reboot)Vt2mZpxK"; ls'
    world = await begin(calls("files.write", path="run.sh", text=hidden))
    world.inbox = True
    asked = await question(world, await world.say("Do it."))
    assert "$(reboot)" in asked.effect.detail


async def test_where_a_value_came_from_is_proved(begin: Begin, place: Path | str, env: Path) -> None:
    first, known = await predicted(begin, place)
    copy = env.parent / "copy.txt"
    await first.engine.write(
        lambda conn: conn.execute("UPDATE sealed_origins SET origin = :origin", {"origin": f"file:{copy}"})
    )
    world = await begin(calls("files.write", path="copy.txt", text=f"K={known[KEY]}"))
    world.inbox = True
    said = await world.say("Send it.")
    await world.ended(said)

    assert (await decided(world, said)).policies == ("secret_marker_not_allowed",)


async def test_sealed_secrets_are_listed_page_by_page_over_grpc(begin: Begin) -> None:
    world = await begin(ECHO)
    for text in (KEY, PEM):
        await world.ended(await world.say(f"It is {text}"))
    methods = SecretMethods(world.secrets, world.seals)
    first = await methods.list_sealed(vault_pb2.ListSealedRequest(limit=1), ANA)
    last = await methods.list_sealed(vault_pb2.ListSealedRequest(limit=1, cursor=first.next_cursor), ANA)
    sealed = await world.seals.page(ANA, limit=10)
    assert [one.sealed_id for one in (*first.sealed, *last.sealed)] == [one.sealed_id for one in sealed]
    assert (len(first.sealed), len(last.sealed), last.next_cursor) == (1, 1, "")


async def test_a_value_that_is_forgotten_is_gone_and_its_marker_is_a_text(begin: Begin, place: Path | str) -> None:
    world, known = await predicted(begin, place)
    (sealed_id,) = markers_in(known[KEY])
    with pytest.raises(SealedSecretNotFound):
        await world.seals.delete(BEN, sealed_id)
    with pytest.raises(SealedSecretNotFound):
        await world.seals.reveal(BEN, sealed_id)
    await world.seals.delete(ANA, sealed_id)
    with pytest.raises(SealedSecretNotFound):
        await world.seals.reveal(ANA, sealed_id)
    assert await world.seals.revealed(ANA, known[KEY]) == known[KEY]
