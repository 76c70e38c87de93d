"""`palyra tokens`: who has access, and with which scopes."""

import re
from typing import Any

import click

from palyra.cli.options import Invocation, PalyraGroup
from palyra.cli.terminal.output import date_time, facts, say, table
from palyra.cli.terminal.printable import printable_line
from palyra.core.errors import Invalid
from palyra.core.ids import parse_ulid
from palyra.core.token import TokenScope
from palyra.gateway.client.http_tokens import TokenCalls
from palyra.gateway.records.tokens import TokenRequest, TokenSummary

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

_LIFE = re.compile(r"(\d{1,6})([smhd])")


class TokenInUse(Invalid):
    """This command uses this token. Pass --yes to revoke it, then create a new one with `palyra restart`."""


class TokenLifetime(click.ParamType[int]):
    """How long something lives, as in 90s, 30m, 12h or 30d; in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = _LIFE.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is not a duration: use a number and s, m, h or d, such as 12h or 30d", param, ctx)
        return int(match[1]) * SECONDS[match[2]]


@click.group(cls=PalyraGroup, default="list")
def tokens() -> None:
    """Create, list and revoke API tokens. Without a command, lists them."""


@tokens.command("list")
@click.option("--principal", metavar="WHO", help="Only tokens of this principal, such as user:ana.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 500), help="Maximum number of tokens.")
def list_tokens(invocation: Invocation, principal: str | None = None, limit: int = 100) -> None:
    """List tokens that are not revoked, newest first."""
    page = invocation.client.tokens.list(principal=principal, limit=limit)
    rows = [
        [
            token.token_id,
            token.principal,
            "admin" if "admin" in token.scopes else ",".join(token.scopes),
            date_time(token.created_at),
            date_time(token.expires_at) or "never",
            f"{token.name} (in use here)" if token.current else token.name,
        ]
        for token in page.tokens
    ]
    listed = table(["TOKEN", "PRINCIPAL", "SCOPES", "CREATED", "EXPIRES", "NAME"], rows)
    invocation.report(page, listed if rows else "No tokens.")
    if page.next_cursor and not invocation.json:
        say(f"Showing the first {limit}. Use --limit to see more.")


@tokens.command("create")
@click.argument("name")
@click.option(
    "--principal", metavar="WHO", help="Principal of the token, such as user:ana or service:backup. Default: yours."
)
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(["read", "write", "admin"]),
    help="What the token allows; repeatable. Default: read and write.",
)
@click.option(
    "--expires", type=TokenLifetime(), metavar="TIME", help="Lifetime, such as 12h or 30d. Default: never expires."
)
def create_token(
    invocation: Invocation, name: str, *, principal: str | None, scopes: tuple[str, ...], expires: int | None
) -> None:
    """Create a token and print its secret, which is shown only once. NAME describes its purpose.

    A new principal gets its own agent.
    """
    request = TokenRequest(
        name=name,
        principal=principal,
        scopes=tuple(map(TokenScope, scopes or ("read", "write"))),
        expires_in_seconds=expires,
    )
    answer = invocation.client.tokens.create(request)
    if invocation.printed_json(answer):
        return
    made = answer.token
    # Only the secret goes to stdout, so that it can be piped to where it belongs.
    for line in facts(
        ("token", made.token_id),
        ("principal", made.principal),
        ("scopes", ", ".join(made.scopes)),
        ("expires", date_time(made.expires_at) or "never"),
    ):
        say(line)
    say("Save the secret now; it is shown only once:")
    print(printable_line(answer.secret))


@tokens.command("revoke")
@click.argument("token_id")
@click.option("--yes", is_flag=True, help="Revoke the token even if this command uses it.")
def revoke_token(invocation: Invocation, token_id: str, *, yes: bool) -> None:
    """Revoke a token. List the ids with `palyra tokens`."""
    calls, requested = invocation.client.tokens, parse_ulid(token_id, "token id")
    if not yes and any(token.current and token.token_id == requested for token in _all(calls)):
        raise TokenInUse
    revoked = calls.revoke(requested)
    if not invocation.printed_json({"token": revoked}):
        print(f"{revoked.token_id} ({printable_line(revoked.name)} of {printable_line(revoked.principal)}): revoked.")
        if revoked.current:
            say("This home no longer has a valid token. Create a new one with `palyra restart`.")


def _all(calls: TokenCalls) -> list[TokenSummary]:
    token_summaries: list[TokenSummary] = []
    cursor: str | None = None
    while True:
        page = calls.list(limit=500, cursor=cursor)
        token_summaries += page.tokens
        cursor = page.next_cursor
        if cursor is None:
            return token_summaries
