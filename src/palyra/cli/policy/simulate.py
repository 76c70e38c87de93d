"""`palyra policy explain` and `simulate`: what the policies decide about past and hypothetical calls."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from palyra.cli.options import Invocation, PalyraCommand
from palyra.cli.policy.tools import spec_of, tools_of, unknown_note
from palyra.cli.terminal.output import ProgressIndicator, facts, plural, say, show, show_json, table
from palyra.core.channel import UNKNOWN
from palyra.core.clock import to_ms
from palyra.core.errors import Invalid, NotFound
from palyra.core.ids import CallId, RunId, SessionId
from palyra.core.policy import labels
from palyra.core.policy.effect import Effect
from palyra.core.policy.manifest import CapabilityManifest
from palyra.core.run.decided_calls import DecidedCall, decided_calls
from palyra.core.tool import FolderAccess, Risk, ToolCall, ToolSpec, Verdict
from palyra.policy.gate import Gate, Judgement
from palyra.policy.loader import load, load_files
from palyra.policy.simulation import HYPOTHETICAL, OWNER, HypotheticalCall, judge_again, judge_hypothetical

if TYPE_CHECKING:
    from palyra.tools.catalog import ToolCatalog

SHOWN_FLIPS = 50
LABELS = (labels.OWNER, labels.TOOL, labels.OTHER, labels.WEB)


class PolicyDecisionNotFound(NotFound):
    """This run has no policy decisions. See its entries with `palyra runs tape RUN`."""


class ArgumentsInvalid(Invalid):
    """The arguments are not valid for the tool."""


@click.command(cls=PalyraCommand)
@click.argument("run", required=False)
@click.argument("call", required=False)
@click.option("--tool", metavar="NAME", help="Explain a hypothetical call of this tool.")
@click.option("--arguments", metavar="JSON", default="{}", help="Arguments of the call.")
@click.option(
    "--risk", type=click.Choice([risk.value for risk in Risk]), help="Risk of the call. Default: by its arguments."
)
@click.option("--path", "paths", multiple=True, metavar="PATH", help="A path that the call accesses; repeatable.")
@click.option("--host", "hosts", multiple=True, metavar="HOST", help="A host that the call connects to; repeatable.")
@click.option(
    "--credential", "credentials", multiple=True, metavar="NAME", help="A secret that the call sends; repeatable."
)
@click.option("--command", metavar="LINE", help="Command line that the call runs.")
@click.option(
    "--access",
    type=click.Choice([one.value for one in FolderAccess]),
    help="Folder access of the command. Default: write.",
)
@click.option("--label", type=click.Choice(LABELS), default=labels.OWNER, help="Origin of its arguments.")
@click.option("--agent", metavar="ID", help="Agent that makes the call.")
@click.option("--principal", metavar="ID", help="Principal of the call. Default: user:owner.")
@click.option("--channel", metavar="NAME", help="Channel of the message that led to it: grpc, http, v1.")
@click.option("--no-approver", is_flag=True, help="No approver is reachable.")
@click.option("--granted", is_flag=True, help="A grant covers the call.")
def explain(
    invocation: Invocation,
    run: str | None,
    call: str | None,
    *,
    tool: str | None,
    arguments: str,
    risk: str | None,
    paths: tuple[str, ...],
    hosts: tuple[str, ...],
    credentials: tuple[str, ...],
    command: str | None,
    access: str | None,
    label: str,
    agent: str | None,
    principal: str | None,
    channel: str | None,
    no_approver: bool,
    granted: bool,
) -> None:
    """Explain what the policies decide about a call, and why.

    RUN [CALL] evaluates recorded calls of a run again. RUN is a run's id, its last six characters, or `last` for the
    most recent run. --tool evaluates a hypothetical call:

    \b
      palyra policy explain last
      palyra policy explain --tool shell.run --command "git push" --label web
    """
    if (run is None) == (tool is None):
        raise click.UsageError("Give a RUN, or --tool for a hypothetical call.")
    gate = Gate(load(invocation.home))
    if tool is None:
        assert run is not None
        _explain_past(invocation, gate, run, call)
        return
    try:
        supplied_arguments = msgspec.json.decode(arguments, type=dict[str, object])
    except msgspec.DecodeError as error:
        raise click.UsageError(f"--arguments must be a JSON object: {error}.") from error
    imagined = HypotheticalCall(
        tool=tool,
        arguments=supplied_arguments,
        risk=Risk(risk) if risk is not None else None,
        paths=tuple(str(Path(path).absolute()) for path in paths) or None,
        hosts=hosts or None,
        credentials=credentials or None,
        command=command,
        access=FolderAccess(access) if access is not None else None,
        label=label,
        channel=channel or UNKNOWN,
        approver_reachable=not no_approver,
        granted=granted,
        principal=principal or OWNER,
        agent=agent or HYPOTHETICAL,
    )
    catalog = tools_of(invocation)
    spec = spec_of(invocation, catalog, tool)
    effect, manifest = _preview(invocation, catalog, tool, supplied_arguments) if supplied_arguments else (None, None)
    judged = judge_hypothetical(gate, imagined, spec, effect=effect, manifest=manifest)
    if not invocation.printed_json(judged):
        show(_facts(judged))
        if note := unknown_note(catalog, tool):
            say(f"palyra: {note} Its risk is estimated.")


@click.command("simulate", cls=PalyraCommand)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]),
    help="Only calls of runs accepted since then.",
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=100_000, show_default=True, help="Maximum number of calls."
)
def simulate(invocation: Invocation, files: tuple[Path, ...], *, since: datetime | None, limit: int) -> None:
    """Replay recorded calls with the policies in FILES instead of the home's, and list different decisions.

    Without FILES, uses the current policies of the home. The latest runs come first. Calls that a grant covered then
    count as still covered. Works with or without a running daemon.
    """
    from palyra.journal.snapshot import open_snapshot
    from palyra.journal.stores import policy_decisions

    gate = Gate(load_files(files) if files else load(invocation.home))
    catalog = tools_of(invocation)
    specs: dict[str, ToolSpec] = {}
    flips: list[tuple[DecidedCall, Judgement]] = []
    verdicts: Counter[str] = Counter()
    began = time.perf_counter()
    with (
        open_snapshot(invocation.home, invocation.settings) as conn,
        ProgressIndicator("Replaying calls") as progress,
    ):
        since_ms = to_ms(since.astimezone()) if since is not None else 0
        for number, past in enumerate(islice(policy_decisions.decided(conn, since_ms=since_ms), limit)):
            name = past.proposed.tool
            if name not in specs:
                specs[name] = spec_of(invocation, catalog, name)
            judged = judge_again(gate, past, specs[name])
            verdicts[judged.verdict.value] += 1
            if judged.verdict is not past.decided.verdict:
                flips.append((past, judged))
            if number % 1000 == 0:
                progress.tick()
    took = time.perf_counter() - began
    if invocation.json:
        listed = [_flip(past, judged) for past, judged in flips]
        show_json({"calls": verdicts.total(), "verdicts": verdicts, "hash": gate.policy_hash, "flips": listed})
        return
    if flips:
        rows = [
            [past.run_id, past.proposed.call_id, past.decided.verdict, judged.verdict, judged.reason, _summary(past)]
            for past, judged in flips[:SHOWN_FLIPS]
        ]
        show(table(["RUN", "CALL", "BEFORE", "AFTER", "REASON", "ACTION"], rows, stretch=4))
        print()
    if len(flips) > SHOWN_FLIPS:
        say(f"Showing {SHOWN_FLIPS} of {len(flips)}. Use --json to see all.")
    print(f"{plural(verdicts.total(), 'call')} in {took:.1f} s, {plural(len(flips), 'different decision')}.")


def _explain_past(invocation: Invocation, gate: Gate, name: str, call: str | None) -> None:
    matching_decided_calls = [past for past in _past(invocation, name) if call in (None, past.proposed.call_id)]
    if not matching_decided_calls:
        raise PolicyDecisionNotFound(f"This run has no policy decision for call {call!r}." if call else None)
    catalog = tools_of(invocation)
    judged = [
        (past, judge_again(gate, past, spec_of(invocation, catalog, past.proposed.tool)))
        for past in matching_decided_calls
    ]
    if invocation.printed_json({"calls": [_flip(past, now) for past, now in judged]}):
        return
    for index, (past, now) in enumerate(judged):
        if index:
            print()
        show(_facts(now, past))


def _past(invocation: Invocation, name: str) -> Iterator[DecidedCall]:
    """Yield the policy decisions of a run, from its tape."""
    from palyra.cli.runs import find_run
    from palyra.core.events import RunAccepted
    from palyra.gateway.client.tape_stream import read_tape

    client = invocation.client
    run = find_run(client, name)
    entries = read_tape(partial(client.run_tape, run.run_id))
    events = [line.event for line in entries if line.event is not None]
    accepted = next(event for event in events if isinstance(event, RunAccepted))
    for proposed, decided, channels in decided_calls(events):
        yield DecidedCall(
            principal=accepted.principal,
            agent_id=accepted.agent_id,
            session_id=SessionId(run.session_id),
            run_id=RunId(run.run_id),
            proposed=proposed,
            decided=decided,
            channels=channels,
        )


def _preview(
    invocation: Invocation, catalog: "ToolCatalog", tool: str, arguments: dict[str, object]
) -> tuple[Effect | None, CapabilityManifest | None]:
    """Return the effect that a known tool would have in the home's workspace, and its capabilities."""
    from palyra.daemon.process.system_clock import SystemClock
    from palyra.sandbox.files.workspace import Workspace
    from palyra.sandbox.processes import process
    from palyra.tools.arguments import CallProblem, check
    from palyra.tools.base import ToolContext

    matching_tool = catalog.get(tool)
    if matching_tool is None:
        return None, None
    value = check(catalog, ToolCall(call_id=CallId("imagined"), tool=tool, arguments=arguments))
    if isinstance(value, CallProblem):
        raise ArgumentsInvalid(value.reason)
    if matching_tool.preview is None:
        return None, None
    root = invocation.settings.workspace.root
    folder = Path(os.path.expanduser(root)) if root is not None else invocation.home.workspace
    sandbox = process.build(invocation.home, invocation.settings.sandbox)
    context = ToolContext(workspace=Workspace((folder,)), clock=SystemClock(), sandbox=sandbox)
    manifest = matching_tool.manifest(context) if matching_tool.manifest is not None else None
    return asyncio.run(matching_tool.effect(context, value)), manifest


