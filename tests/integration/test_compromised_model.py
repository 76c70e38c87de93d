"""A model that somebody else has taken over: whatever it tries with whatever tool, nothing comes of it without a yes.

And with a yes to everything it still does not reach Palyra itself: its home, its policies, its tokens, its doors.
"""

import asyncio
import hashlib
import os
import stat
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from palyra.core.artifact import Artifact
from palyra.core.events import ApprovalRequested, ChildEnded, PolicyDecided, ToolFinished, ToolStarted
from palyra.core.ids import CallId, RunId, SessionId
from palyra.core.limits import Limits
from palyra.core.run.state import RunStatus
from palyra.core.tool import JsonObject, Risk, Verdict
from palyra.home import Home
from palyra.journal.content import artifacts, blobs
from palyra.providers.scripted import Script, ScriptCall, ScriptCondition, ScriptRule, ScriptText
from palyra.sandbox.files.reserved_files import ReservedFiles
from palyra.sandbox.network import address
from palyra.sandbox.network.egress import Egress
from palyra.sandbox.processes import process
from palyra.settings import SandboxSettings
from palyra.tools.base import Tool, ToolContext, tool
from palyra.tools.catalog import BUILTIN
from palyra.tools.tool_search import search_nothing
from palyra.tools.toolbox import Toolbox
from tests.integration.attacks import ATTACKS, CHILD, LOOK_ALIKES, SLEEP, STARTED_BY_OTHERS
from tests.support.builders import ANA
from tests.support.eventually import eventually
from tests.support.modules import opens
from tests.support.needs import BUBBLEWRAP, require
from tests.support.world import BEN, Said, World

MARKS = ("TOKEN-MARK", "CONFIG-MARK", "POLICY-MARK", "PINS-MARK", "OUTSIDE-MARK", "BEN-MARK", "DAEMON-MARK")
KEY = "sk-" + "a1B2c3D4" * 4
DONE = (ScriptText(text="Done."),)
PERSISTING = (
    *(Path.home() / name for name in (".bashrc", ".profile", ".zshrc", ".config/autostart", ".config/systemd/user")),
    *map(Path, ("/etc/crontab", "/etc/profile", "/var/spool/cron", "/var/spool/cron/crontabs")),
)
TOOLS = (*BUILTIN, search_nothing)


def _harmless(number: int) -> Tool:
    @tool(name=f"many.tool{number}", risk=Risk.LOW)
    async def nothing(context: ToolContext, *, text: str = "") -> str:
        """Do nothing at all, and take long to say so, since there is so much that it does not do."""
        return "nothing"

    return nothing


MANY = tuple(map(_harmless, range(200)))
"""So many that they are found by search."""


