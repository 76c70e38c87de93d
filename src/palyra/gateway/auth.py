"""Authentication for every API: from a token to its principal and its scopes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from palyra.core.clock import Clock, to_ms
from palyra.core.errors import PalyraError
from palyra.core.ids import PrincipalId
from palyra.core.token import TokenScope, TokenScopeMissing
from palyra.gateway.connections import ConnectionSlot
from palyra.gateway.error_status import Unauthenticated
from palyra.gateway.rate_limit import RateLimiter
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import tokens
from palyra.journal.stores.tokens import TokenHolder

REMEMBERED_SECONDS = 2.0
MAX_REMEMBERED = 1024


class Auth:
    """Looks up tokens. A result is cached for at most two seconds, here and on every other replica."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock,
        rate: RateLimiter | None = None,
        conceal: Callable[[str, PrincipalId], str] = lambda text, principal: text,
    ) -> None:
        """`conceal` removes from a text what only administrators may see."""
        self._conceal = conceal
        self._engine = engine
        self._clock = clock
        self._rate = rate
        self._known: dict[str, tuple[float, TokenHolder]] = {}

    async def admit(
        self, authorization: str | None, need: str = "read", *, slot: ConnectionSlot | None = None
    ) -> TokenHolder:
        """Return the principal of a request's token if its scopes allow the request; count the request.

        `slot` is the slot of the request's connection: a valid token protects it from eviction.
        """
        try:
            holder = await self.holder(authorization)
        except Unauthenticated:
            if slot is not None:
                slot.rejected()
            raise
        if slot is not None:
            slot.authenticated(holder.principal)
        if self._rate is not None:
            self._rate.take(holder.principal)
        if need not in holder.scopes:
            raise TokenScopeMissing(need)
        return holder

    @contextmanager
    def concealing(self, holder: TokenHolder) -> Iterator[None]:
        """Remove from errors what only administrators may see: the paths of the daemon's files."""
        try:
            yield
        except Exception as raised:
            error = raised
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            if isinstance(error, PalyraError) and TokenScope.ADMIN not in holder.scopes:
                error.detail = self._conceal(error.detail, holder.principal)
            raise

    async def holder(self, authorization: str | None) -> TokenHolder:
        """Return the principal and scopes of the token in an authorization header."""
        scheme, _, secret = (authorization or "").partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not secret:
            raise Unauthenticated
        now, digest = self._clock.monotonic(), tokens.digest(secret)
        until, holder = self._known.get(digest, (0.0, None))
        if holder is None or until <= now:
            holder = await self._engine.read(lambda conn: _known_by(conn, digest))
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            self._known[digest] = (now + REMEMBERED_SECONDS, holder)
        if holder.has_expired(now_ms=to_ms(self._clock.now())):
            raise Unauthenticated("The token has expired. Create a new one with `palyra tokens create`.")
        return holder

    def forget(self) -> None:
        """Clear the cache: a token was revoked."""
        self._known.clear()


def _known_by(conn: Connection, digest: str) -> TokenHolder:
    holder = tokens.principal_of(conn, digest)
    if holder is not None:
        return holder
    if tokens.is_revoked(conn, digest):
        raise Unauthenticated("The token was revoked. Create a new one with `palyra tokens create`.")
    raise Unauthenticated("This daemon does not know the token. Use one that `palyra tokens create` made here.")
