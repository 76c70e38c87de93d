"""Whether a turn costs more when much has happened before.

There are three daemons. One has sessions after 10 turns of a usual size, one has sessions after 1,000 and after 10,000,
and one has 10^5 other sessions beside those after 10. What happened before is written straight into the journals, by
the door that runs use. Then turns are taken in small groups, each kind of session in its turn, so that whatever else
the machine does falls on all of them alike; the first turn of each session, for which its past is read, is a figure
of its own. A growth is the daemon's processor time for a turn next to that of a session after 10 turns;
`..._p50` compares the latencies. The model's window fills up after some 700 turns of this size, so the longer
sessions show what a full window costs too.
"""

from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from statistics import median

from tests.bench.figures import Bar, Figures
from tests.bench.ground import Ground, Measurement
from tests.bench.http_client import HttpClient
from tests.bench.journal import opened
from tests.bench.past_runs import Past
from tests.bench.process import cpu_ms
from tests.bench.turns import Turn, http_turn, run, timed
from tests.support.daemon import Daemon

BASE = 10
LENGTHS = (1_000, 10_000)
OTHER_SESSIONS = 100_000
INPUT = "What did the meeting on Tuesday decide about the move, and who takes care of it?"
ANSWER = "The meeting decided to move in spring. Anna looks for movers and asks three of them for an offer. " * 3


@dataclass(slots=True)
class Kind:
    """Sessions that are alike, and what turns in them cost."""

    name: str
    daemon: Daemon
    keys: list[str]
    turns: list[Turn] = field(default_factory=list)
    first_ms: float = 0.0
    each_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)


def rounds(ground: Ground) -> Iterator[Figures]:
    script = {
        "default": [
            {"do": "text", "text": ANSWER},
            {"do": "stop", "reason": "end", "input_tokens": 1, "output_tokens": 1},
        ]
    }
    lengths = [ground.amount(length, length // 100) for length in LENGTHS]
    few, groups = ground.amount(4, 1), ground.amount(10, 2)
    with ExitStack() as stack:
        plain, long, large = (stack.enter_context(ground.home(script)) for _ in range(3))
        # What is called short must stay so while it is measured: each group of turns has short sessions of its own.
        rested = [[f"short-{number}-{place}" for place in range(groups * few)] for number in range(ground.repeat)]
        longer = {length: [f"after-{length}-{place}" for place in range(few)] for length in lengths}
        others = [f"other-{number}" for number in range(ground.amount(OTHER_SESSIONS, 500))]
        short = {BASE: [key for keys in rested for key in keys]}
        for home, sessions in ((plain, short), (long, longer), (large, short | {1: others})):
            run(_fill(home, sessions))
            home.start().stop()  # anchors what was written, which would otherwise be done while it is measured
            home.start()
        for keys in rested:
            kinds = [
                Kind(str(BASE), plain, keys),
                *(Kind(str(full), long, longer[length]) for full, length in zip(LENGTHS, lengths, strict=True)),
                Kind("sessions", large, keys),
            ]
            run(_measure(kinds, groups=groups, few=few, size=ground.amount(20, 5)))
            yield _figures(kinds)


async def _fill(daemon: Daemon, sessions: dict[int, list[str]]) -> None:
    async with opened(daemon) as journal:
        past = await Past.of(journal, text=INPUT, answer=ANSWER)
        for turns, keys in sessions.items():
            await past.sessions(keys, turns=turns)


async def _measure(kinds: list[Kind], *, groups: int, few: int, size: int) -> None:
    async with AsyncExitStack() as stack:
        for kind in kinds:
            client = await stack.enter_async_context(HttpClient(kind.daemon))
            kind.turns = [http_turn(client, INPUT, key) for key in kind.keys]
            first = [(await timed(kind.daemon, [turn], 1)).each_ms[0] for turn in kind.turns]
            kind.first_ms = median(first)
        for group in range(groups):
            for kind in (*kinds[group % len(kinds) :], *kinds[: group % len(kinds)]):
                await _take(kind, [kind.turns[(group * few + place) % len(kind.turns)] for place in range(few)], size)


async def _take(kind: Kind, turns: list[Turn], size: int) -> None:
    """Take turns in a few sessions, one after the other; what the daemon does after the last is not its own."""
    spent = cpu_ms(kind.daemon.pid)
    for number in range(size):
        kind.each_ms += (await timed(kind.daemon, [turns[number % len(turns)]], 1)).each_ms
    kind.cpu_ms.append((cpu_ms(kind.daemon.pid) - spent) / size)


def _figures(kinds: list[Kind]) -> Figures:
    figures: Figures = {}
    base = kinds[0]
    for kind in kinds:
        figures |= {
            f"turn_{kind.name}_p50_ms": median(kind.each_ms),
            f"turn_{kind.name}_cpu_ms": median(kind.cpu_ms),
            f"turn_{kind.name}_first_ms": kind.first_ms,
        }
        if kind is not base:
            figures |= {
                f"growth_{kind.name}": median(kind.cpu_ms) / median(base.cpu_ms),
                f"growth_{kind.name}_p50": median(kind.each_ms) / median(base.each_ms),
            }
    return figures


MEASUREMENT = Measurement(
    about="whether a turn costs more after 10,000 others, or beside 100,000 sessions",
    rounds=rounds,
    bars={f"growth_{name}{suffix}": Bar(1.1) for name in (*map(str, LENGTHS), "sessions") for suffix in ("", "_p50")},
)
