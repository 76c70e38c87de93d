"""Workspace roots that a tenant replaces by links to get at files outside.

Each case first does with the folder itself what it then tries through the link, so that it cannot pass for nothing.
"""

import ctypes
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.sandbox.base import Tier
from tests.attack.case import attack, require
from tests.attack.ground import Ground, Tenant, play, proposing, results
from tests.support import modules
from tests.support.command import palyra
from tests.support.daemon import Daemon, Json, Line
from tests.support.needs import BUBBLEWRAP, TIERS
from tests.support.plugins import EXAMPLES, a_plugin, manifest

Call = tuple[str, Mapping[str, Any]]

OWN, OUTSIDE = "OWN-MARK", "OUTSIDE-MARK"
"""What stands in the tenant's files and in those outside. No call and no message names them."""
FILE, BESIDE = "notes.txt", "OUTSIDE-MARK-beside.txt"
CHANGED = "changed by the tenant\n"
RACING_RUNS = 3
_EXCHANGE = 2

READING: tuple[Call, ...] = (
    ("files.read", {"path": FILE}),
    ("files.list", {}),
    ("files.search", {"text": "-mark"}),
    ("files.search", {"glob": "*.txt"}),
)
CHANGING: tuple[Call, ...] = (
    ("files.write", {"path": FILE, "text": CHANGED, "mode": "replace"}),
    ("files.write", {"path": FILE, "text": CHANGED, "mode": "append"}),
    ("files.write", {"path": "deep/er/new.txt", "text": CHANGED}),
    ("files.patch", {"patch": f"--- /dev/null\n+++ b/patched.txt\n@@ -0,0 +1 @@\n+{CHANGED}"}),
    ("files.delete", {"path": FILE}),
)
SHELL: Call = ("shell.run", {"command": f"cat {FILE}; ls -a; echo x > made.txt; ls -a deep", "access": "write"})


class Scene:
    """A tenant whose agent works in a folder of its workspace, and a folder outside with the same names in it."""

    def __init__(self, ground: Ground, *calls: Call, script: Json = None, **settings: Any) -> None:
        self.outside = ground.folder / "outside"
        self.daemon = ground.daemon(script or proposing(*calls), **settings)
        self.ben = Tenant(self.daemon, "ben")
        self.root = self.ben.workspace / "sub"
        for folder, mark in ((self.root, OWN), (self.outside, OUTSIDE)):
            (folder / "deep").mkdir(parents=True)
            (folder / FILE).write_text(f"{mark}\n")
            (folder / "a.csv").write_text(f"{mark}\n1\n")
            (folder / "echo.wasm").write_bytes(modules.ECHOES)
        (self.outside / BESIDE).write_text("")
        self._before = _content(self.outside)
        self.name_root()

    def name_root(self) -> None:
        """Have the tenant's agent work in the folder."""
        (agent,) = self.ben.get("/agents")["agents"]
        body = {"name": agent["name"], "workspace_roots": [str(self.root)]}
        answer = self.ben.ask("PUT", f"/agents/{agent['agent_id']}", body=body)
        assert answer.status_code == 200, answer.text

    def replace(self, target: Path | str | None = None) -> None:
        """Put a link in the place of the folder."""
        self.root.rename(self.ben.workspace / "before")
        self.root.symlink_to(target or self.outside)

    def play(self, text: str, *, session: Json = None) -> list[Line]:
        """Play a run of the tenant's, and return its tape and those of the runs that it started."""
        tape = play(self.ben, text, session=session)
        for child in [line.event["child_run_id"] for line in tape if line.kind == "child_started"]:
            tape += self.ben.tape(f"/runs/{child}")
        return tape

    def control(self, text: str = "go") -> list[Line]:
        """Play a run that must reach the tenant's own files."""
        tape = self.play(text)
        if not any(OWN in line.text for line in tape):
            raise RuntimeError(f"the tenant's own files were not reached: {[line.text for line in tape[-8:]]}")
        return tape

    def check(self, *tapes: list[Line]) -> None:
        """Raise if anything outside was seen or changed."""
        for tape in tapes:
            assert results(tape) or any(line.kind == "policy_decided" for line in tape), "the run called nothing"
            seen = [line.text for line in tape if OUTSIDE in line.text]
            assert not seen, f"what is outside was seen: {seen}"
        assert _content(self.outside) == self._before, "what is outside was changed"


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@attack("a root that is a link to a folder outside, used by the tools for files")
def files(ground: Ground) -> None:
    scene = Scene(ground, *READING, *CHANGING, *READING)
    scene.control()
    (scene.root / FILE).write_text(f"{OWN}\n")
    scene.replace()
    scene.check(scene.play("again"))


