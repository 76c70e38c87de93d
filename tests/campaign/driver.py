"""One home, several clients, and a daemon that is killed again and again in it.

An episode kills the daemon at random instants of its work, its start and its stop, and in between makes trials
(`trials`) of what happens beside it: backups, restores, migrations, retention. After each kill the journal is verified
before the daemon is started again; at the end everything is drained, and all invariants are checked.
"""

import json
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic, sleep

from tests.campaign import invariants
from tests.campaign.clients import Approver, Closing, Follower, Link, Memory, Sender, Talker
from tests.campaign.effects import SERVER, Counting, count, policy, prepare, script
from tests.support.daemon import Daemon, Json, NotServing, Refused
from tests.support.postgres import PostgresServer, new_schema

DRAIN_SECONDS = 300.0
ORPHAN_SECONDS = 10.0
MAX_SHOWN = 600
WAYS = ("alone", "tree", "children first", "frozen", "thawed", "twice", "after a commit", "stopping")
PHASES = ("work", "start", "stop", "backup", "restore", "migration", "retention", "postgres")
_SETTINGS = """
[approvals]
inbox = true
[retention]
archived_days = 1
[limits]
model_turns = 100
tool_calls = 100
[spending.budgets.all]
tokens = 1_000_000_000
[spending.budgets.each]
subject = "session"
period = "run"
tokens = 20_000
action = "warn"
"""


@dataclass
class Tally:
    """What a campaign did, in numbers."""

    kills: Counter[str] = field(default_factory=Counter)
    ways: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    facts: Counter[str] = field(default_factory=Counter)
    leftovers: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    @property
    def killed(self) -> int:
        return sum(self.kills.values())


