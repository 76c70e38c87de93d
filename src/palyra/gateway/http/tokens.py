"""Tokens over HTTP."""

from datetime import datetime, timedelta
from typing import Annotated

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from palyra.core.clock import from_ms
from palyra.core.ids import PrincipalId, TokenId, parse_ulid
from palyra.gateway.auth import Auth
from palyra.gateway.http.operation import CURSOR, LIMIT, Operation, Query
from palyra.gateway.http.wire import MAX_PAGE, body, number, reply
from palyra.journal.tokens import Holder, Scope, TokenRecord
from palyra.runs.tokens import AFTER_ALL, Tokens


class TokenRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token as it should be."""

    name: str
    principal: str | None = None
    """Whose it is; the caller's own if none is named."""
    scopes: tuple[Scope, ...] = (Scope.READ, Scope.WRITE)
    expires_in_seconds: Annotated[int, Meta(ge=1, le=3650 * 86400)] | None = None


class Token(Struct, frozen=True, kw_only=True):
    """A token without its secret."""

    token_id: TokenId
    principal: PrincipalId
    name: str
    scopes: list[Scope]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    current: bool
    """It is the one that this request was made with."""


class TokensPage(Struct, frozen=True, kw_only=True):
    """Tokens that were not revoked, the latest first."""

    tokens: list[Token]
    next_cursor: str | None


class TokenAnswer(Struct, frozen=True, kw_only=True):
    """One token."""

    token: Token


class NewTokenAnswer(Struct, frozen=True, kw_only=True):
    """A new token, and its secret, which is told this once."""

    token: Token
    secret: str


class TokenRoutes:
    """The operations that concern tokens."""

    def __init__(self, auth: Auth, tokens: Tokens) -> None:
        self._auth = auth
        self._tokens = tokens

    def operations(self) -> list[Operation]:
        every = "/admin/v1/tokens"
        whose = Query("principal", "string", "Only tokens of this principal.")
        return [
            Operation("GET", every, self.index, "List tokens.", query=(whose, LIMIT, CURSOR), answer=TokensPage),
            Operation(
                "POST",
                every,
                self.create,
                "Make a token.",
                need="write",
                body=TokenRequest,
                answer=NewTokenAnswer,
                status=201,
            ),
            Operation(
                "DELETE", f"{every}/{{token_id}}", self.revoke, "Revoke a token.", need="write", answer=TokenAnswer
            ),
        ]

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        """List tokens, the latest first."""
        holder = await self._holder(request)
        limit = number(request, "limit", default=100, most=MAX_PAGE)
        cursor = request.query_params.get("cursor")
        before = AFTER_ALL if cursor is None else TokenId(parse_ulid(cursor, "cursor"))
        whose = request.query_params.get("principal")
        found = await self._tokens.list(holder, whose, before=before, limit=limit)
        last = found[-1].token_id if len(found) == limit else None
        return reply(TokensPage(tokens=[_shown(token, holder) for token in found], next_cursor=last))

    async def create(self, request: Request, principal: PrincipalId) -> Response:
        """Make a token and tell its secret."""
        holder = await self._holder(request)
        asked = await body(request, TokenRequest)
        seconds = asked.expires_in_seconds
        record, secret = await self._tokens.create(
            holder,
            asked.principal,
            name=asked.name,
            scopes=asked.scopes,
            ttl=timedelta(seconds=seconds) if seconds is not None else None,
        )
        answer = reply(NewTokenAnswer(token=_shown(record, holder), secret=secret), status=201)
        answer.headers["cache-control"] = "no-store"
        return answer

    async def revoke(self, request: Request, principal: PrincipalId) -> Response:
        """Make a token prove nothing from now on: here at once, on other replicas within two seconds."""
        holder = await self._holder(request)
        revoked = await self._tokens.revoke(holder, request.path_params["token_id"])
        self._auth.forget()
        return reply(TokenAnswer(token=_shown(revoked, holder)))

    async def _holder(self, request: Request) -> Holder:
        return await self._auth.holder(request.headers.get("authorization"))


def _shown(record: TokenRecord, holder: Holder) -> Token:
    return Token(
        token_id=record.token_id,
        principal=record.principal,
        name=record.name,
        scopes=sorted(record.scopes),
        created_at=from_ms(record.created_ms),
        expires_at=from_ms(record.expires_ms) if record.expires_ms is not None else None,
        revoked_at=from_ms(record.revoked_ms) if record.revoked_ms is not None else None,
        current=record.token_id == holder.token_id,
    )