@attack("roots that lead outside in other ways: relative, through a second link, through /proc, by a link further up")
def other_links(ground: Ground) -> None:
    scene = Scene(ground, *READING, ("files.write", {"path": "new.txt", "text": CHANGED}))
    scene.control()
    scene.replace()
    hop = scene.ben.workspace / "hop"
    hop.symlink_to(scene.outside)
    relative = os.path.relpath(scene.outside, scene.ben.workspace)
    targets = [relative, "hop", f"/proc/self/root{scene.outside}", f"/proc/{scene.daemon.pid}/cwd/{scene.outside}"]
    for target in targets if ground.rounds > 1 else ground.random.sample(targets, 2):
        scene.root.unlink()
        scene.root.symlink_to(target)
        scene.check(scene.play("again"))
    scene.root.unlink()
    (scene.root / "deep").mkdir(parents=True)
    body = {"name": "below", "workspace_roots": [str(scene.root / "deep")]}
    agent = scene.ben.post("/agents", body)["agent"]
    scene.ben.post(f"/agents/{agent['agent_id']}/default")
    scene.root.rename(scene.ben.workspace / "again")
    scene.root.symlink_to(scene.outside.parent)
    (scene.outside.parent / "deep").symlink_to(scene.outside)
    scene.check(scene.play("below"))


@attack("a root that is a link to the whole machine, the owner's workspace, Palyra's home or another tenant's folder")
def targets(ground: Ground) -> None:
    # As seen from /, it lies in a folder of the case's own.
    new = str(ground.folder / "outside" / "new.txt").removeprefix("/")
    scene = Scene(ground, *READING, ("files.write", {"path": new, "text": CHANGED}))
    scene.control()
    ana = Tenant(scene.daemon, "ana")
    for folder in (ana.workspace, scene.daemon.home.workspace):
        (folder / FILE).write_text(f"{OUTSIDE}\n")
    scene.replace("/")
    for target in ("/", scene.daemon.home.workspace, scene.daemon.home.path, ana.workspace):
        scene.root.unlink()
        scene.root.symlink_to(target)
        tape = scene.play("again")
        scene.check(tape)
        assert not any(result["outcome"] == "ok" for result in results(tape)), f"{target} was reached"


@attack("a tenant that puts the link there itself, by its own shell in the strict sandbox")
def by_its_own_shell(ground: Ground) -> None:
    require(BUBBLEWRAP)
    link = f"mv sub before; ln -s {ground.folder / 'outside'} sub"
    first: Call = ("shell.run", {"command": link, "access": "write"})
    scene = Scene(ground, script=_by_message({"link": first}, *READING))
    (agent,) = scene.ben.get("/agents")["agents"]
    scene.ben.ask("PUT", f"/agents/{agent['agent_id']}", body={"name": agent["name"], "workspace_roots": []})
    scene.play("link")
    if not scene.root.is_symlink():
        raise RuntimeError("the shell did not make the link")
    answer = scene.ben.ask(
        "PUT", f"/agents/{agent['agent_id']}", body={"name": agent["name"], "workspace_roots": [str(scene.root)]}
    )
    assert answer.status_code == 400, f"a root that is a link was accepted: {answer.text}"
    scene.root.unlink()
    scene.root.mkdir()
    scene.name_root()
    scene.root.rmdir()
    scene.root.symlink_to(scene.outside)
    scene.check(scene.play("read"))


@attack("a root that is a link, mounted for a shell in the strict sandbox")
def shell_strict(ground: Ground) -> None:
    _shell(ground, Tier.STRICT)


@attack("a root that is a link, allowed to a shell in the guarded sandbox")
def shell_guarded(ground: Ground) -> None:
    _shell(ground, Tier.GUARDED)


def _shell(ground: Ground, tier: Tier) -> None:
    require(TIERS[tier])
    variants: list[Call] = [(SHELL[0], {**SHELL[1], **more}) for more in ({"folder": "deep"}, {"access": "read"})]
    scene = Scene(ground, SHELL, *variants, sandbox_tier=tier.value)
    scene.control()
    if not (scene.root / "made.txt").exists():
        raise RuntimeError("the shell wrote nothing")
    scene.replace()
    scene.check(scene.play("again"))


