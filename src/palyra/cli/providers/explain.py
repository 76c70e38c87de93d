"""`palyra providers explain`: how the model of each turn of a run was chosen, from its tape."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import click
import msgspec
from msgspec import Struct

from palyra.cli.options import Invocation, PalyraCommand
from palyra.cli.runs import find_run
from palyra.cli.terminal.output import facts, paint, show, table
from palyra.cli.terminal.printable import printable_line
from palyra.core.events import ModelTurnDiscarded, ModelTurnEnded, ModelTurnStarted, RunCancelled, RunFailed, RunResumed
from palyra.core.model.routing_plan import RoutingPlan
from palyra.gateway.client.tape_stream import ReceivedEntry, read_tape

CHOSEN = "asked"


class TurnExplanation(Struct, kw_only=True):
    """One turn: its plan and its outcome."""

    turn: int
    model: str
    reason: str
    plan: RoutingPlan | None
    """None for a turn that was recorded before plans were."""
    outcome: str = "open"
    """`answered`, `discarded` or `open`."""
    failure: str = ""
    """The kind of failure that discarded it."""
    error: str = ""
    """Its reason."""


@click.command("explain", cls=PalyraCommand)
@click.argument("run", default="last")
def explain(invocation: Invocation, run: str) -> None:
    """Explain how the model of each turn was chosen: the candidates, why others were skipped, and the result.

    RUN is a run's id, its last six characters, or `last` for the most recent run.
    """
    client = invocation.client
    matching_run = find_run(client, run)
    turns, ended = explained(read_tape(partial(client.run_tape, matching_run.run_id)))
    if invocation.printed_json(
        {"run_id": matching_run.run_id, "turns": [_plain(turn) for turn in turns], "failed": ended}
    ):
        return
    print(f"run {matching_run.run_id}: {printable_line(matching_run.input, width=100)}")
    if not turns:
        print("No model was called.")
    for turn in turns:
        print()
        show(_lines(turn))
    if ended:
        print()
        print(f"{paint('The run failed', 'red')}: {printable_line(ended)}")


def explained(lines: Iterator[ReceivedEntry]) -> tuple[list[TurnExplanation], str]:
    """Return the turns of a run, and why it failed, if it did."""
    turns: list[TurnExplanation] = []
    ended = ""
    for line in lines:
        match line.event:
            case ModelTurnStarted() as began:
                name = f"{began.provider}/{began.model}"
                turns.append(TurnExplanation(turn=began.turn, model=name, reason=began.reason, plan=began.plan))
            case ModelTurnEnded() if turns:
                turns[-1].outcome = "answered"
            case ModelTurnDiscarded(failure=failure, reason=reason) if turns:
                turns[-1].outcome, turns[-1].failure, turns[-1].error = "discarded", failure, reason
            case RunResumed() if _is_open(turns):
                turns[-1].outcome, turns[-1].error = "discarded", "the daemon stopped during the turn"
            case RunCancelled() if _is_open(turns):
                turns[-1].outcome, turns[-1].error = "discarded", "the run was cancelled during the turn"
            case RunFailed(reason=reason):
                ended = reason
            case _:
                pass  # says nothing about the choice
    return turns, ended


def _is_open(turns: list[TurnExplanation]) -> bool:
    return bool(turns) and turns[-1].outcome == "open"


def _plain(turn: TurnExplanation) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(turn)
    if turn.plan is not None:
        # With its defaults: a reader of the JSON does not know them.
        made["plan"] = _all_fields(turn.plan)
        made["plan"]["candidates"] = [_all_fields(one) for one in turn.plan.candidates]
    return made


def _all_fields(value: Struct) -> dict[str, Any]:
    return {name: msgspec.to_builtins(getattr(value, name)) for name in value.__struct_fields__}


def _lines(turn: TurnExplanation) -> Iterator[str]:
    yield f"turn {turn.turn}: {paint(printable_line(turn.model), 'bold')}, {_outcome(turn)}"
    plan = turn.plan
    if plan is None:
        yield from facts(("  why", turn.reason))
        return
    yield from facts(
        ("  why", plan.reason),
        ("  needs", ", ".join(map(_need, plan.needs))),
        ("  work", f"{plan.task}, {plan.complexity}"),
        ("  rules", f"would choose {plan.recommended} ({plan.mode})" if plan.recommended else f"{plan.mode}"),
        ("  budget", plan.budget),
        ("  try", f"{plan.attempt}" if plan.attempt > 1 else None),
        ("  failure", turn.error),
        colours={"  failure": "red"},
    )
    rows = [
        [one.model, CHOSEN if one.model == plan.choice else one.passed_over or "not needed"] for one in plan.candidates
    ]
    yield from (f"  {line}" for line in table(["CANDIDATE", "STATUS"], rows, stretch=1))


def _outcome(turn: TurnExplanation) -> str:
    match turn.outcome:
        case "answered":
            return "answered"
        case "discarded":
            return f"discarded ({turn.failure})" if turn.failure else "discarded"
        case _:
            return "still open"


def _need(word: str) -> str:
    name, _, tokens = word.partition(":")
    return f"room for {tokens} tokens" if name == "context" else name
