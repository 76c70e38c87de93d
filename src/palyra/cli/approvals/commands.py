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
from palyra.cli.terminal.output import date_time, facts, say, screen_width, show, show_json_line, table
from palyra.cli.terminal.printable import printable_line
from palyra.core.policy.approval import Approval, Grant
from palyra.core.policy.effect import class_of_pattern
from palyra.core.text.escaping import escape_line
from palyra.gateway.records.approvals import ApprovalAnswerRequest

MAX_GRANTS = 500
"""How many of the latest grants are listed, and searched for an id suffix."""


@click.group(cls=PalyraGroup, default="list")
def approvals() -> None:
    """List and answer approval requests. Without a command, lists the open ones.

    APPROVAL is the id of an approval request, its last six characters, or `last`: for `show` the most recent request,
    for `allow` and `deny` the only open one.
    """


approvals.add_command(reissue)


@approvals.command("list")
@click.option("--all", "everything", is_flag=True, help="Include answered requests.")
def list_approvals(invocation: Invocation, *, everything: bool = False) -> None:
    """List approval requests, newest first."""
    page = latest(invocation.client, only_open=not everything)
    if invocation.printed_json(page):
        return
    if not page.approvals and not everything:
        show(["No pending approvals."])
        return
    rows = [
        (one.approval_id[-CODE_CHARS:], _state_text(one), one.effect.risk, one.effect.summary) for one in page.approvals
    ]
    show(table(("CODE", "STATUS", "RISK", "ACTION"), rows))
    say("See the full request with `palyra approvals show CODE`.")


@approvals.command("show")
@click.argument("approval")
@click.option("--reveal", is_flag=True, help="Show the secrets behind markers such as [sealed:…].")
def show_approval(invocation: Invocation, approval: str, *, reveal: bool) -> None:
    """Show an approval request with its full effect."""
    approval_id = find_any(invocation.client, approval)
    calls = invocation.client.approvals
    _show(invocation, calls.reveal(approval_id) if reveal else calls.get(approval_id))


@approvals.command("allow")
@click.argument("approval")
@click.option(
    "--for", "scope", default="once", metavar="SCOPE", help="How long: once, session, always, or a time such as 30m."
)
@click.option("--reason", default="", help="Reason to give to the agent.")
@click.option(
    "--arguments", metavar="JSON", help="Run the call with these arguments instead. Policies apply to them as well."
)
@click.option(
    "--pattern",
    metavar="WORDS",
    help="With --for: allow commands that match, such as 'git push origin *'. * matches within one argument,"
    " a final ** matches all further arguments. Everything that matches runs without approval, including options that"
    " start other programs.",
)
def allow(
    invocation: Invocation, approval: str, *, scope: str, reason: str, arguments: str | None, pattern: str | None
) -> None:
    """Approve a call. Its run continues.

    With --for, the approval also covers later calls of the same kind: for a command, exactly that command in its
    folder, or with --pattern all commands that match.
    """
    answer = read_scope(scope)
    if answer is None:
        raise click.UsageError(
            f"{scope!r} is not a valid scope. Use How long: once, session, always, or a time such as 30m."
        )
    request = ApprovalAnswerRequest(
        decision="allow",
        scope=answer.scope,
        ttl_seconds=answer.ttl_seconds,
        reason=reason,
        arguments=_object(arguments) if arguments is not None else None,
        pattern=pattern or "",
    )
    _resolve(invocation, approval, request)


@approvals.command("deny")
@click.argument("approval")
@click.option("--reason", default="", help="Reason to give to the agent.")
def deny(invocation: Invocation, approval: str, *, reason: str) -> None:
    """Deny a call. Its run continues, and the agent gets the reason."""
    _resolve(invocation, approval, ApprovalAnswerRequest(decision="deny", reason=reason))


@approvals.command("grants")
def list_grants(invocation: Invocation) -> None:
    """List grants: approvals for more than one call."""
    page = invocation.client.approvals.grants(limit=MAX_GRANTS)
    rows = [
        (one.grant_id[-CODE_CHARS:], one.scope, _state(one), one.tool, escape_line(one.kind)) for one in page.grants
    ]
    invocation.report(page, table(("GRANT", "SCOPE", "STATUS", "TOOL", "COVERS"), rows) if rows else "No grants.")
    if page.next_cursor and not invocation.json:
        say(f"Only the latest {MAX_GRANTS} are listed.")


@approvals.command("revoke")
@click.argument("grant")
def revoke(invocation: Invocation, grant: str) -> None:
    """Revoke a grant. Calls that it covered need approval again.

    GRANT is the id of a grant, or its last six characters.
    """
    grant_id = _grant_id(invocation, grant)
    claimed_grant = invocation.client.approvals.revoke_grant(grant_id)
    invocation.report(
        claimed_grant,
        [f"Revoked. {printable_line(claimed_grant.tool)} for {escape_line(claimed_grant.kind)} needs approval again."],
    )


@approvals.command("export")
def export(invocation: Invocation) -> None:
    """Export all approval requests and answers as JSON lines, each with the hash of the previous one."""
    for line in invocation.client.approvals.export().decode().rstrip("\n").split("\n"):
        show_json_line(line)
    sys.stdout.flush()


def _resolve(invocation: Invocation, approval: str, request: ApprovalAnswerRequest) -> None:
    client = invocation.client
    _show(invocation, client.approvals.resolve(find_open(client, approval), request))


def _show(invocation: Invocation, one: Approval) -> None:
    if invocation.printed_json(one):
        return
    lines = [
        ("approval", one.approval_id),
        ("action", one.effect.summary),
        ("risk", one.effect.risk.value),
        ("reason", f"{one.reason} (policy {', '.join(one.policies)})" if one.policies else one.reason),
        ("status", _state_text(one)),
        ("answered by", one.answered_by or ""),
        ("for", one.scope.value if one.scope is not None and one.decision == "allowed" else ""),
        ("comment", one.answer),
        ("arguments", json.dumps(one.edited_arguments, ensure_ascii=False) if one.edited_arguments is not None else ""),
        ("reissued as", f"run {one.reissued_as}" if one.reissued_as else ""),
        ("covers", escape_line(class_of_pattern(one.effect, one.pattern) if one.pattern else one.effect.kind)),
        ("run", one.run_id),
    ]
    show(facts(*lines))
    if one.effect.detail:
        show(["(proposed by the agent, but not run:)"] if one.edited_arguments is not None else [])
        show(detail_rows(one.effect.detail, width=screen_width()))


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"--arguments is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise click.UsageError("--arguments must be a JSON object.")
    return value


def _grant_id(invocation: Invocation, grant: str) -> str:
    if not is_id_suffix(grant):
        return grant
    grants = invocation.client.approvals.grants(limit=MAX_GRANTS).grants
    return find_by_suffix(grant, (one.grant_id for one in grants))


def _state_text(one: Approval) -> str:
    if one.decision is None:
        return f"pending until {date_time(one.expires_at)}"
    return f"{one.decision.replace('_', ' ')} {date_time(one.answered_at)}".rstrip()


def _state(one: Grant) -> str:
    if one.revoked_at is not None:
        return f"revoked {date_time(one.revoked_at)}"
    return f"until {date_time(one.expires_at)}" if one.expires_at is not None else "active"