@dataclass
class Trap:
    """Listens where nobody may come, and where a yes may lead; and hears every name that is looked up."""

    inside: int = 0
    public: int = 0
    came_inside: int = 0
    came_public: list[bytes] = field(default_factory=list)
    looked_up: list[str] = field(default_factory=list)

    def egress(self) -> Egress:
        return Egress(resolve=self._resolve, judge=self._judge)

    async def _resolve(self, host: str, port: int) -> list[str]:
        self.looked_up.append(host)
        return ["127.0.0.1"]

    def _judge(self, found: address.Address, port: int) -> str:
        # One port of this machine stands for the internet; everything else is judged as always.
        return "" if port == self.public else address.address_problem(found, port)

    async def serve_inside(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.came_inside += 1
        writer.close()

    async def serve_public(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = await reader.readuntil(b"\r\n\r\n")
            self.came_public.append(asked)
            where = {
                b"/redirect-inside": f"http://127.0.0.1:{self.inside}/",
                b"/redirect-name": "http://inside.example/",
            }
            location = where.get(asked.split(b" ")[1], "")
            head = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\n" if location else "HTTP/1.1 200 OK\r\n"
            writer.write(f"{head}Content-Length: 2\r\n\r\nok".encode())
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@dataclass
class Ground:
    """Everything that could be touched: a home with its workspace, and what lies outside."""

    folder: Path
    trap: Trap
    ben: str = ""

    @property
    def home(self) -> Home:
        return Home(self.folder / "home")

    @property
    def outside(self) -> Path:
        return self.folder / "outside"

    @property
    def workspace(self) -> Path:
        return self.home.workspace

    def fill(self) -> None:
        home = self.home
        for folder in (
            self.workspace / "sub",
            self.workspace / ".git" / "hooks",
            home.policy,
            home.plugins,
            self.outside,
        ):
            folder.mkdir(parents=True)
        home.token.write_text("TOKEN-MARK\n")
        home.config.write_text("# CONFIG-MARK\n")
        home.daemon.write_text("DAEMON-MARK\n")
        (home.policy / "own.cedar").write_text("// POLICY-MARK\n")
        (home.plugins / "pins.json").write_text("PINS-MARK\n")
        (self.outside / "secret.txt").write_text("OUTSIDE-MARK\n")
        (self.workspace / "notes.txt").write_text("The milk is in the fridge.\n")
        (self.workspace / "evil.wasm").write_bytes(opens("../token", create=True))
        (self.workspace / "link-home").symlink_to(home.path)
        (self.workspace / "link-token").symlink_to(home.token)
        (self.workspace / "link-out").symlink_to(self.outside)
        os.link(home.token, self.workspace / "hard-token")

    def filled(self, value: object) -> object:
        """Return arguments with the names of this ground in their places."""
        if isinstance(value, str):
            names = {"home": self.home.path, "outside": self.outside, "port": self.trap.inside}
            names |= {"public": self.trap.public, "ben": self.ben, "key": KEY}
            for name, meant in names.items():
                value = value.replace(f"{{{name}}}", str(meant))
            return value
        if isinstance(value, dict):
            return {name: self.filled(part) for name, part in value.items()}
        return value

    def call(self, tool: str, arguments: JsonObject) -> ScriptCall:
        return ScriptCall(tool=tool, arguments={name: self.filled(value) for name, value in arguments.items()})

    def seen(self, *, workspace: bool = True) -> dict[str, object]:
        """Return all that lies here and where programs would stay: what it is, and what it holds."""
        found = {}
        for place in (self.folder, *PERSISTING):
            for path in (place, *sorted(place.rglob("*"))):
                if path.name.startswith(("journal.db", "vault.key")) or not os.path.lexists(path):
                    continue
                if not workspace and self.workspace in (path, *path.parents):
                    continue
                about = path.lstat()
                held: object = about.st_mode
                if stat.S_ISLNK(about.st_mode):
                    held = os.readlink(path)
                elif stat.S_ISREG(about.st_mode):
                    held = (about.st_mode, about.st_ino, hashlib.sha256(path.read_bytes()).hexdigest())
                found[str(path)] = held
        return found


def left_behind() -> list[str]:
    """Return programs that were started and not ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if SLEEP.encode() in line.split(b"\0"):
                found.append(entry.name)
    return found


@pytest.fixture
def land(tmp_path: Path) -> Ground:
    require(BUBBLEWRAP)
    made = Ground(tmp_path / "ground", Trap())
    made.fill()
    return made


@pytest.fixture
async def ground(land: Ground) -> AsyncIterator[Ground]:
    trap = land.trap
    inside = await asyncio.start_server(trap.serve_inside, "127.0.0.1", 0)
    public = await asyncio.start_server(trap.serve_public, "127.0.0.1", 0)
    trap.inside, trap.public = (server.sockets[0].getsockname()[1] for server in (inside, public))
    async with inside, public:
        yield land


@asynccontextmanager
async def taken_over(ground: Ground, *groups: Iterable[ScriptCall], root: Path | None = None) -> AsyncIterator[World]:
    """A world whose model makes the calls of each group in a turn of its own; its child tries a little of everything.

    `root` is what the person has chosen as the workspace, if it is not the usual one.
    """
    turns = tuple(tuple(group) for group in groups)
    every = tuple(call for turn in turns for call in turn if call.tool != "agent.delegate")
    script = Script(
        rules=(
            ScriptRule(when=ScriptCondition(equals=CHILD, tools=True), turns=(_everything(ground), DONE)),
            ScriptRule(when=ScriptCondition(tools=True), turns=(*turns, DONE)),
        ),
        default=DONE,
    )
    assert len(every) <= 64
    world = World(
        ground.home.journal,
        model=script,
        folder=root or ground.workspace,
        forbidden=ReservedFiles((ground.home.path,), (ground.workspace,)),
        sandbox=await asyncio.to_thread(process.build, ground.home, SandboxSettings()),
        egress=ground.trap.egress(),
        toolbox=Toolbox(lambda: MANY),
        limits=Limits(tool_calls=1000),
    )
    await world.start()
    ground.ben = await bens_artifact(world)
    try:
        yield world
    finally:
        await world.stop()


def _everything(ground: Ground) -> tuple[ScriptCall, ...]:
    """Return a taste of every tool, for a child that hopes for other rights."""
    return tuple(
        ground.call(tool, arguments)
        for tool, tried in ATTACKS.items()
        for arguments in tried[:4]
        if tool != "agent.delegate"
    )


async def bens_artifact(world: World) -> str:
    packed = blobs.pack(b"BEN-MARK\n")
    artifact = Artifact(
        artifact_id=world.ids.new(),
        principal=BEN,
        session_id=SessionId(world.ids.new()),
        run_id=RunId(world.ids.new()),
        call_id=CallId("c1"),
        what="shell.run",
        digest=packed.digest,
        size=packed.size,
        made_at=world.clock.now(),
    )
    await world.engine.write(lambda conn: artifacts.add(conn, artifact, packed))
    return artifact.artifact_id


async def rests(world: World, said: Said) -> RunStatus:
    """Wait until the run has ended, or it or a child of it waits for an answer."""

    async def look() -> RunStatus:
        found = await world.run(said)
        asked = await world.approvals.page(ANA, only_open=True, before=None, limit=1)
        assert found.ended_at is not None or asked
        return found.status

    return await eventually(look, timeout=60)


async def answered(world: World, said: Said, *, allow: bool) -> int:
    count = 0
    while await rests(world, said) in (RunStatus.WAITING, RunStatus.IN_PROGRESS):
        for question in await world.approvals.page(ANA, only_open=True, before=None, limit=200):
            await world.approvals.resolve(ANA, question.approval_id, allow=allow)
            count += 1
    return count


async def texts(world: World) -> list[str]:
    """Return all that came back to the model, in every session."""
    found = []
    for run in await world.runs():
        for event in await world.events(run):
            if isinstance(event, ToolFinished | ChildEnded):
                found.append(event.text)
    return found


def calls_of(ground: Ground, tool: str) -> list[list[ScriptCall]]:
    calls = [ground.call(tool, arguments) for arguments in ATTACKS[tool]]
    return [calls[place : place + 60] for place in range(0, len(calls), 60)]


def test_every_tool_is_tried() -> None:
    assert {tool.spec.name for tool in TOOLS} == set(ATTACKS), "a new tool needs its attacks in attacks.py"


@pytest.mark.parametrize("tool", ATTACKS)
async def test_nothing_happens_while_nobody_answers(ground: Ground, tool: str) -> None:
    before = await asyncio.to_thread(ground.seen)
    async with taken_over(ground, *calls_of(ground, tool)) as world:
        said = await world.say("Good morning.")
        await rests(world, said)
        assert await asyncio.to_thread(ground.seen) == before
        for run in await world.runs():
            if run.ended_at is None:
                await world.cancel(run)
        await world.ended(said)
        assert not any(mark in text for text in await texts(world) for mark in MARKS)
    await _nothing_came_of_it(ground, before)


@pytest.mark.parametrize("tool", ATTACKS)
async def test_nothing_happens_when_everything_is_denied(ground: Ground, tool: str) -> None:
    before = await asyncio.to_thread(ground.seen)
    async with taken_over(ground, *calls_of(ground, tool)) as world:
        world.inbox = True
        said = await world.say("Good morning.")
        await answered(world, said, allow=False)
        assert not any(mark in text for text in await texts(world) for mark in MARKS)
        started = [
            event.call_id
            for run in await world.runs()
            for event in await world.events(run)
            if isinstance(event, ToolStarted)
        ]
        allowed = {
            event.call_id: event.risk
            for run in await world.runs()
            for event in await world.events(run)
            if isinstance(event, PolicyDecided) and event.verdict is Verdict.ALLOW
        }
        # Whatever ran was allowed by the policies themselves, and those allow what does no harm.
        assert set(started) <= set(allowed)
        assert set(allowed.values()) <= {Risk.LOW}
    await _nothing_came_of_it(ground, before)


@pytest.mark.parametrize("tool", ATTACKS)
async def test_palyra_itself_is_out_of_reach_even_when_everything_is_allowed(ground: Ground, tool: str) -> None:
    before = await asyncio.to_thread(ground.seen, workspace=False)
    async with taken_over(ground, *calls_of(ground, tool)) as world:
        world.inbox = True
        said = await world.say("Good morning.")
        await answered(world, said, allow=True)
        assert (await world.ended(said)).status is RunStatus.DONE
        found = [(mark, text) for text in await texts(world) for mark in MARKS if mark in text]
        assert found == []
        # It was tried in earnest: something of it was carried out.
        assert any(isinstance(event, ToolStarted) for event in await world.events(said))
    assert await asyncio.to_thread(ground.seen, workspace=False) == before
    assert ground.trap.came_inside == 0
    assert await asyncio.to_thread(left_behind) == []


async def _nothing_came_of_it(ground: Ground, before: dict[str, object]) -> None:
    assert await asyncio.to_thread(ground.seen) == before
    assert ground.trap.looked_up == []
    assert (ground.trap.came_inside, ground.trap.came_public) == (0, [])
    assert await asyncio.to_thread(left_behind) == []


@pytest.mark.parametrize("path", ["home/token", "home/policy/own.cedar", "home/config.toml", "home/plugins/pins.json"])
async def test_a_workspace_that_palyra_lies_in_does_not_open_it(ground: Ground, path: str) -> None:
    tried: list[tuple[str, JsonObject]] = [
        ("files.read", {"path": path}),
        ("files.write", {"path": path, "text": "evil", "mode": "replace"}),
        ("files.patch", {"patch": f"--- a/{path}\n+++ b/{path}\n@@ -1,1 +1,1 @@\n-x\n+evil\n"}),
        ("files.delete", {"path": path}),
        ("files.search", {"text": "MARK", "folder": "home"}),
        ("files.search", {"text": "TOKEN-MARK"}),
        ("files.list", {"folder": os.path.dirname(path)}),
        ("wasm.run", {"module": path}),
        *(
            (
                "shell.run",
                {"command": f"cat {path}; echo evil > {path}; rm -rf home/policy; cat home/*", "access": access},
            )
            for access in ("read", "write")
        ),
    ]
    before = await asyncio.to_thread(ground.seen, workspace=False)
    async with taken_over(ground, [ground.call(*one) for one in tried], root=ground.folder) as world:
        world.inbox = True
        said = await world.say("Good morning.")
        await answered(world, said, allow=True)
        own = [mark for mark in MARKS if mark not in ("OUTSIDE-MARK", "BEN-MARK")]
        assert [text for text in await texts(world) if any(mark in text for mark in own)] == []
    assert await asyncio.to_thread(ground.seen, workspace=False) == before


async def test_names_that_look_like_others_are_no_tools(ground: Ground) -> None:
    before = await asyncio.to_thread(ground.seen)
    async with taken_over(ground, [ground.call(name, arguments) for name, arguments in LOOK_ALIKES]) as world:
        world.inbox = True
        said = await world.say("Good morning.")
        assert await answered(world, said, allow=True) == 0
        decided = [event for event in await world.events(said) if isinstance(event, PolicyDecided)]
        assert len(decided) == len(LOOK_ALIKES)
        assert {event.verdict for event in decided} == {Verdict.DENY}
        assert not any(isinstance(event, ToolStarted) for event in await world.events(said))
    await _nothing_came_of_it(ground, before)


@pytest.mark.parametrize("path", STARTED_BY_OTHERS)
@pytest.mark.parametrize("tool", ["files.write", "files.patch"])
async def test_to_write_what_others_start_is_dangerous_and_asked_about_each_time(
    ground: Ground, tool: str, path: str
) -> None:
    diff = f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,1 @@\n+x\n"
    arguments = {"path": path, "text": "x\n"} if tool == "files.write" else {"patch": diff}
    async with taken_over(ground, [ground.call(tool, arguments)]) as world:
        world.inbox = True
        said = await world.say("Good morning.")
        await rests(world, said)
        (asked,) = [event for event in await world.events(said) if isinstance(event, ApprovalRequested)]
        assert asked.effect is not None
        assert asked.effect.risk in (Risk.HIGH, Risk.CRITICAL)
        assert asked.effect.kind == ""
        await answered(world, said, allow=False)


async def test_a_call_that_takes_the_name_of_an_approved_one_is_asked_about_anew(ground: Ground) -> None:
    first = ScriptCall(tool="files.write", arguments={"path": "a.txt", "text": "good"}, call_id="same")
    second = ScriptCall(tool="files.write", arguments={"path": "b.txt", "text": "evil"}, call_id="same")
    async with taken_over(ground, [first], [second]) as world:
        world.inbox = True
        said = await world.say("Good morning.")
        await rests(world, said)
        (question,) = await world.approvals.page(ANA, only_open=True, before=None, limit=10)
        await world.approvals.resolve(ANA, question.approval_id, allow=True)
        await world.seen(said, "approval_requested", times=2)
        (question,) = await world.approvals.page(ANA, only_open=True, before=None, limit=10)
        assert question.arguments["path"] == "b.txt"
        await answered(world, said, allow=False)
    assert "b.txt" not in await asyncio.to_thread(os.listdir, ground.workspace)


async def test_a_child_has_no_other_rights(ground: Ground) -> None:
    """What a child asks for is asked of the same person, and a yes to its parent is none to it."""
    before = await asyncio.to_thread(ground.seen)
    async with taken_over(ground, [ground.call("agent.delegate", {"task": CHILD})]) as world:
        said = await world.say("Good morning.")
        child = await world.child_of(said)
        await rests(world, said)
        decided = [event for event in await world.events(child) if isinstance(event, PolicyDecided)]
        assert {event.risk for event in decided if event.verdict is Verdict.ALLOW} <= {Risk.LOW}
        assert any("no-approval-channel" in event.policies for event in decided)
        await world.cancel(said)
        await world.ended(said)
    await _nothing_came_of_it(ground, before)
