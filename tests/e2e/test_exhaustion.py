"""A daemon that may have no more memory: it starts no further thread, and every run that it accepts is answered."""

import re
import resource
import threading
from pathlib import Path

from tests.e2e.conftest import NewDaemon
from tests.support.daemon import Daemon

RUNS = 60
SPARE_BYTES = 6 * 1024 * 1024
"""Less than the stack of one thread."""

SCRIPT = {
    "rules": [
        {
            "when": {"tools": True},
            "turns": [
                [{"do": "call", "tool": "files.list", "arguments": {}}],
                [{"do": "text", "text": "You said: {input}"}],
            ],
        }
    ],
    "default": [{"do": "text", "text": "You said: {input}"}],
}


def mapped_bytes(daemon: Daemon) -> int:
    found = re.search(r"VmSize:\s+(\d+)", Path(f"/proc/{daemon.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def threads(daemon: Daemon) -> int:
    return len(list(Path(f"/proc/{daemon.pid}/task").iterdir()))


def test_every_accepted_run_is_answered_though_no_thread_can_be_started(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(SCRIPT).start()
    # What is loaded when it is first used is loaded before.
    assert daemon.finished(daemon.send("warm up")["run_id"])["status"] == "done"
    limit = mapped_bytes(daemon) + SPARE_BYTES
    resource.prlimit(daemon.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    before = threads(daemon)
    accepted: dict[int, str] = {}

    def send(number: int) -> None:
        accepted[number] = daemon.send(f"message {number}", session={"key": f"s{number}"})["run_id"]

    senders = [threading.Thread(target=send, args=[number]) for number in range(RUNS)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(60)
    assert len(accepted) == RUNS
    ended = {number: daemon.finished(run_id, seconds=120) for number, run_id in accepted.items()}
    assert {run["status"] for run in ended.values()} == {"done"}, [
        line for line in daemon.log() if line["level"] in ("warning", "error")
    ][:3]
    assert threads(daemon) <= before, "no thread could be started, or else nothing was tried here"
    assert daemon.stop() == 0, daemon.output()
    assert daemon.verify().ok
