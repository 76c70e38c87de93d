"""Tokens, as the HTTP API takes and returns them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from palyra.core.ids import PrincipalId, TokenId
from palyra.core.token import TokenScope


class TokenRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token as it should be."""

    name: str
    principal: str | None = None
    """Whose it is; the caller's own if none is named."""
    scopes: tuple[TokenScope, ...] = (TokenScope.READ, TokenScope.WRITE)
    expires_in_seconds: Annotated[int, Meta(ge=1, le=3650 * 86400)] | None = None


class TokenSummary(Struct, frozen=True, kw_only=True):
    """A token without its secret."""

    token_id: TokenId
    principal: PrincipalId
    name: str
    scopes: Sequence[TokenScope]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    current: bool
    """This request was made with it."""


class TokenPage(Struct, frozen=True, kw_only=True):
    """Tokens that were not revoked, the latest first."""

    tokens: Sequence[TokenSummary]
    next_cursor: str | None = None


class TokenResponse(Struct, frozen=True, kw_only=True):
    """One token."""

    token: TokenSummary


class NewTokenResponse(Struct, frozen=True, kw_only=True):
    """A new token, and its secret, which is shown only once."""

    token: TokenSummary
    secret: str
