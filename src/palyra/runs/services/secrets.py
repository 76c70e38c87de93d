"""The vault's secrets: who may store, list and delete which one, and how one is used without being shown.

A value cannot be read back. A tool gets the headers of one request (`credentials_for`), the configuration gets the
secret that it names (`value_of`); `UsedSecrets` knows every value that this process used or set, and hides it in texts.
"""

import asyncio
import threading
from collections.abc import Sequence

from palyra.core.agent import AgentNotFound
from palyra.core.clock import Clock, to_ms
from palyra.core.errors import Conflict, NotFound
from palyra.core.ids import AgentId, PrincipalId
from palyra.core.secret import (
    SecretRecord,
    SecretScope,
    SecretScopeInvalid,
    SecretValue,
    check_name,
    check_scope,
    check_value,
    collide,
    header_value,
    host_name,
    may_use,
)
from palyra.core.text.redaction import MIN_VALUE_CHARS, hide_values, replace_values
from palyra.core.text.secret_markers import marker
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import agents
from palyra.journal.vault import sealed_secrets, secrets
from palyra.journal.vault.secrets import StoredSecret
from palyra.journal.vault.vault_key import SealedContext, VaultKey, VaultKeySource

MAX_SECRETS = 200
MAX_KNOWN = 1000
MAX_SEALED_KNOWN = 500
USE_NOTED_MS = 60_000
"""Uses within a minute are noted once: a busy agent would write a row for every request."""
FETCH = "http.fetch"


class SecretNotFound(NotFound):
    """You have no such secret. `palyra secrets` lists yours."""


class SecretLimitReached(Conflict):
    """You have 200 secrets, which is the maximum. Delete one first."""


class HeaderInUse(Conflict):
    """Another secret is already sent to this host in this header. Restrict one of the two, or delete the other."""


class UsedSecrets:
    """The values that this process has seen, so that they can be hidden wherever they occur. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[tuple[PrincipalId, bytes], str] = {}
        self._sealed: dict[tuple[PrincipalId, str], str] = {}

    def add(self, principal: PrincipalId, value: SecretValue) -> None:
        """Hide this value from now on."""
        with self._lock:
            # The latest is last, so that the least recently used is dropped.
            self._names.pop((principal, value.reveal()), None)
            self._names[principal, value.reveal()] = value.name
            if len(self._names) > MAX_KNOWN:
                del self._names[next(iter(self._names))]

    def hide(self, text: str) -> str:
        """Return a text of the daemon's own with `[secret NAME]` in place of every principal's values."""
        text = hide_values(text, self._known(None)) if self._names else text
        return replace_values(text, {value: marker(name) for value, name in self.sealed(None).items()})

    def hide_for(self, principal: PrincipalId, text: str) -> str:
        """Return a text of a principal's run without the principal's values. Others' must not change what it sees."""
        return hide_values(text, self._known(principal)) if self._names else text

    def sealed(self, principal: PrincipalId | None) -> dict[str, str]:
        """Return a principal's recently sealed or opened values, with their ids; every principal's for None."""
        with self._lock:
            return {value: name for (whose, value), name in self._sealed.items() if principal in (None, whose)}

    def add_sealed(self, principal: PrincipalId, value: str, sealed_id: str) -> None:
        """Recognise a sealed value from now on, wherever it occurs."""
        if len(value) < MIN_VALUE_CHARS:
            return
        with self._lock:
            self._sealed.pop((principal, value), None)
            self._sealed[principal, value] = sealed_id
            if len(self._sealed) > MAX_SEALED_KNOWN:
                del self._sealed[next(iter(self._sealed))]

    def forget_sealed(self, principal: PrincipalId, sealed_id: str) -> None:
        """Stop recognising a sealed value."""
        with self._lock:
            for cached in [
                cached for cached, name in self._sealed.items() if (cached[0], name) == (principal, sealed_id)
            ]:
                del self._sealed[cached]

    def _known(self, principal: PrincipalId | None) -> list[tuple[bytes, str]]:
        with self._lock:
            return [(value, name) for (whose, value), name in self._names.items() if principal in (None, whose)]


