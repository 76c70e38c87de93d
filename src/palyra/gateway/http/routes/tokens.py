"""Tokens over HTTP."""

from datetime import timedelta

from starlette.requests import Request
from starlette.responses import Response

from palyra.core.clock import from_ms
from palyra.core.ids import TokenId
from palyra.gateway.auth import Auth
from palyra.gateway.cursor import page, to_id
from palyra.gateway.http.declaration import Routes, operation
from palyra.gateway.http.messages import cursor, json_response, number
from palyra.gateway.http.operation import CURSOR, Parameter, page_limit
from palyra.gateway.records.tokens import NewTokenResponse, TokenPage, TokenRequest, TokenResponse, TokenSummary
from palyra.journal.stores.tokens import TokenHolder, TokenRecord
from palyra.runs.services.tokens import AFTER_ALL, TokenService

LIMIT = page_limit(100)
WHOSE = Parameter("principal", "string", "Only tokens of this principal.")


class TokenRoutes(Routes):
    """The operations that concern tokens."""

    def __init__(self, auth: Auth, tokens: TokenService) -> None:
        self._auth = auth
        self._tokens = tokens

    @operation("listTokens", "GET /admin/v1/tokens", query=(WHOSE, LIMIT, CURSOR))
    async def index(self, request: Request) -> TokenPage:
        """List tokens."""
        holder = await self._holder(request)
        limit = number(request, LIMIT)
        before = TokenId(cursor(request, to_id) or AFTER_ALL)
        whose = request.query_params.get("principal")
        token_records = await self._tokens.list(holder, whose, before=before, limit=limit + 1)
        tokens, following = page(token_records, limit, lambda one: one.token_id)
        return TokenPage(tokens=[_token_summary(token, holder) for token in tokens], next_cursor=following)

    @operation("createToken", "POST /admin/v1/tokens", answer=NewTokenResponse, status=201)
    async def create(self, request: Request, body: TokenRequest) -> Response:
        """Create a token."""
        holder = await self._holder(request)
        seconds = body.expires_in_seconds
        record, secret = await self._tokens.create(
            holder,
            body.principal,
            name=body.name,
            scopes=body.scopes,
            ttl=timedelta(seconds=seconds) if seconds is not None else None,
        )
        answer = json_response(NewTokenResponse(token=_token_summary(record, holder), secret=secret), status=201)
        answer.headers["cache-control"] = "no-store"
        return answer

    @operation("revokeToken", "POST /admin/v1/tokens/{token_id}/revoke")
    async def revoke(self, request: Request, token_id: str) -> TokenResponse:
        """Revoke a token."""
        holder = await self._holder(request)
        revoked = await self._tokens.revoke(holder, token_id)
        self._auth.forget()
        return TokenResponse(token=_token_summary(revoked, holder))

    async def _holder(self, request: Request) -> TokenHolder:
        return await self._auth.holder(request.headers.get("authorization"))


def _token_summary(record: TokenRecord, holder: TokenHolder) -> TokenSummary:
    return TokenSummary(
        token_id=record.token_id,
        principal=record.principal,
        name=record.name,
        scopes=sorted(record.scopes),
        created_at=from_ms(record.created_ms),
        expires_at=from_ms(record.expires_ms) if record.expires_ms is not None else None,
        revoked_at=from_ms(record.revoked_ms) if record.revoked_ms is not None else None,
        current=record.token_id == holder.token_id,
    )
