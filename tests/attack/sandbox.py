"""Programs that take more than they may, or change what is not theirs: what no approval covers."""

import json
import os
import sys
import tempfile
from pathlib import Path

import palyra
from palyra.sandbox.base import Tier
from tests.attack.case import attack, require
from tests.attack.ground import Ground, play, proposing, results
from tests.support.command import palyra as command
from tests.support.daemon import Daemon, until
from tests.support.needs import BUBBLEWRAP, TIERS

SERVER = Path(__file__).parent.parent / "support" / "hostile_mcp.py"
START_SECONDS = 60.0


def run(ground: Ground, command: str, *, tier: Tier, **settings: object) -> str:
    """Have a daemon run an approved command, and return what the model is told of it."""
    require(TIERS[tier])
    script = proposing(("shell.run", {"command": command, "access": "write"}))
    daemon = ground.daemon(script, sandbox_tier=tier, **settings)
    (result,) = results(play(daemon, "do it"))
    return str(result["text"])


def code_of_palyra() -> list[str]:
    """Return files that the command and the daemon load, and names of new ones that they would."""
    files = [palyra.__file__, os.__file__, json.__file__, f"{sys.prefix}/bin/palyra", sys.executable]
    return [*files, *(str(Path(file).parent / "sitecustomize_x.pth") for file in files)]


@attack("an MCP server in strict that writes into the installation, a shell's start file and the cache of uv")
def server_changes_installation(ground: Ground) -> None:
    require(BUBBLEWRAP)
    person = Path.home()
    tried = [
        *code_of_palyra(),
        *(str(person / name) for name in (".bashrc", ".profile", ".cache/uv/x", ".local/bin/x")),
    ]
    daemon = ground.daemon(proposing(("mcp.w.echo", {})))
    with daemon.home.config.open("a") as file:
        file.write(f"\n[mcp.servers.w]\ncommand = {json.dumps(sys.executable)}\n")
        file.write(f"args = {json.dumps([str(SERVER), 'writer', *tried])}\n")
    command(daemon, "config", "reload")
    until(lambda: _is_ready(daemon), seconds=START_SECONDS)
    command(daemon, "mcp", "accept", "w", "--yes")
    (result,) = results(play(daemon, "write"))
    assert result["text"].strip() == "none", result["text"]


def _is_ready(daemon: Daemon) -> bool:
    (found,) = json.loads(command(daemon, "mcp", "list", "--json"))["servers"]
    return bool(found["state"] == "ready")


@attack("a shell in strict whose workspace holds the installation")
def workspace_holds_installation(ground: Ground) -> None:
    checkout = Path(palyra.__file__).parents[2]
    inside = [file for file in code_of_palyra() if Path(file).is_relative_to(checkout)]
    tries = "; ".join(f"(: >> {file}) 2>/dev/null && echo CHANGED {file}" for file in inside)
    said = run(ground, f"{tries}; echo tried", tier=Tier.STRICT, workspace_root=checkout)
    assert "CHANGED" not in said, said
    assert "tried" in said, said


@attack("a guarded program that changes owners and times, takes leases, and watches names outside its workspace")
def guarded_reaches_outside(ground: Ground) -> None:
    with tempfile.TemporaryDirectory(prefix=".palyra-attack-", dir=Path.home()) as name:
        outside = Path(name, "diary.txt")
        outside.write_text("as it was")
        before = outside.stat()
        program = (
            "import ctypes, fcntl, os\n"
            "libc = ctypes.CDLL(None)\n"
            f"path = {str(outside)!r}\n"
            "def attempt(call):\n"
            "    try: call()\n"
            "    except OSError: pass\n"
            "for group in {*os.getgroups(), os.getgid(), 65534}:\n"
            "    attempt(lambda: os.chown(path, -1, group))\n"
            "    attempt(lambda: os.lchown(path, os.getuid(), group))\n"
            "attempt(lambda: os.utime(path, (1, 1)))\n"
            "attempt(lambda: os.chmod(path, 0o666))\n"
            "attempt(lambda: os.setxattr(path, 'user.x', b'x'))\n"
            "watch = libc.inotify_add_watch(libc.inotify_init1(0), os.path.dirname(path).encode(), 0xFFF)\n"
            "print('WATCHED' if watch > 0 else 'tried')\n"
            "try:\n"
            "    fcntl.fcntl(os.open('/etc/os-release', os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK)\n"
            "    print('LEASED')\n"
            "except OSError: pass\n"
        )
        said = run(ground, f"/usr/bin/python3 - <<'END'\n{program}END", tier=Tier.GUARDED)
        after = outside.stat()
    assert "tried" in said, said
    assert "WATCHED" not in said, said
    assert "LEASED" not in said, said
    assert after == before, "the file outside was changed"


FILL = """
import mmap, time
from socket import *
kept = []
def fill(one):
    one.setblocking(False)
    try:
        while True: one.send(bytes(65536))
    except BlockingIOError: pass
"""
WAYS = {
    "pairs of sockets": "for _ in range(500):\n pair = socketpair(); kept.append(pair)\n [fill(one) for one in pair]",
    "unaccepted connections": (
        "l = socket(AF_UNIX); l.bind('/tmp/l'); l.listen(4096)\n"
        "for _ in range(2000):\n s = socket(AF_UNIX); s.connect('/tmp/l'); fill(s); s.close()"
    ),
    "shared memory": (
        "m = mmap.mmap(-1, 600 << 20)\n"
        "for at in range(0, 600 << 20, 1 << 20):\n"
        " m[at:at + (1 << 20)] = bytes(1 << 20); m.madvise(mmap.MADV_DONTNEED, at, 1 << 20)"
    ),
    "files in memory": (
        "for n in range(3):\n"
        " open(f'/tmp/{n}', 'wb').write(bytes(40 << 20)); open(f'/dev/shm/{n}', 'wb').write(bytes(20 << 20))"
    ),
}


@attack("a program that has the kernel keep memory that belongs to none of its processes")
def memory_of_nobody(ground: Ground) -> None:
    for what in ground.random.sample(sorted(WAYS), k=min(len(WAYS), 1 + ground.rounds)):
        said = run(
            ground,
            f"/usr/bin/python3 - <<'END'\n{FILL}{WAYS[what]}\nprint('KEPT', flush=True)\ntime.sleep(20)\nEND",
            tier=Tier.STRICT,
            sandbox_memory_mb=150,
        )
        assert "150 MiB of memory" in said, f"{what}: {said}"
