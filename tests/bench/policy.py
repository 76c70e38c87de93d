"""What a judgement costs: the first in a process, which loads the engine, and those after it; and deciding again.

The first is measured in a process of its own, with what the engine adds to its memory. Those after it are judged by the
shipped policies alone, and with 95 others beside them. Deciding again reads calls back from a journal, as
`palyra policy simulate` does; no two of them are alike.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from time import perf_counter

from palyra.core.events import PolicyDecided, TapeEvent, ToolProposed
from palyra.core.ids import AgentId, CallId, PrincipalId, SessionId
from palyra.core.policy.effect import Effect
from palyra.core.tool import Risk, ToolSpec, Verdict
from palyra.journal.engines.base import Connection
from palyra.journal.stores import policy_decisions
from palyra.policy.cedar_source import split
from palyra.policy.gate import Gate
from palyra.policy.loader import combine
from palyra.policy.query import PolicyQuery
from palyra.policy.simulation import judge_again
from tests.bench.figures import Bar, Figures
from tests.bench.ground import Ground, Measurement
from tests.bench.journal import opened
from tests.bench.turns import run
from tests.contract.journal.builders import a_run_id, a_run_row, accept, begin, write_down_of
from tests.support.daemon import Daemon

AT = datetime(2026, 3, 1, tzinfo=UTC)
SHELL = ToolSpec(name="shell.run", description="", parameters={}, risk=Risk.MEDIUM)
CALLS_OF_A_RUN = 50
UNIT_RUNS = 20

COLD = """
import json, os, time
from pathlib import Path
from palyra.home import Home
from palyra.policy.current_policies import CurrentPolicies
from tests.bench.policy import a_question
from tests.bench.process import rss_mb
before = rss_mb(os.getpid())
began = time.perf_counter()
CurrentPolicies(Home(Path("nowhere"))).gate.judge(a_question(1), ())
print(json.dumps({"cold_ms": (time.perf_counter() - began) * 1000, "engine_mb": rss_mb(os.getpid()) - before}))
"""


def rounds(ground: Ground) -> Iterator[Figures]:
    count = ground.amount(100_000, 1_000)
    with ground.home() as home:
        run(_fill(home, count))
        for _ in range(ground.repeat):
            yield {
                **_cold(),
                "warm_us": _warm_us(Gate(combine(())), times=ground.amount(5_000, 50)),
                "warm_100_us": _warm_us(Gate(combine(split(_others(95), "bench"))), times=ground.amount(2_000, 20)),
                "simulate_s": run(_simulate(home, count)),
            }


def a_question(number: int) -> PolicyQuery:
    """Return a question that is like no other of another number."""
    return PolicyQuery(
        principal=PrincipalId("owner"),
        agent_id=AgentId("bench"),
        session_id=SessionId("bench"),
        tool=SHELL,
        effect=_effect(number),
        labels=("owner", "tool"),
        channels=("grpc",),
        approver_reachable=True,
        now=AT,
    )


def _effect(number: int) -> Effect:
    return Effect(
        risk=Risk.MEDIUM,
        summary=f"run git add chapter-{number}.md",
        paths=(f"/home/ana/book/part-{number % 7}/chapter-{number}.md",),
        command=f"git add chapter-{number}.md",
        kind="command:git add",
    )


def _others(count: int) -> str:
    return "\n".join(
        f'@id("other-{number}") permit (principal, action == Action::"run", resource == Tool::"shell.run")'
        f' when {{ context.common_commands.contains("program-{number} x") && context.risk_level < 2 }};'
        for number in range(count)
    )


def _cold() -> Figures:
    done = subprocess.run([sys.executable, "-c", COLD], capture_output=True, text=True, check=True)
    figures: Figures = json.loads(done.stdout)
    return figures


def _warm_us(gate: Gate, *, times: int) -> float:
    gate.judge(a_question(0), ())
    began = perf_counter()
    for number in range(times):
        gate.judge(a_question(number), ())
    return (perf_counter() - began) / times * 1_000_000


async def _fill(daemon: Daemon, count: int) -> None:
    async with opened(daemon) as journal:
        for start in range(0, count // CALLS_OF_A_RUN, UNIT_RUNS):
            await journal.engine.write(lambda conn, start=start: _write(conn, start))  # type: ignore[misc]


def _write(conn: Connection, start: int) -> None:
    for place in range(start, start + UNIT_RUNS):
        session_id = begin(conn, place)
        accept(conn, a_run_row(place, session_id))
        numbers = range(place * CALLS_OF_A_RUN, (place + 1) * CALLS_OF_A_RUN)
        write_down_of(conn, session_id, a_run_id(place), *(event for number in numbers for event in _events(number)))


def _events(number: int) -> tuple[TapeEvent, TapeEvent]:
    call_id, effect = CallId(f"c{number}"), _effect(number)
    return (
        ToolProposed(at=AT, turn=1, call_id=call_id, tool=SHELL.name, arguments={"command": effect.command}),
        PolicyDecided(
            at=AT,
            labels=("owner",),
            call_id=call_id,
            verdict=Verdict.ASK,
            risk=Risk.MEDIUM,
            reason="It may change something, so you are asked first.",
            policies=("changes-ask",),
            effect=effect,
            approver_reachable=True,
        ),
    )


async def _simulate(daemon: Daemon, count: int) -> float:
    gate = Gate(combine(()))

    def unit(conn: Connection) -> int:
        past = islice(policy_decisions.decided(conn), count)
        return sum(judge_again(gate, call, SHELL).verdict is call.decided.verdict for call in past)

    async with opened(daemon) as journal:
        began = perf_counter()
        same = await journal.engine.read(unit)
        took = perf_counter() - began
    assert same == count, f"{count - same} calls came out otherwise"
    return took


MEASUREMENT = Measurement(
    about="what a judgement costs, the first and those after it, and deciding about 100,000 recorded calls again",
    rounds=rounds,
    bars={"warm_us": Bar(1_000), "simulate_s": Bar(60)},
)