def _facts(judged: Judgement, past: DecidedCall | None = None) -> list[str]:
    colours = {Verdict.ALLOW: "green", Verdict.ASK: "yellow", Verdict.DENY: "red"}
    return facts(
        ("call", f"{past.proposed.call_id}: {_summary(past)}" if past is not None else None),
        ("verdict", judged.verdict.value),
        ("recorded", past.decided.verdict.value if past is not None else None),
        ("risk", judged.risk.value),
        ("channel", ", ".join(past.channels) if past is not None else None),
        ("reason", judged.reason),
        ("policies", ", ".join(judged.policies) or "none"),
        ("answer", "a grant covers it" if judged.grant_id is not None else None),
        ("hash", judged.policy_hash),
        colours={"verdict": colours[judged.verdict]},
    )


def _flip(past: DecidedCall, judged: Judgement) -> dict[str, object]:
    return {
        "run_id": past.run_id,
        "call_id": past.proposed.call_id,
        "tool": past.proposed.tool,
        "summary": _summary(past),
        "channels": past.channels or (UNKNOWN,),
        "was": past.decided.verdict,
        "was_by": past.decided.policies,
        "verdict": judged.verdict,
        "risk": judged.risk,
        "reason": judged.reason,
        "policies": judged.policies,
        "policy_hash": judged.policy_hash,
    }


def _summary(past: DecidedCall) -> str:
    return past.decided.effect.summary if past.decided.effect is not None else past.proposed.tool