class Episode:
    """See the module."""

    def __init__(
        self, folder: Path, chance: Random, tally: Tally, *, server: PostgresServer | None, counted: Counting | None
    ):
        self.folder = folder
        self.chance = chance
        self.tally = tally
        self.server = server
        self.memory = Memory()
        self.counted = counted
        self._life = 0
        self._enough, self._over = threading.Event(), threading.Event()
        (folder / "script.json").write_text(json.dumps(script()))
        self.daemon = self.new_daemon("home")
        self._make_home()
        self.link = Link(self.daemon, self.memory, self._enough, self._over)

    def new_daemon(self, name: str) -> Daemon:
        """Return a daemon for another home of this episode, with a database of its own."""
        return Daemon(
            self.folder / name,
            output=self.folder / f"{name}.output",
            database_url=new_schema(self.server.url) if self.server is not None else None,
            model_provider="scripted",
            model_script=self.folder / "script.json",
        )

    def run(self, trials: list[Callable[["Episode"], None]], *, kills: int) -> None:
        """Kill so often, with the trials spread among the kills, and check what must hold."""
        self.start()
        if self.counted is not None:
            self._accept_tools()
        with ThreadPoolExecutor(16) as pool:
            clients = [pool.submit(client) for client in self._clients()]
            try:
                self._campaign(trials, kills, clients)
                self._drain(clients)
            finally:
                self._enough.set()
                self._over.set()
                if self.daemon.alive:
                    self.daemon.stop()
        for client in clients:
            if (error := client.exception()) is not None and not isinstance(error, Closing):
                self.violation(f"a client failed: {type(error).__name__}: {error}")
        self._check()
        self.daemon.close()

    def violation(self, what: str) -> None:
        """Note that something does not hold."""
        engine = "postgres" if self.server is not None else "sqlite"
        self.tally.violations.append(f"{engine}, {self.folder}: {' '.join(what.split())[:MAX_SHOWN]}")
        print(f"VIOLATION {self.tally.violations[-1]}", flush=True)

    # -- killing

    def _campaign(self, trials: list[Callable[["Episode"], None]], kills: int, clients: list["Future[None]"]) -> None:
        began, pending = self.tally.killed, list(trials)
        while self.tally.killed - began < kills:
            # A server's tools are there a while after the start.
            sleep(self.chance.uniform(0.02, 0.9) if self.counted is None else self.chance.uniform(0.3, 2.5))
            if any(client.done() for client in clients):
                return
            if pending and self.chance.random() < 0.35:
                pending.pop()(self)
            elif self.server is not None and self.chance.random() < 0.12:
                self._crash_database()
            else:
                self._kill_somehow()
        for trial in pending:
            trial(self)

    def _kill_somehow(self) -> None:
        way = self.chance.choice(WAYS)
        self.tally.ways[way] += 1
        match way:
            case "alone":
                self.kill("work")
            case "tree":
                self.daemon.signal(signal.SIGSTOP)
                self._end_below()
                self.kill("work")
            case "children first":
                self._end_below()
                sleep(self.chance.uniform(0.0, 0.05))
                self.kill("work")
            case "frozen":
                self.daemon.signal(signal.SIGSTOP)
                sleep(self.chance.uniform(0.0, 0.3))
                self.kill("work")
            case "thawed":
                self.daemon.signal(signal.SIGSTOP)
                sleep(self.chance.uniform(0.0, 0.5))
                self.daemon.signal(signal.SIGCONT)
                sleep(self.chance.uniform(0.0, 0.1))
                self.kill("work")
            case "twice":
                self.kill("work")
                self.kill_start()
            case "after a commit":
                self.kill("work")
                self.kill_start(crash_after=self.chance.randint(1, 40))
            case "stopping":
                self.daemon.signal(signal.SIGTERM)
                sleep(self.chance.uniform(0.0, 0.3))
                self.kill("stop")
            case _:
                raise AssertionError(way)
        self.start()

    def kill(self, phase: str) -> None:
        """Kill the daemon, and verify what it leaves."""
        self.daemon.kill()
        self.tally.kills[phase] += 1
        self._look()

    def kill_start(self, phase: str = "start", *, crash_after: int | None = None) -> None:
        """Start the daemon and kill it before or soon after it serves, or have it die after so many commits."""
        self._life += 1
        wait = self.chance.uniform(0.0, 0.9)
        # The thread that starts a daemon must outlive it, so that another one kills it.
        killer = threading.Timer(wait, self._kill_now)
        if crash_after is None:
            killer.start()
        try:
            self.daemon.start(crash_after=crash_after)
            deadline = monotonic() + (5.0 if crash_after is not None else wait + 0.2)
            while self.daemon.alive and monotonic() < deadline:
                sleep(0.01)
        except NotServing as error:
            if error.exit_code != -signal.SIGKILL:
                self.violation(f"the daemon did not start: {error}")
        if crash_after is None:
            killer.join()
        self.kill(phase)

    def _kill_now(self) -> None:
        with suppress(ProcessLookupError, AssertionError):
            os.kill(self.daemon.pid, signal.SIGKILL)

    def start(self) -> None:
        """Start the daemon; that it does not start is a violation."""
        self._life += 1
        try:
            self.daemon.start()
        except NotServing as error:
            self.violation(f"the daemon did not start: {error}")
            raise

    def _crash_database(self) -> None:
        assert self.server is not None
        self.tally.ways["database"] += 1
        also = self.chance.choice(("before", "after", "never"))
        if also == "before":
            self.daemon.kill()
        self.server.crash()
        self.tally.kills["postgres"] += 1
        sleep(self.chance.uniform(0.0, 0.3))
        if also == "after":
            self.daemon.kill()
        self.server.restart()
        if also == "never":
            return
        self.tally.kills["work"] += 1
        self._look()
        self.start()

    def _below(self) -> list[int]:
        """Return the processes that the daemon started, and those that they did."""
        parents = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
        found, before = {self.daemon.pid}, set[int]()
        while found != before:
            before = set(found)
            found |= {child for child, parent in parents.items() if parent in found}
        return sorted(found - {self.daemon.pid})

    def _end_below(self) -> None:
        """Kill all that the daemon started, as the kernel kills a control group: none has a child meanwhile."""
        found: list[int] = []
        while (now := self._below()) != found:
            found = now
            self._signal(found, signal.SIGSTOP)
            # Only once it has stopped can it have no further child: on a busy machine that takes a moment.
            while any(map(_runs, found)):
                sleep(0.001)
        self.chance.shuffle(found)
        self._signal(found, signal.SIGKILL)

    def _signal(self, pids: list[int], number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _look(self) -> None:
        """Check what can be checked quickly: the tapes verify, and acknowledged messages are there."""
        acknowledged = {sent.run_id for sent in list(self.memory.accepted.values())}
        report = self.daemon.verify()
        for problem in report.problems:
            self.violation(f"after kill {self.tally.killed}: {problem}")
        with self.daemon.journal() as conn:
            there = {row[0] for row in conn.fetch("SELECT run_id FROM runs")}
            gone = {row[0] for row in conn.fetch("SELECT session_id FROM rotated")}
        moved = {sent.run_id for sent in list(self.memory.accepted.values()) if sent.session_id in gone}
        for run_id in acknowledged - there - moved:
            self.violation(f"after kill {self.tally.killed}: run {run_id} was acknowledged and is gone")

    # -- the home and its clients

    def _make_home(self) -> None:
        home = self.daemon.home
        for path in (home.path, home.workspace, home.policy):
            path.mkdir(mode=0o700)
        home.config.write_text(_SETTINGS)
        home.config.chmod(0o600)
        if self.counted is not None:
            lines = f'[mcp.servers.{SERVER}]\nurl = "{self.counted.url}"\nallow_private = true\n'
            home.config.write_text(_SETTINGS + lines)
        (home.policy / "campaign.cedar").write_text(policy(home.workspace))
        prepare(home.workspace)

    def _accept_tools(self) -> None:
        path = f"/../../admin/v1/mcp/servers/{SERVER}"

        def ready() -> Json:
            try:
                tools = self.daemon.get(path)["server"]["tools"]
            except Refused:
                return {}  # servers are looked for right after the daemon began to serve
            return {tool["tool"]: tool["digest"] for tool in tools}

        deadline = monotonic() + DRAIN_SECONDS
        while not (found := ready()):
            assert monotonic() < deadline, "the MCP server does not come up"
            sleep(0.05)
        self.daemon.post(f"{path}/accept", {"tools": found})

    def _clients(self) -> Iterator[Callable[[], None]]:
        counted = self.counted is not None
        for name, over_grpc in (("http", False), ("grpc", True)):
            for kind in (Sender, Talker):
                key = f"{kind.__name__.lower()}-{name}"
                made = kind(self.link, key, Random(self.chance.random()), over_grpc=over_grpc, counted=counted)
                yield made.run
                # Followed over the other API, too.
                yield Follower(self.link, key, over_grpc=over_grpc is (kind is Sender)).run
        yield Approver(self.link, Random(self.chance.random()), lambda: self._life).run

    def _drain(self, clients: list["Future[None]"]) -> None:
        """Let everything come to its end."""
        self._enough.set()
        deadline = monotonic() + DRAIN_SECONDS
        while (waiting := self._unfinished()) and monotonic() < deadline:
            if any(client.done() and client.exception() is not None for client in clients):
                break  # it is reported below; nobody else needs to be waited for
            sleep(0.1)
        if waiting:
            self.violation(f"not everything came to its end: {waiting[:3]}")
        self._over.set()

    def _unfinished(self) -> list[str]:
        with self.daemon.journal() as conn:
            found = [f"run {row[0]}" for row in conn.fetch("SELECT run_id FROM runs WHERE ended_ms IS NULL")]
            heads = {row[0]: row[1] for row in conn.fetch("SELECT session_id, tape_seq FROM heads")}
        for name, seen in list(self.memory.seen.items()):
            if len(seen) < heads.get(name.partition(" ")[0], 0):
                found.append(f"follower {name}, at {len(seen)} of {heads[name.partition(' ')[0]]}")
        return found

    # -- the end

    def _check(self) -> None:
        memory, daemon = self.memory, self.daemon
        deadline = monotonic() + ORPHAN_SECONDS
        while (left := invariants.processes(self.folder)) and monotonic() < deadline:
            sleep(0.1)
        if left:
            self.violation(f"{len(left)} processes outlive the daemon: {left}")
        tapes = invariants.load(daemon)
        calls = invariants.calls(tapes)
        found = [
            *invariants.journal(daemon.home, invariants.settings_of(daemon)),
            *invariants.messages(tapes, memory),
            *invariants.runs(tapes),
            *invariants.streams(tapes, memory),
            *invariants.effects(calls, count(daemon.home.workspace, self.counted)),
            *invariants.approvals(tapes, memory),
            *invariants.children(tapes),
            *invariants.spending(daemon, tapes),
        ]
        for what in found:
            self.violation(what)
        left_behind = invariants.leftovers(daemon.home)
        if len(left_behind) > invariants.MAX_LEFTOVERS:
            self.violation(f"{len(left_behind)} files are left behind in the home: {left_behind[:5]}")
        tally = self.tally
        tally.leftovers[self.folder.name] = len(left_behind)
        tally.facts["messages accepted"] += len(memory.accepted)
        tally.facts["approvals answered"] += len(memory.answered)
        tally.facts["entries"] += sum(map(len, tapes.tapes.values()))
        tally.facts["entries shown to followers"] += sum(map(len, memory.seen.values()))
        tally.runs += Counter(lines[-1].kind for lines in tapes.of_run.values())
        tally.facts["child runs"] += sum(line.kind == "child_started" for line in tapes.lines)
        tally.facts["calls interrupted, of these started again"] += sum(call.starts > 1 for call in calls)
        tally.outcomes += Counter(call.outcome for call in calls)

    def discard(self) -> None:
        """Remove all that the episode has left."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _runs(pid: int) -> bool:
    """Tell whether a process still runs: it is neither stopped nor gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TtZX"
    except OSError:
        return False
