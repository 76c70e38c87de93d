"""What must hold however often, and whenever, the daemon was killed. Each function yields what does not."""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from palyra.core.ids import SessionId
from palyra.home import Home
from palyra.journal.projection import replay_check
from palyra.journal.stores import rotated_tapes
from palyra.settings import JournalSettings, Settings
from tests.campaign.clients import Memory
from tests.campaign.effects import COUNT, tokens
from tests.e2e.proof import read_tape
from tests.support.daemon import FINAL, Daemon, Json, Line, line_of

DECISIONS = {"allow": "allowed", "deny": "denied"}
MAX_LEFTOVERS = 3
"""Files that a kill may leave in a home; the next start, or the next use of the same kind, removes them."""
_OURS = {"config.toml", "daemon.lock", "daemon.json", "journal.db", "journal.db-wal", "journal.db-shm", "journal.key"}
_OURS |= {"token", "palyrad.log", "palyrad.log.1", "policy", "workspace", "archive", "vault.key", "mcp"}


@dataclass
class Tapes:
    """All tapes of a home, those in the archive too."""

    tapes: dict[str, list[Line]]
    of_run: dict[str, list[Line]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        grouped = defaultdict(list)
        for lines in self.tapes.values():
            for line in lines:
                if line.run_id is not None:
                    grouped[line.run_id].append(line)
        self.of_run = dict(grouped)

    @property
    def lines(self) -> Iterator[Line]:
        for lines in self.tapes.values():
            yield from lines


def settings_of(daemon: Daemon) -> Settings:
    return Settings(journal=JournalSettings(database_url=daemon.database_url))


def load(daemon: Daemon) -> Tapes:
    """Read every tape, from the journal or from the archive, without asking the daemon."""
    with daemon.journal() as conn:
        gone = {str(session_id): record.file for session_id, record in rotated_tapes.all_of(conn).items()}
        kept = [row[0] for row in conn.fetch("SELECT session_id FROM heads")]
        tapes = {one: read_tape(conn, SessionId(one)) for one in kept if one not in gone}
    return Tapes(tapes | {one: _archived(daemon.home.path / file) for one, file in gone.items()})


def _archived(path: Path) -> list[Line]:
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        line_of(
            json.dumps({name: entry[name] for name in ("session_id", "run_id", "tape_seq", "run_seq")})[:-1]
            + f', "event": {entry["content"]}}}'
        )
        for entry in entries
        if entry["line"] == "entry"
    ]


def journal(home: Home, settings: Settings) -> Iterator[str]:
    """Every tape verifies, and every table is what its tapes add up to, usage and budgets among them."""
    found = replay_check.examine(home, settings)
    for problem in (*found.file, *found.report.problems, *found.rows, *found.archive):
        yield f"journal: session {problem.session_id}, entry {problem.tape_seq}: {problem.what}"


def messages(tapes: Tapes, memory: Memory) -> Iterator[str]:
    """Each acknowledged message is on exactly one tape exactly once; each sent one at most once; no other is there."""
    where: dict[str, list[Line]] = defaultdict(list)
    for line in tapes.lines:
        if line.kind in ("run_accepted", "input_steered") and line.event.get("parent") is None:
            where[line.event.get("idempotency_key") or line.event["text"]].append(line)
    for key, found in where.items():
        if key not in memory.tried:
            yield f"message {key} is on a tape, and nobody sent it"
        if len(found) > 1:
            yield f"message {key} is on the tapes {len(found)} times"
    for key, sent in memory.accepted.items():
        for line in where[key]:
            if (line.run_id, line.event["text"]) != (sent.run_id, sent.text):
                yield f"message {key} was acknowledged as run {sent.run_id} and is in run {line.run_id}"
        if not where[key]:
            yield f"message {key} was acknowledged as run {sent.run_id} and is on no tape"


def runs(tapes: Tapes) -> Iterator[str]:
    """Each run has exactly one final entry, its last one; entries of tapes and runs are numbered without gaps."""
    for session_id, lines in tapes.tapes.items():
        if [line.seq for line in lines] != list(range(1, len(lines) + 1)):
            yield f"session {session_id}: its entries are not numbered without gaps"
    for run_id, lines in tapes.of_run.items():
        finals = [line.seq for line in lines if line.kind in FINAL]
        if finals != [lines[-1].seq]:
            yield f"run {run_id} has {len(finals)} final entries, and {lines[-1].kind} is its last entry"
        if [line.run_seq for line in lines] != list(range(1, len(lines) + 1)):
            yield f"run {run_id}: its entries are not numbered without gaps"


def streams(tapes: Tapes, memory: Memory) -> Iterator[str]:
    """What followers were shown over all connections is the tape, each entry once and byte for byte."""
    yield from memory.wrong
    for name, seen in memory.seen.items():
        tape = tapes.tapes.get(name.partition(" ")[0], [])
        if [line.event for line in seen] != [line.event for line in tape[: len(seen)]]:
            yield f"follower {name} was shown {len(seen)} entries that are not those of the tape"
    for key, shown in memory.shown.items():
        run_id = str(shown[0].run_id)
        if [line.event for line in shown] != [line.event for line in tapes.of_run.get(run_id, [])]:
            yield f"whoever followed {key} was not shown run {run_id} as it is on the tape"


@dataclass
class Call:
    """One call as its tape tells it."""

    run_id: str
    call_id: str
    tool: str
    arguments: Json
    starts: int = 0
    outcome: str = "open"
    text: str = ""
    denied: bool = False


