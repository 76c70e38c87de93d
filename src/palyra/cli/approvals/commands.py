"""`palyra approvals`: list approval requests and answer them."""

import json
import sys
from typing import Any

import click

from palyra.cli.approvals.ids import find_any, find_open, latest
from palyra.cli.approvals.reissue import reissue
from palyra.cli.options import Invocation, PalyraGroup
from palyra.cli.run_view.approval_prompt import CODE_CHARS, detail_rows, read_scope
from palyra.cli.short_ids import find_by_suffix, is_id_suffix
from palyra.cli.terminal.output import date_time, facts, say, screen_width, show, show_json, show_json_line, table
from palyra.cli.terminal.printable import printable_line
from palyra.core.policy.approval import Approval, Grant
from palyra.core.policy.effect import class_of_pattern
from palyra.core.text.escaping import escape_line


@click.group(cls=PalyraGroup, invoke_without_command=True)
@click.pass_context
def approvals(ctx: click.Context) -> None:
    """See what waits for your word, and answer; without a command, the open questions.

    APPROVAL is the id of a question, the six characters at its end, or `last`: to see it, the one that was asked last;
    to answer it, the only one that is open.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_approvals)


approvals.add_command(reissue)


@approvals.command("list")
@click.option("--all", "everything", is_flag=True, help="Those that are answered too.")
@click.pass_obj
def list_approvals(invocation: Invocation, *, everything: bool = False) -> None:
    """List questions, the latest first."""
    found = latest(invocation.client, only_open=not everything)
    if invocation.json:
        show_json(found)
        return
    if not found.approvals and not everything:
        show(["Nothing waits for an answer."])
        return
    rows = [
        (one.approval_id[-CODE_CHARS:], _state_text(one), one.effect.risk, one.effect.summary)
        for one in found.approvals
    ]
    show(table(("CODE", "STATE", "RISK", "WHAT"), rows))
    say("`palyra approvals show CODE` shows all that would happen.")


@approvals.command("show")
@click.argument("approval")
@click.option("--reveal", is_flag=True, help="Show the values that markers such as [sealed:…] stand for.")
@click.pass_obj
def show_approval(invocation: Invocation, approval: str, *, reveal: bool) -> None:
    """Show a question with all that would happen."""
    approval_id = find_any(invocation.client, approval)
    if reveal:
        _show(invocation, _ask(invocation, "POST", approval_id, "/reveal", body={}))
    else:
        _show(invocation, _ask(invocation, "GET", approval_id))


@approvals.command("allow")
@click.argument("approval")
@click.option("--for", "scope", default="once", metavar="SCOPE", help="once, session, always, or a time such as 30m.")
@click.option("--reason", default="", help="What the agent is told.")
@click.option("--arguments", metavar="JSON", help="Other arguments than the agent proposed; they are judged anew.")
@click.option(
    "--pattern",
    metavar="WORDS",
    help="With --for: the commands that are covered, such as 'git push origin *'. * stands for a part of one argument,"
    " ** as the last word for any further ones. Options can have a program run others: whatever fits is run unasked.",
)
@click.pass_obj
def allow(
    invocation: Invocation, approval: str, *, scope: str, reason: str, arguments: str | None, pattern: str | None
) -> None:
    """Let a call happen; its run goes on.

    An answer for longer covers the class of the call: of a command, exactly that command in its folder, or with
    --pattern what fits the pattern.
    """
    answer = read_scope(scope)
    if answer is None:
        raise click.UsageError(f"{scope!r} is no scope: use once, session, always, or a time such as 30m.")
    body: dict[str, Any] = {"decision": "allow", "scope": answer.scope, "reason": reason}
    if answer.ttl_seconds is not None:
        body["ttl_seconds"] = answer.ttl_seconds
    if arguments is not None:
        body["arguments"] = _object(arguments)
    if pattern is not None:
        body["pattern"] = pattern
    _show(invocation, _ask(invocation, "POST", find_open(invocation.client, approval), "/resolve", body=body))


@approvals.command("deny")
@click.argument("approval")
@click.option("--reason", default="", help="What the agent is told.")
@click.pass_obj
def deny(invocation: Invocation, approval: str, *, reason: str) -> None:
    """Refuse a call; its run goes on, and the agent is told why."""
    body = {"decision": "deny", "reason": reason}
    _show(invocation, _ask(invocation, "POST", find_open(invocation.client, approval), "/resolve", body=body))


@approvals.command("grants")
@click.pass_obj
def list_grants(invocation: Invocation) -> None:
    """List what was allowed beyond single calls."""
    found = invocation.client.ask(tuple[Grant, ...], "GET", "/grants", field="grants")
    if invocation.json:
        show_json({"grants": found})
        return
    if not found:
        show(["Nothing was allowed for longer than one call."])
        return
    rows = [(one.grant_id[-CODE_CHARS:], one.scope, _state(one), one.tool, escape_line(one.kind)) for one in found]
    show(table(("GRANT", "SCOPE", "STATE", "TOOL", "COVERS"), rows))


@approvals.command("revoke")
@click.argument("grant")
@click.pass_obj
def revoke(invocation: Invocation, grant: str) -> None:
    """Take a grant back; what it covered is asked about again.

    GRANT is the id of a grant, or the six characters at its end.
    """
    grant_id = _grant_id(invocation, grant)
    taken = invocation.client.ask(Grant, "DELETE", f"/grants/{grant_id}", field="grant")
    if invocation.json:
        show_json(taken)
        return
    show([f"{printable_line(taken.tool)} for {escape_line(taken.kind)} is asked about again."])


@approvals.command("export")
@click.pass_obj
def export(invocation: Invocation) -> None:
    """Print every question and answer as lines of JSON, each chained to the one before it."""
    for line in invocation.client.download("/approvals/export").decode().rstrip("\n").split("\n"):
        show_json_line(line)
    sys.stdout.flush()


def _ask(invocation: Invocation, method: str, approval: str, verb: str = "", *, body: object = None) -> Approval:
    return invocation.client.ask(Approval, method, f"/approvals/{approval}{verb}", body=body, field="approval")


def _show(invocation: Invocation, one: Approval) -> None:
    if invocation.json:
        show_json(one)
        return
    told = [
        ("approval", one.approval_id),
        ("what", one.effect.summary),
        ("risk", one.effect.risk.value),
        ("asked because", f"{one.reason} (policy {', '.join(one.policies)})" if one.policies else one.reason),
        ("state", _state_text(one)),
        ("answered by", one.answered_by or ""),
        ("for", one.scope.value if one.scope is not None and one.decision == "allowed" else ""),
        ("saying", one.answer),
        ("called with", json.dumps(one.given, ensure_ascii=False) if one.given is not None else ""),
        ("asked again by", f"run {one.reissued_as}" if one.reissued_as else ""),
        ("covers", escape_line(class_of_pattern(one.effect, one.pattern) if one.pattern else one.effect.kind)),
        ("run", one.run_id),
    ]
    show(facts(told))
    if one.effect.detail:
        show(["(what was proposed, and not called:)"] if one.given is not None else [])
        show(detail_rows(one.effect.detail, width=screen_width()))


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"--arguments is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise click.UsageError("--arguments must be a JSON object.")
    return value


def _grant_id(invocation: Invocation, grant: str) -> str:
    if not is_id_suffix(grant):
        return grant
    found = invocation.client.ask(tuple[Grant, ...], "GET", "/grants", field="grants")
    return find_by_suffix(grant, (one.grant_id for one in found))


def _state_text(one: Approval) -> str:
    if one.decision is None:
        return f"open until {date_time(one.expires_at)}"
    return f"{one.decision.replace('_', ' ')} {date_time(one.answered_at)}".rstrip()


def _state(one: Grant) -> str:
    if one.revoked_at is not None:
        return f"revoked {date_time(one.revoked_at)}"
    return f"until {date_time(one.expires_at)}" if one.expires_at is not None else "holds"
