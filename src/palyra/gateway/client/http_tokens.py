"""HTTP calls that concern tokens."""

from palyra.gateway.client.http_calls import HttpCalls, segment
from palyra.gateway.records.tokens import NewTokenResponse, TokenPage, TokenRequest, TokenResponse, TokenSummary

ROOT = "/admin/v1/tokens"


class TokenCalls:
    """Calls the operations on tokens of one daemon."""

    def __init__(self, http: HttpCalls) -> None:
        self._http = http

    def list(self, *, principal: str | None = None, limit: int, cursor: str | None = None) -> TokenPage:
        """Return a page of the tokens that were not revoked, the latest first."""
        return self._http.get(TokenPage, ROOT, {"principal": principal, "limit": limit, "cursor": cursor})

    def create(self, request: TokenRequest) -> NewTokenResponse:
        """Create a token; its secret is returned only this once."""
        return self._http.post(NewTokenResponse, ROOT, request)

    def revoke(self, token_id: str) -> TokenSummary:
        """Revoke a token."""
        return self._http.post(TokenResponse, f"{ROOT}/{segment(token_id)}/revoke").token
