"""From a token to the principal that it proves, and to what it allows: one place for every door."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from palyra.core.clock import Clock, to_ms
from palyra.core.errors import PalyraError
from palyra.core.ids import PrincipalId
from palyra.gateway.connections import Slot
from palyra.gateway.rate import Rate
from palyra.gateway.status import Unauthenticated
from palyra.journal import tokens
from palyra.journal.engine import Connection, Engine
from palyra.journal.tokens import Holder, Scope
from palyra.runs.tokens import ScopeMissing

REMEMBERED_SECONDS = 2.0
MOST_REMEMBERED = 1024


class Auth:
    """Looks tokens up. What it found holds for two seconds at the most, here and on every other replica."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock,
        rate: Rate | None = None,
        conceal: Callable[[str, PrincipalId], str] = lambda text, principal: text,
    ) -> None:
        """`conceal` takes from a text what a principal that does not look after the daemon has no business with."""
        self._conceal = conceal
        self._engine = engine
        self._clock = clock
        self._rate = rate
        self._known: dict[str, tuple[float, Holder]] = {}

    async def admit(self, authorization: str | None, need: str = "read", *, slot: Slot | None = None) -> Holder:
        """Return what the token of a request proves, if it allows what the request needs; count it as one request.

        `slot` is the share of the connection that the request came on: a valid token keeps it.
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
            raise ScopeMissing(need)
        return holder

    @contextmanager
    def concealing(self, holder: Holder) -> Iterator[None]:
        """Take from errors what is only for those who look after the daemon: where its files are."""
        try:
            yield
        except Exception as raised:
            error = raised
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            if isinstance(error, PalyraError) and Scope.ADMIN not in holder.scopes:
                error.detail = self._conceal(error.detail, holder.principal)
            raise

    async def holder(self, authorization: str | None) -> Holder:
        """Return what the token in an authorization header proves."""
        scheme, _, secret = (authorization or "").partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not secret:
            raise Unauthenticated
        now, digest = self._clock.monotonic(), tokens.digest(secret)
        until, holder = self._known.get(digest, (0.0, None))
        if holder is None or until <= now:
            holder = await self._engine.read(lambda conn: _known_by(conn, digest))
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known[digest] = (now + REMEMBERED_SECONDS, holder)
        if holder.has_expired(now_ms=to_ms(self._clock.now())):
            raise Unauthenticated("The token has expired. Have a new one made with `palyra tokens create`.")
        return holder

    def forget(self) -> None:
        """Look every token up anew: one was revoked."""
        self._known.clear()


def _known_by(conn: Connection, digest: str) -> Holder:
    holder = tokens.principal_of(conn, digest)
    if holder is not None:
        return holder
    if tokens.is_revoked(conn, digest):
        raise Unauthenticated("The token was revoked. Have a new one made with `palyra tokens create`.")
    raise Unauthenticated("This daemon does not know the token. Use one that it made: `palyra tokens create`.")