def calls(tapes: Tapes) -> list[Call]:
    """Return every call of a turn that counts."""
    found: list[Call] = []
    for run_id, lines in tapes.of_run.items():
        ended = {line.event["turn"] for line in lines if line.kind == "model_turn_ended"}
        of_run: dict[str, Call] = {}
        for line in lines:
            event = line.event
            if line.kind == "tool_proposed" and event["turn"] in ended:
                of_run[event["call_id"]] = Call(run_id, event["call_id"], event["tool"], event["arguments"])
            call = of_run.get(event.get("call_id", ""))
            if call is None:
                continue
            if line.kind == "tool_started":
                call.starts += 1
            elif line.kind in ("tool_finished", "child_ended"):
                call.outcome, call.text = event["outcome"], event["text"]
            elif line.kind == "approval_resolved":
                call.denied = event["decision"] != "allowed"
            elif line.kind == "policy_decided":
                call.denied = event["verdict"] == "deny"
        found += of_run.values()
    return found


def effects(made: list[Call], counted: Counter[str]) -> Iterator[str]:
    """What happened outside the journal fits what the tapes say of each call."""
    expected: Counter[str] = Counter()
    for call in made:
        for token in tokens(call.tool, call.arguments):
            expected[token] += 1
            least, most = _bounds(call)
            if not least <= counted[token] <= most:
                yield (
                    f"{call.tool} of run {call.run_id} ended {call.outcome} after {call.starts} starts"
                    f" (denied: {call.denied}) and took effect {counted[token]} times: {token!r}; {call.text[:80]}"
                )
    for token, times in expected.items():
        if times > 1:
            yield f"{token!r} is in {times} calls that count"
    for token in counted:
        if token not in expected and not token.startswith("first line"):
            yield f"{token!r} took effect, and no call is on a tape that does it"


def _bounds(call: Call) -> tuple[int, int]:
    if call.denied or call.starts == 0:
        return 0, 0
    if call.outcome == "ok":
        return 1, 1
    # A file that is reported as not changed is not; of programs and servers an error may come after the effect.
    if call.outcome == "error" and call.tool not in (COUNT, "shell.run"):
        return 0, 0
    return (0, 0) if call.outcome in ("denied", "skipped") else (0, 1)


def approvals(tapes: Tapes, memory: Memory) -> Iterator[str]:
    """An answer that was acknowledged stands, once, and nobody else's takes its place."""
    resolved: dict[str, list[str]] = defaultdict(list)
    requested: Counter[str] = Counter()
    for line in tapes.lines:
        if line.kind == "approval_requested":
            requested[line.event["approval_id"]] += 1
        elif line.kind == "approval_resolved":
            resolved[line.event["approval_id"]].append(line.event["decision"])
    for approval_id, times in requested.items():
        if times > 1 or len(resolved[approval_id]) > 1:
            yield f"approval {approval_id} was requested {times} times and resolved as {resolved[approval_id]}"
    for approval_id, decision in memory.decided.items():
        found, sent = resolved[approval_id], DECISIONS[decision]
        if approval_id in memory.answered and found != [sent]:
            yield f"approval {approval_id}: {sent} was acknowledged, and {found} is on the tape"
        if found and found[0] not in (sent, "withdrawn", "timed_out"):
            yield f"approval {approval_id}: {sent} was sent, and {found} is on the tape"


def children(tapes: Tapes) -> Iterator[str]:
    """A child is started once, ends, and its result comes to its parent once.

    One whose parent ended before it was made is never made, and has no result.
    """
    for run_id, lines in tapes.of_run.items():
        started = {line.event["child_run_id"]: line.event["call_id"] for line in lines if line.kind == "child_started"}
        ended = Counter(line.event["child_run_id"] for line in lines if line.kind == "child_ended")
        if len(set(started.values())) != len(started):
            yield f"run {run_id} started two children for one call"
        for child in started:
            found, completed = tapes.of_run.get(child), lines[-1].kind == "run_completed"
            if (found is None and completed) or (found is not None and found[-1].kind not in FINAL):
                yield f"child {child} of run {run_id} has not ended"
            if ended[child] > 1 or (completed and ended[child] == 0):
                yield f"the result of child {child} came to run {run_id} {ended[child]} times"
        if strange := ended.keys() - started.keys():
            yield f"run {run_id} has results of children that it never started: {sorted(strange)}"


def spending(daemon: Daemon, tapes: Tapes) -> Iterator[str]:
    """The ledger has every turn that was paid, and nothing is set aside any more."""
    paid = [line.event["usage"] for line in tapes.lines if line.kind == "model_turn_ended"]
    with daemon.journal() as conn:
        sums = conn.fetch_one(
            "SELECT COUNT(*), CAST(COALESCE(SUM(input_tokens), 0) AS BIGINT),"
            " CAST(COALESCE(SUM(output_tokens), 0) AS BIGINT) FROM usage WHERE state = 'settled'"
        )
        open_ones = conn.fetch("SELECT run_id, turn FROM usage WHERE state = 'reserved'")
    tape = (
        len(paid),
        sum(one.get("input_tokens", 0) for one in paid),
        sum(one.get("output_tokens", 0) for one in paid),
    )
    if sums != tape:
        yield f"usage: the ledger has {sums}, the tapes {tape} (turns, tokens in, tokens out)"
    if open_ones:
        yield f"usage: {len(open_ones)} turns are still reserved, of run {open_ones[0][0]} for one"


def processes(folder: Path) -> list[int]:
    """Return the processes that were started for a folder and still live."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                said = Path(f"/proc/{name}/environ").read_bytes() + Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in said:
                found.append(int(name))
    return found


def leftovers(home: Home) -> list[str]:
    """Return what lies in a home, or in its workspace, and belongs to nothing."""
    found = [path.name for path in home.path.iterdir() if path.name not in _OURS]
    found += [str(path) for path in home.workspace.rglob(".*")] if home.workspace.exists() else []
    return found + [str(path) for path in (home.path / "archive").rglob(".*")]
