"""`palyra why`: traces something back to who caused it, and who allowed it."""

from collections.abc import Iterator, Sequence

import click

from palyra.cli.options import Invocation, PalyraCommand
from palyra.cli.short_ids import IdNotFound, describe_channel, find_by_suffix, is_id_suffix
from palyra.cli.terminal.output import date_time, paint, screen_width, show
from palyra.cli.terminal.printable import printable_line, shorten
from palyra.cli.terminal.wrapping import MIN_WIDTH, wrap
from palyra.core.spending.price import format_money
from palyra.core.trace.tree import TraceNode
from palyra.gateway.client.client import Client
from palyra.settings import SettingsInvalid

MAX_DETAIL_CHARS = 400
MAX_CHECKED = 200
"""How many of the latest runs are searched for an id suffix."""


@click.command(cls=PalyraCommand)
@click.argument("what", metavar="WHAT")
def why(invocation: Invocation, what: str) -> None:
    """Trace WHAT back to its input, the model's turn, the policies and the approval.

    \b
    WHAT is one of these:
      last            the last run
      RUN             a run's id, or its last six characters; also the id of a call,
                      an approval, an artifact or a checkpoint
      SESSION:SEQ     an entry of a tape, such as 01M7...AV:12
      PATH            a file in the workspace: what last changed it
    """
    trace = invocation.client.trace(_meant(invocation.client, what))
    if invocation.printed_json(trace):
        return
    currency = _currency(invocation)
    show(tree_lines([trace.tree], currency=currency))
    if trace.later:
        print()
        print("Later")
        show(tree_lines(trace.later, currency=currency))


def _meant(client: Client, what: str) -> str:
    """Return the id of a run that is named by its end; the daemon finds everything else."""
    if not is_id_suffix(what):
        return what
    try:
        return find_by_suffix(what, (one.run_id for one in client.runs(limit=MAX_CHECKED).runs))
    except IdNotFound:
        return what


def _currency(invocation: Invocation) -> str:
    """Return the currency of costs; invalid settings must not prevent an explanation."""
    try:
        return invocation.settings.spending.currency
    except SettingsInvalid:
        return ""


def tree_lines(links: Sequence[TraceNode], before: str = "", *, currency: str) -> Iterator[str]:
    """Yield the nodes and what followed from them as lines of a tree; costs are in that currency."""
    for index, link in enumerate(links, 1):
        last = index == len(links)
        stem, below = ("└─ ", "   ") if last else ("├─ ", "│  ")
        under = before + below + ("│  " if link.then else "   ")
        yield from _fitted(before + stem, under, _line(link), colour="bold" if link.subject else "")
        for detail in filter(None, _details(link, currency)):
            yield from _fitted(under, under, detail, colour="dim")
        yield from tree_lines(link.then, before + below, currency=currency)


def _line(link: TraceNode) -> str:
    by = f" by {link.by}" if link.kind in ("input", "session", "restore") and link.by else ""
    return f"{link.kind}: {link.what}{by} ({date_time(link.at)})"


def _details(link: TraceNode, currency: str) -> Iterator[str]:
    facts = link.facts
    cost = ("cost", format_money(facts["cost_micros"], currency) if facts.get("cost_micros") else None)
    if link.kind == "input":
        yield _joined(
            ("run", link.run_id),
            ("from", describe_channel(str(facts.get("channel") or ""))),
            ("tokens", f"{facts.get('input_tokens', 0)} in, {facts.get('output_tokens', 0)} out"),
            cost,
            ("labels", ", ".join(link.labels)),
        )
    elif link.kind == "turn":
        seen = [f"{one['tool']} ({', '.join(one['labels'])})" for one in facts.get("results", ())]
        span = f"{facts['first_seq']} to {facts['last_seq']}" if facts.get("first_seq") else None
        yield _joined(("saw entries", span), ("labels", ", ".join(link.labels)), ("results of", ", ".join(seen)), cost)
        if facts.get("text"):
            yield f"said: {facts['text']}"
    elif link.kind == "call":
        yield _joined(("call", facts.get("call_id")), ("run", link.run_id), ("labels", ", ".join(link.labels)))
    elif link.kind == "policy":
        yield _joined(("risk", facts.get("risk")), ("policy", str(facts.get("policy_hash", ""))[:16]))
        # A tool that says no more than its name adds nothing.
        if " " in str(facts.get("effect", "")):
            yield f"it would {facts['effect']}"
    elif link.kind == "approval":
        yield _joined(
            ("approval", facts.get("approval_id")), ("until", facts.get("until")), ("grant", facts.get("grant_id"))
        )
    elif link.kind in ("file", "restore"):
        yield _joined(("checkpoint", facts.get("checkpoint_id")))
    elif link.kind == "execution":
        if facts.get("artifact_id"):
            yield _joined(("artifact", facts["artifact_id"]))
        if facts.get("text"):
            yield f"gave: {facts['text']}"


def _joined(*pairs: tuple[str, object]) -> str:
    return "; ".join(f"{name} {value}" for name, value in pairs if value)


def _fitted(first: str, further: str, text: str, *, colour: str) -> Iterator[str]:
    """Yield a text as rows that fit the terminal: the first after `first`, the others after `further`."""
    rows = wrap(shorten(printable_line(text), MAX_DETAIL_CHARS), max(MIN_WIDTH, screen_width() - len(further)))
    for index, row in enumerate(rows):
        yield (further if index else first) + (paint(row, colour) if colour else row)