class SecretService:
    """Stores secrets for principals, and passes them to what may use them."""

    def __init__(self, engine: Engine, key: VaultKeySource, *, clock: Clock, used: UsedSecrets) -> None:
        self._engine = engine
        self._key = key
        self._clock = clock
        self._used = used

    async def set(
        self, principal: PrincipalId, name: str, value: bytes, scope: SecretScope | None = None
    ) -> SecretRecord:
        """Store a value under a name, replacing an earlier one; return everything except the value."""
        check_name(name)
        secret_scope = check_scope(scope or SecretScope())
        text = secrets.scope_text(secret_scope)
        secret_value = SecretValue(name, check_value(value, secret_scope))
        key = await self._key_to_seal()
        now = self._clock.now()

        def unit(conn: Connection) -> SecretRecord:
            others = secrets.of(conn, principal)
            before = next((other.record for other in others if other.record.name == name), None)
            if before is None and len(others) >= MAX_SECRETS:
                raise SecretLimitReached
            _check_is_free(conn, principal, name, secret_scope, others=others)
            record = SecretRecord(
                name=name,
                principal=principal,
                version=before.version + 1 if before is not None else 1,
                scope=secret_scope,
                created_at=before.created_at if before is not None else now,
                updated_at=now,
            )
            closed = key.seal(secret_value.reveal(), SealedContext(principal, name, record.version, text))
            secrets.put(conn, StoredSecret(record, text, key.key_id, closed))
            return record

        record = await self._engine.write(unit)
        self._used.add(principal, secret_value)
        return record

    async def list(self, principal: PrincipalId) -> list[SecretRecord]:
        """Return the principal's secrets by name, without their values."""
        return [
            stored_secret.record for stored_secret in await self._engine.read(lambda conn: secrets.of(conn, principal))
        ]

    async def delete(self, principal: PrincipalId, name: str) -> None:
        """Delete a secret. This needs no key, so that a vault whose key is lost can be cleaned up."""
        check_name(name)
        if not await self._engine.write(lambda conn: secrets.delete(conn, principal, name)):
            raise SecretNotFound

    async def credentials_for(
        self,
        principal: PrincipalId,
        agent_id: AgentId,
        host: str,
        *,
        tool: str = FETCH,
        only: tuple[str, ...] | None = None,
    ) -> dict[str, str]:
        """Return the headers that authenticate to a host; none if no secret is meant for it.

        `only` names the secrets that may be sent at all, None for every one.
        Send them over TLS only, to exactly that host and to none that it redirects to, and do not show them:
        neither to the model nor on the tape.
        """
        headers: dict[str, str] = {}
        for stored_secret in await self._fitting(principal, agent_id, host, tool):
            if only is not None and stored_secret.record.name not in only:
                continue
            scope = stored_secret.record.scope
            header = header_value(scope, (await self._opened(stored_secret)).reveal())
            headers[scope.header] = header
            # A short value is known by its full header: alone it would match by chance.
            self._used.add(principal, SecretValue(stored_secret.record.name, header.encode("latin-1")))
        return headers

    async def names_for(
        self, principal: PrincipalId, agent_id: AgentId, host: str, *, tool: str = FETCH
    ) -> tuple[str, ...]:
        """Return the names of the secrets that would be sent to a host. None is opened or counts as used."""
        return tuple(
            sorted(stored_secret.record.name for stored_secret in await self._fitting(principal, agent_id, host, tool))
        )

    async def _fitting(self, principal: PrincipalId, agent_id: AgentId, host: str, tool: str) -> Sequence[StoredSecret]:
        try:
            requested = host_name(host)
        except SecretScopeInvalid:
            return []  # for example an IPv6 address in brackets: no secret can be meant for it
        stored_secrets = await self._engine.read(lambda conn: secrets.of(conn, principal))
        return [
            stored_secret
            for stored_secret in stored_secrets
            if may_use(stored_secret.record.scope, host=requested, agent_id=agent_id, tool=tool)
        ]

    async def value_of(self, principal: PrincipalId, name: str) -> SecretValue:
        """Return a secret for a part of the daemon that the configuration lets use it (`vault:NAME`)."""
        check_name(name)
        stored_secret = await self._engine.read(lambda conn: secrets.get(conn, principal, name))
        if stored_secret is None:
            raise SecretNotFound(f"Unknown secret {name}. Store it with `palyra secrets set {name}`.")
        return await self._opened(stored_secret)

    async def _opened(self, stored_secret: StoredSecret) -> SecretValue:
        record = stored_secret.record
        key = await asyncio.to_thread(self._key.load)
        if key is None:
            raise self._key.missing()
        if key.key_id != stored_secret.key_id:
            raise self._key.other(record.name, sealed_with=stored_secret.key_id, vault_key=key)
        bond = SealedContext(record.principal, record.name, record.version, stored_secret.scope)
        value = SecretValue(record.name, key.open(stored_secret.sealed, bond))
        self._used.add(record.principal, value)
        await self._note_use(record)
        return value

    async def _note_use(self, record: SecretRecord) -> None:
        now_ms = to_ms(self._clock.now())
        if record.last_used_at is None or now_ms - to_ms(record.last_used_at) >= USE_NOTED_MS:
            principal, name = record.principal, record.name
            await self._engine.write(lambda conn: secrets.note_use(conn, principal, name, now_ms=now_ms))

    async def _key_to_seal(self) -> VaultKey:
        """Return the vault key, created now if nothing was ever sealed."""
        key = await asyncio.to_thread(self._key.load)
        if key is not None:
            return key
        if await self._engine.read(lambda conn: secrets.exist(conn) or sealed_secrets.exist(conn)):
            # A new key would hide the problem, and get in the way of the key that opens the other secrets.
            raise self._key.missing()
        return await asyncio.to_thread(self._key.load_or_create)


class AgentCredentials:
    """The secrets that one agent may send."""

    def __init__(
        self, secrets: SecretService, principal: PrincipalId, agent_id: AgentId, *, only: tuple[str, ...] | None = None
    ) -> None:
        self._only = only
        self._secrets = secrets
        self._principal = principal
        self._agent_id = agent_id

    async def names(self, host: str, *, tool: str) -> tuple[str, ...]:
        """Return which of them a tool would send to a host."""
        return await self._secrets.names_for(self._principal, self._agent_id, host, tool=tool)

    async def headers(self, host: str, *, tool: str) -> dict[str, str]:
        """Return the headers that authenticate to a host."""
        return await self._secrets.credentials_for(self._principal, self._agent_id, host, tool=tool, only=self._only)

    def only(self, names: tuple[str, ...]) -> "AgentCredentials":
        """Return these credentials, limited to the secrets of these names."""
        return AgentCredentials(self._secrets, self._principal, self._agent_id, only=names)


def _check_is_free(
    conn: Connection, principal: PrincipalId, name: str, scope: SecretScope, *, others: "list[StoredSecret]"
) -> None:
    """Raise unless the agents are the principal's own, and no other secret claims the same header."""
    for agent_id in scope.agents:
        if agents.get(conn, agent_id, principal) is None:
            raise AgentNotFound
    for other in others:
        if other.record.name != name and collide(scope, other.record.scope):
            raise HeaderInUse(
                f"The secret {other.record.name} is already sent to one of these hosts in the header "
                f"{scope.header}. Restrict one of the two to other hosts, agents or tools, or delete "
                "the other."
            )