@attack("a root that is a link, given to plugins that read and write the workspace, and modules run from it")
def plugins(ground: Ground) -> None:
    rest = '[[tools]]\nname = "run"\ndescription = "Open it."\n[[folders]]\nname = "workspace"\naccess = "write"\n'
    opens = modules.opens("made.txt", create=True)
    scene = Scene(
        ground,
        ("csv-stats.describe", {"file": "a.csv"}),
        ("probe.run", {}),
        ("wasm.run", {"module": "echo.wasm", "input": {"n": 1}}),
    )
    for folder in (EXAMPLES / "csv-stats", a_plugin(ground.folder / "p", opens, text=manifest(opens, rest=rest))):
        palyra(scene.daemon, "plugins", "install", str(folder), "--yes")
    done = results(scene.control())
    if [result["outcome"] for result in done] != ["ok"] * 3 or not (scene.root / "made.txt").exists():
        raise RuntimeError(f"the plugins do not work: {done}")
    scene.replace()
    tape = scene.play("again")
    scene.check(tape)
    assert not any(result["outcome"] == "ok" for result in results(tape)), "a module ran with what is outside"


@attack("a file checkpoint that is compared and restored through a root that became a link")
def restore(ground: Ground) -> None:
    scene = Scene(ground, CHANGING[0])
    scene.control()
    (checkpoint,) = scene.ben.get("/files/checkpoints")["checkpoints"]
    path = f"/files/checkpoints/{checkpoint['checkpoint_id']}"
    scene.replace()
    (scene.outside / FILE).chmod(0o666)
    for answer in (
        scene.ben.ask("GET", path),
        *(scene.ben.ask("POST", f"{path}/restore", body={"force": force}) for force in (False, True)),
    ):
        assert answer.status_code == 403, f"{answer.status_code}: {answer.text}"
        assert answer.json()["code"] == "root_symlinked", answer.text
    scene.check()


@attack("agents made over gRPC with a link for a root, bound to a session, and runs that are handed on")
def grpc_bound_and_handed_on(ground: Ground) -> None:
    scene = Scene(ground, script=_by_message({"hand on": ("agent.delegate", {"task": "read it"})}, *READING))
    scene.control("hand on")
    scene.replace()
    scene.check(scene.play("hand on"))
    at = json.loads(scene.daemon.home.daemon.read_text())["grpc"]
    with grpc.insecure_channel(at) as channel:
        made = _create(channel, scene.ben, str(scene.root))
        assert made is None, "a root that is a link was accepted over gRPC"
        scene.root.unlink()
        scene.root.mkdir()
        agent_id = _create(channel, scene.ben, str(scene.root))
        assert agent_id is not None
    scene.root.rmdir()
    scene.root.symlink_to(scene.outside)
    session = scene.ben.send("hello", session={"key": "bound"})["session_id"]
    scene.ben.ask("PUT", f"/sessions/{session}/agent", body={"agent_id": agent_id})
    for text in ("read it", "hand on"):
        scene.check(scene.play(text, session={"session_id": session}))


@attack("a root that is exchanged for a link and back all the time, while tools and shells use it")
def race(ground: Ground) -> None:
    require(BUBBLEWRAP)
    write: Call = ("files.write", {"path": "new.txt", "text": CHANGED})
    scene = Scene(ground, *READING, write, SHELL, *READING, SHELL)
    scene.control()
    link = scene.ben.workspace / "link"
    link.symlink_to(scene.outside)
    for _ in range(RACING_RUNS * ground.rounds):
        with _exchanging(scene.root, link):
            tape = scene.play("again")
        scene.check(tape)


@contextmanager
def _exchanging(folder: Path, link: Path) -> Iterator[None]:
    """Exchange two names in one step each time, as fast as the kernel does it."""
    exchange, stop = ctypes.CDLL(None).renameat2, threading.Event()
    names = os.fsencode(folder), os.fsencode(link)

    def swap() -> None:
        times = 0
        while not stop.is_set() or times % 2:
            assert exchange(-100, names[0], -100, names[1], _EXCHANGE) == 0
            times += 1

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _by_message(first: Mapping[str, Call], *calls: Call) -> Json:
    """Return the script of a model that makes one call for each of these messages, and the other calls else."""
    script = proposing(*calls)
    script["rules"] = [
        *({"when": {"contains": words, "tools": True}, **_turns(call)} for words, call in first.items()),
        *script["rules"],
    ]
    return script


def _turns(call: Call) -> Json:
    return {key: value for key, value in proposing(call)["rules"][0].items() if key != "when"}


def _create(channel: grpc.Channel, tenant: Daemon, root: str) -> str | None:
    """Make an agent over gRPC, and return its id, None if it is refused as invalid."""
    call = channel.unary_unary(
        "/palyra.v1.GatewayService/CreateAgent",
        request_serializer=pb.CreateAgentRequest.SerializeToString,
        response_deserializer=pb.CreateAgentResponse.FromString,
    )
    asked = pb.CreateAgentRequest(agent=pb.Agent(name="narrow", workspace_roots=[root]))
    try:
        made = call(asked, metadata=(("authorization", f"Bearer {tenant.token}"),), timeout=60)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
            raise
        return None
    return str(made.agent.agent_id)
