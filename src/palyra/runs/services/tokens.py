"""Tokens: who may create, list and revoke which."""

import re
from collections.abc import Collection
from datetime import timedelta

from palyra.core.agent import Agent
from palyra.core.clock import Clock, to_ms
from palyra.core.errors import Conflict, Denied, Invalid, NotFound
from palyra.core.ids import AgentId, IdSource, PrincipalId, TokenId, parse_ulid
from palyra.core.message import clean_text
from palyra.core.token import TokenScope, TokenScopeMissing
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import agents, tokens
from palyra.journal.stores.tokens import ALL, TokenHolder, TokenRecord

INSTRUCTIONS = "You are Palyra, a helpful agent that runs on its owner's own machine."
DEFAULT_SCOPES = frozenset({TokenScope.READ, TokenScope.WRITE})
MAX_TOKENS = 100
MAX_NAME_CHARS = 80
MAX_LIFETIME = timedelta(days=3650)
AFTER_ALL = TokenId("~")
"""Sorts after every id."""

# The others, `channel:` and `system:`, are the daemon's own parts: no outside caller is one of them.
_PRINCIPAL = re.compile(r"(user|service):[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")


class TokenNotFound(NotFound):
    """Unknown token, or one that you may not see. `palyra tokens` lists yours."""


class TokenRequestInvalid(Invalid):
    """The request for a token is not valid."""


class TokenLimitReached(Conflict):
    """The principal has 100 tokens, which is the maximum. Revoke one first."""


class TokenScopeExceeded(Denied):
    """A token cannot create one with more scopes or a longer life than its own."""


class TokenService:
    """Creates, lists and revokes tokens for the holder of one."""

    def __init__(self, engine: Engine, *, clock: Clock, ids: IdSource) -> None:
        self._engine = engine
        self._clock = clock
        self._ids = ids

    async def create(
        self,
        actor: TokenHolder,
        principal: str | None = None,
        *,
        name: str,
        scopes: Collection[TokenScope] = DEFAULT_SCOPES,
        ttl: timedelta | None = None,
    ) -> tuple[TokenRecord, str]:
        """Create a token for a principal, by default the actor's own, and return it with its secret.

        A new principal also gets an agent, so that it can work at once.
        """
        whose = PrincipalId(principal or actor.principal)
        now_ms = to_ms(self._clock.now())
        token_scopes = ALL if TokenScope.ADMIN in scopes else frozenset(scopes)
        _check(whose, name, token_scopes, ttl)
        expires_ms = now_ms + ttl // timedelta(milliseconds=1) if ttl is not None else None
        _entitle(actor, whose, scopes=token_scopes, expires_ms=expires_ms)
        record = TokenRecord(
            TokenId(self._ids.new()), whose, name.strip(), now_ms, scopes=token_scopes, expires_ms=expires_ms
        )
        secret = tokens.new_secret()

        def unit(conn: Connection) -> None:
            if tokens.count(conn, whose, now_ms=now_ms) >= MAX_TOKENS:
                raise TokenLimitReached
            tokens.insert(conn, record, secret)
            welcome(conn, whose, ids=self._ids)

        await self._engine.write(unit)
        return record, secret

    async def list(
        self, actor: TokenHolder, principal: str | None = None, *, before: TokenId = AFTER_ALL, limit: int = 100
    ) -> list[TokenRecord]:
        """Return tokens, the latest first: for an admin all or one principal's, else the actor's own."""
        if TokenScope.ADMIN not in actor.scopes and principal not in (None, actor.principal):
            raise TokenScopeMissing(TokenScope.ADMIN, "listing the tokens of others")
        if principal is None and TokenScope.ADMIN in actor.scopes:
            return await self._engine.read(lambda conn: tokens.page(conn, before=before, limit=limit))
        whose = PrincipalId(principal or actor.principal)
        return await self._engine.read(lambda conn: tokens.page_of(conn, whose, before=before, limit=limit))

    async def revoke(self, actor: TokenHolder, token_id: str) -> TokenRecord:
        """Revoke a token."""
        requested_token_id = TokenId(parse_ulid(token_id, "token id"))
        now_ms = to_ms(self._clock.now())

        def unit(conn: Connection) -> TokenRecord:
            token_record = tokens.get(conn, requested_token_id)
            if token_record is None or (
                token_record.principal != actor.principal and TokenScope.ADMIN not in actor.scopes
            ):
                raise TokenNotFound
            tokens.revoke(conn, requested_token_id, now_ms=now_ms)
            revoked = tokens.get(conn, requested_token_id)
            assert revoked is not None
            return revoked

        return await self._engine.write(unit)


def welcome(conn: Connection, principal: PrincipalId, *, ids: IdSource) -> None:
    """Give a principal an agent to talk to, unless it has one."""
    if agents.default(conn, principal) is None:
        agent_id = AgentId(ids.new())
        agents.put(
            conn,
            Agent(agent_id=agent_id, principal=principal, name="main", instructions=INSTRUCTIONS, is_default=True),
        )


def _check(principal: PrincipalId, name: str, scopes: frozenset[TokenScope], ttl: timedelta | None) -> None:
    if not _PRINCIPAL.fullmatch(principal):
        raise TokenRequestInvalid(
            f"{principal[:120]!r} is not a valid principal for a token. Write user:NAME or "
            "service:NAME; the name may have up to 100 letters, digits and . _ @ + -."
        )
    clean_text(name, what="name")
    if not name.strip() or len(name) > MAX_NAME_CHARS:
        raise TokenRequestInvalid(
            f"The token's name must have 1 to {MAX_NAME_CHARS} characters; this one has {len(name.strip())}."
        )
    if not scopes:
        raise TokenRequestInvalid("A token needs at least one scope: read, write or admin.")
    if ttl is not None and not timedelta(seconds=1) <= ttl <= MAX_LIFETIME:
        raise TokenRequestInvalid(
            "The token's life must be between one second and ten years. Leave it out for a token that never expires."
        )


def _entitle(
    actor: TokenHolder, principal: PrincipalId, *, scopes: frozenset[TokenScope], expires_ms: int | None
) -> None:
    """Raise unless the actor may create such a token."""
    if TokenScope.ADMIN not in actor.scopes:
        if principal != actor.principal:
            raise TokenScopeMissing(TokenScope.ADMIN, "creating tokens for others")
        if excess := sorted(scopes - actor.scopes):
            raise TokenScopeExceeded(f"Your token lacks {', '.join(excess)}, so it cannot create a token that has it.")
    # A caller with access for a day must not be able to extend it.
    if actor.expires_ms is not None and (expires_ms is None or expires_ms > actor.expires_ms):
        raise TokenScopeExceeded("Your token expires before the one that it would create. Ask for a shorter life.")
