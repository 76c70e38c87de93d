"""Tokens over HTTP."""

from datetime import timedelta

from starlette.requests import Request
from starlette.responses import Response

from palyra.core.clock import from_ms
from palyra.core.ids import PrincipalId, TokenId
from palyra.gateway.auth import Auth
from palyra.gateway.cursor import page, to_id
from palyra.gateway.http.messages import cursor, json_response, number, read_body
from palyra.gateway.http.operation import CURSOR, Operation, Parameter, page_limit
from palyra.gateway.records.tokens import NewTokenResponse, TokenPage, TokenRequest, TokenResponse, TokenSummary
from palyra.journal.stores.tokens import TokenHolder, TokenRecord
from palyra.runs.services.tokens import AFTER_ALL, TokenService

LIMIT = page_limit(100)


class TokenRoutes:
    """The operations that concern tokens."""

    def __init__(self, auth: Auth, tokens: TokenService) -> None:
        self._auth = auth
        self._tokens = tokens

    def operations(self) -> list[Operation]:
        every = "/admin/v1/tokens"
        whose = Parameter("principal", "string", "Only tokens of this principal.")
        return [
            Operation(
                "listTokens", "GET", every, self.index, "List tokens.", query=(whose, LIMIT, CURSOR), answer=TokenPage
            ),
            Operation(
                "createToken",
                "POST",
                every,
                self.create,
                "Create a token.",
                need="write",
                body=TokenRequest,
                answer=NewTokenResponse,
                status=201,
            ),
            Operation(
                "revokeToken",
                "POST",
                f"{every}/{{token_id}}/revoke",
                self.revoke,
                "Revoke a token.",
                need="write",
                answer=TokenResponse,
            ),
        ]

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        """List tokens, the latest first."""
        holder = await self._holder(request)
        limit = number(request, LIMIT)
        before = TokenId(cursor(request, to_id) or AFTER_ALL)
        whose = request.query_params.get("principal")
        token_records = await self._tokens.list(holder, whose, before=before, limit=limit + 1)
        tokens, following = page(token_records, limit, lambda one: one.token_id)
        return json_response(
            TokenPage(tokens=[_token_summary(token, holder) for token in tokens], next_cursor=following)
        )

    async def create(self, request: Request, principal: PrincipalId) -> Response:
        """Create a token and return its secret."""
        holder = await self._holder(request)
        requested_request = await read_body(request, TokenRequest)
        seconds = requested_request.expires_in_seconds
        record, secret = await self._tokens.create(
            holder,
            requested_request.principal,
            name=requested_request.name,
            scopes=requested_request.scopes,
            ttl=timedelta(seconds=seconds) if seconds is not None else None,
        )
        answer = json_response(NewTokenResponse(token=_token_summary(record, holder), secret=secret), status=201)
        answer.headers["cache-control"] = "no-store"
        return answer

    async def revoke(self, request: Request, principal: PrincipalId) -> Response:
        """Revoke a token: here at once, on other replicas within two seconds."""
        holder = await self._holder(request)
        revoked = await self._tokens.revoke(holder, request.path_params["token_id"])
        self._auth.forget()
        return json_response(TokenResponse(token=_token_summary(revoked, holder)))

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
