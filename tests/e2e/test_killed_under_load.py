"""The daemon is killed at random moments while several clients talk to it, and started again each time.

The clients do what clients must: send again under the same key when there was no answer, attach again behind what they
have seen. In the end every message has one run, every run its answer, and every client has seen the tape.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from threading import Event
from time import sleep

from palyra.core.run.state import RunStatus
from tests.e2e.conftest import NewDaemon
from tests.e2e.proof import Kept, answer_of, prove
from tests.support.daemon import FINAL, Daemon, Line, Watcher

SCRIPT = {
    "rules": [
        {
            "turns": [
                [
                    {"do": "text", "text": "Let me see.", "chunk": 4, "delay_ms": 10},
                    {"do": "call", "tool": "files.list"},
                    {"do": "call", "tool": "time.now"},
                ],
                [{"do": "delay", "ms": 20}, {"do": "text", "text": "You said: {input}", "chunk": 8, "delay_ms": 10}],
            ]
        }
    ]
}
LAST = "That was all."
KILLS = 7
SENDERS = 2
"""Sessions into which messages are sent without waiting for answers; each has one more client that only watches."""
TALKERS = 2
"""Sessions whose client waits for each answer."""


def test_nothing_is_lost_or_doubled_by_kills_under_load(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(SCRIPT).start()
    enough = Event()
    with ThreadPoolExecutor(2 * SENDERS + TALKERS) as pool:
        senders = [Sender(daemon, f"sender {number}", enough) for number in range(SENDERS)]
        talkers = [Talker(daemon, f"talker {number}", enough) for number in range(TALKERS)]
        clients = [pool.submit(client) for one in senders for client in (one.send, one.watch)]
        clients += [pool.submit(one.talk) for one in talkers]
        try:
            kill_again_and_again(daemon, Random(7), clients)
        finally:
            enough.set()
    for client in clients:
        client.result()
    daemon.kill()

    kept = prove(daemon)
    for sender in senders:
        check_conversation(kept, sender.session_id, sender.sent)
        assert [line.text for line in sender.seen] == [line.text for line in kept.tapes[sender.session_id]]
    for talker in talkers:
        check_conversation(kept, talker.session_id, list(talker.seen))
        mine = [run for run in kept.runs if run.session_id == talker.session_id]
        assert list(talker.seen.values()) == [kept.tape_of(run) for run in mine]
    assert len(kept.tapes) == SENDERS + TALKERS


class Sender:
    """Sends messages into a session without waiting for answers, while somebody else watches the session."""

    def __init__(self, daemon: Daemon, name: str, enough: Event) -> None:
        self._daemon = daemon
        self._name = name
        self._enough = enough
        self._known = Event()
        self._last_run: str | None = None
        self.session_id = ""
        self.sent: list[str] = []
        self.seen: list[Line] = []

    def send(self) -> None:
        while not self._enough.is_set():
            self._send(f"{self._name}: {len(self.sent)}")
            sleep(0.05)
        self._send(LAST)

    def watch(self) -> None:
        assert self._known.wait(60)
        watcher = Watcher(self._daemon, self.session_id)
        watcher.follow_surely(self._is_over)
        self.seen = watcher.lines

    def _send(self, text: str) -> None:
        accepted = self._daemon.send_surely(text, key=f"{self._name} {text}", session={"key": self._name})
        self.sent.append(text)
        self.session_id = accepted["session_id"]
        self._known.set()

    def _is_over(self, line: Line) -> bool:
        if line.kind == "run_accepted" and line.event["text"] == LAST:
            self._last_run = line.run_id
        return line.kind in FINAL and line.run_id == self._last_run


class Talker:
    """Sends a message, waits for the end of its run, sends the next."""

    def __init__(self, daemon: Daemon, name: str, enough: Event) -> None:
        self._daemon = daemon
        self._name = name
        self._enough = enough
        self.session_id = ""
        self.seen: dict[str, list[Line]] = {}

    def talk(self) -> None:
        while not self._enough.is_set():
            text = f"{self._name}: {len(self.seen)}"
            self.seen[text] = self._daemon.chat_surely(text, key=text, session={"key": self._name})
        self.session_id = self._daemon.send_surely(text, key=text, session={"key": self._name})["session_id"]


def kill_again_and_again(daemon: Daemon, chance: Random, clients: Sequence[Future[None]]) -> None:
    for _ in range(KILLS):
        sleep(chance.uniform(0.02, 0.8))
        for client in clients:
            assert not client.done(), client.result()
        daemon.kill()
        daemon.start()


def check_conversation(kept: Kept, session_id: str, sent: Sequence[str]) -> None:
    """Each message has one run; they were carried and answered in the order in which they were sent."""
    runs = [run for run in kept.runs if run.session_id == session_id]
    assert [run.input for run in runs] == list(sent)
    assert {run.status for run in runs} == {RunStatus.DONE}
    assert [answer_of(kept.tape_of(run)) for run in runs] == [f"You said: {text}" for text in sent]
    lines = kept.tapes[session_id]
    assert [line.run_id for line in lines if line.kind == "run_started"] == [run.run_id for run in runs]
    assert [line.run_id for line in lines if line.kind in FINAL] == [run.run_id for run in runs]
