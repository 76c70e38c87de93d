"""Seals secrets in texts: stored in the vault where a text arrives, opened only on the way back to their origin.

A text that is about to be recorded goes through a `SealingUnit`. A secret in it becomes a marker, and its value is
written in the unit of work that records the text: neither ever exists without the other. Where the vault cannot store a
value, the text loses it; it is never recorded as it came in.
"""

import asyncio
import hashlib
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import msgspec

from palyra.core.clock import Clock, from_ms, to_ms
from palyra.core.errors import NotFound, PalyraError
from palyra.core.events import RunEvent
from palyra.core.ids import PrincipalId, SessionId
from palyra.core.secret import SealedRecord
from palyra.core.text.redaction import replace_values
from palyra.core.text.secret_markers import (
    REMOVED,
    is_id,
    map_arguments,
    map_texts,
    marker,
    markers_in,
    resolve_markers,
)
from palyra.core.text.secret_patterns import secret_spans
from palyra.core.tool import JsonObject
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.vault import sealed_secrets, secrets
from palyra.journal.vault.sealed_secrets import SealedOrigin, SealedValue
from palyra.journal.vault.vault_key import SealedContext, VaultKey, VaultKeySource
from palyra.runs.recording.emit import Guard
from palyra.runs.services.secrets import UsedSecrets

MAX_SEALED = 20_000
"""For one principal."""
MAX_IN_TEXT = 1_000
LONG_CHARS = 16 * 1024
"""A longer text is not searched on the event loop."""

MESSAGE = "message"
"""The origin of text that a person wrote."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class SealedSecretNotFound(NotFound):
    """You have no such sealed secret. `palyra secrets sealed` lists yours."""


@dataclass(frozen=True, slots=True)
class OpenedSecret:
    """A value, and where it came from."""

    value: str
    origins: frozenset[str]


def call_origin(tool: str, arguments: JsonObject) -> str:
    """Return the origin of values that a call brings itself. The same call proposed again is the same origin."""
    digest = hashlib.sha256(msgspec.json.encode([tool, arguments], order="sorted"))
    return f"call:{digest.hexdigest()[:32]}"


class SecretSealer:
    """Seals and opens the secrets that are found in texts."""

    def __init__(self, engine: Engine, key: VaultKeySource, *, clock: Clock, used: UsedSecrets) -> None:
        self._engine = engine
        self._key = key
        self._clock = clock
        self.used = used

    def sealing(self, principal: PrincipalId) -> "SealingUnit":
        """Begin to seal the texts of one unit of work."""
        return SealingUnit(self, principal)

    async def open(self, principal: PrincipalId, ids: Collection[str]) -> dict[str, OpenedSecret]:
        """Return the principal's values for these ids. Raises if the vault cannot decrypt one of them."""
        if not ids:
            return {}

        def query(conn: Connection) -> list[tuple[SealedValue, list[SealedOrigin]]]:
            result = sealed_secrets.get(conn, principal, ids)
            return [(one, sealed_secrets.origins_of(conn, principal, one.sealed_id)) for one in result]

        result = await self._engine.read(query)
        return await asyncio.to_thread(self._opened, result) if result else {}

    def _opened(self, result: Sequence[tuple[SealedValue, list[SealedOrigin]]]) -> dict[str, OpenedSecret]:
        key = self._key.load()
        if key is None:
            raise self._key.missing()
        opened: dict[str, OpenedSecret] = {}
        for one, origins in result:
            if one.key_id != key.key_id:
                raise self._key.other(marker(one.sealed_id), sealed_with=one.key_id, vault_key=key)
            value = key.open(one.sealed, _bond(one.principal, one.sealed_id)).decode()
            proved = (
                origin.origin
                for origin in origins
                if origin.proof == key.proof(one.principal, one.sealed_id, origin.origin)
            )
            opened[one.sealed_id] = OpenedSecret(value, frozenset(proved))
            self.used.add_sealed(one.principal, value, one.sealed_id)
        return opened

    async def revealed(self, principal: PrincipalId, value: T) -> T:
        """Return a text, or a JSON value with texts in it, as its owner may see it: with values in place of markers."""
        opened = await self._open_for_display(principal, markers_in(value))
        values = {name: one.value for name, one in opened.items()}
        rows = map_texts(value, lambda text: resolve_markers(text, values.get))
        return cast("T", rows)

    async def reveal(self, principal: PrincipalId, sealed_id: str) -> str:
        """Return one value to its owner."""
        opened = await self._open_for_display(principal, {sealed_id} if is_id(sealed_id) else set())
        if sealed_id not in opened:
            raise SealedSecretNotFound
        return opened[sealed_id].value

    async def _open_for_display(self, principal: PrincipalId, ids: Collection[str]) -> dict[str, OpenedSecret]:
        """Open values for a person's screen, and record that."""
        opened = await self.open(principal, ids)
        for sealed_id in sorted(opened):
            log.info("the sealed secret %s was revealed to %s", sealed_id, principal)
        return opened

    async def page(
        self, principal: PrincipalId, *, limit: int, before: tuple[int, str] | None = None
    ) -> list[SealedRecord]:
        """Return the principal's sealed values, the latest first, without the values themselves."""
        sealed_listings = await self._engine.read(
            lambda conn: sealed_secrets.page(conn, principal, before=before, limit=limit)
        )
        return [
            SealedRecord(sealed_id=one.sealed_id, origins=one.origins, created_at=from_ms(one.created_ms))
            for one in sealed_listings
        ]

    async def delete(self, principal: PrincipalId, sealed_id: str) -> None:
        """Delete one value permanently. Its markers stay, without a value. This needs no key."""
        if not is_id(sealed_id) or not await self._engine.write(
            lambda conn: sealed_secrets.delete(conn, principal, sealed_id)
        ):
            raise SealedSecretNotFound
        self.used.forget_sealed(principal, sealed_id)

    async def key_for(self, principal: PrincipalId) -> VaultKey | None:
        """Return the key to seal with, created if nothing was ever sealed; None if the vault cannot store a value."""
        try:
            key = await asyncio.to_thread(self._key.load)
            exist, count = await self._engine.read(
                lambda conn: (secrets.exist(conn) or sealed_secrets.exist(conn), sealed_secrets.count(conn, principal))
            )
            if count >= MAX_SEALED:
                log.warning("%s has %d sealed secrets, which is the maximum", principal, count)
                return None
            if key is None and not exist:
                key = await asyncio.to_thread(self._key.load_or_create)
            if key is None:
                log.warning("a secret was removed from a text: %s", self._key.missing().detail)
            return key
        except (PalyraError, OSError) as error:
            log.warning("a secret was removed from a text, because the vault cannot store it: %s", error)
            return None

    def now_ms(self) -> int:
        """Return the time at which something is sealed."""
        return to_ms(self._clock.now())


class SealingUnit:
    """The texts of one unit of work: takes them as they came, and returns them as they are recorded."""

    def __init__(self, seals: SecretSealer, principal: PrincipalId) -> None:
        self._seals = seals
        self._principal = principal
        self._key: VaultKey | None = None
        self._values: dict[str, str] = {}
        self._origins: set[tuple[str, str]] = set()
        self.removed = 0
        """How many secrets the vault could not store."""

    @property
    def sealed(self) -> int:
        """How many secrets were found."""
        return len(self._values)

    async def seal(self, text: str, *origins: str) -> str:
        """Return the text with markers for all secrets in it."""
        # Secrets stored by name come first: a name says more than a marker.
        return (await self.seal_text(self._seals.used.hide_for(self._principal, text), origins))[0]

    async def seal_inert(self, text: str, *origins: str) -> str:
        """Return the text with markers for inert secrets only: what a person approves must not hide a command."""
        return (await self.seal_text(text, origins, only_inert=True))[0]

    async def seal_arguments(self, tool: str, arguments: JsonObject, *, only_inert: bool) -> JsonObject:
        """Return arguments with markers for the secrets that a call brings itself."""
        values: dict[str, str] = {}
        changed: dict[str, str] = {}
        for text in _texts(arguments):
            changed[text], ids = await self.seal_text(text, (), only_inert=only_inert)
            values |= ids
        if not values:
            return arguments
        recorded = map_arguments(arguments, lambda text: changed.get(text, text))
        origin = call_origin(tool, recorded)
        self._origins |= {(sealed_id, origin) for sealed_id in values}
        return recorded

    async def seal_text(
        self, text: str, origins: Sequence[str] = (), *, only_inert: bool = False
    ) -> tuple[str, dict[str, str]]:
        """Return the text with markers, and the values behind them by id."""
        cached = self._seals.used.sealed(self._principal)
        is_long = len(text) > LONG_CHARS
        result = await asyncio.to_thread(_bounds, text, only_inert) if is_long else _bounds(text, only_inert)
        cached = {
            value: name for value, name in cached.items() if value in text and (not only_inert or _is_inert(value))
        }
        if not result and not cached:
            return text, {}
        if self._key is None:
            self._key = await self._seals.key_for(self._principal)
        key = self._key
        text, values = await asyncio.to_thread(self._with_markers, text, result, cached, key)
        for sealed_id, value in values.items():
            self._seals.used.add_sealed(self._principal, value, sealed_id)
        self._values |= values
        self._origins |= {(sealed_id, origin) for sealed_id in values for origin in origins}
        return text, values

    def _with_markers(
        self, text: str, result: Sequence[tuple[int, int]], cached: dict[str, str], key: VaultKey | None
    ) -> tuple[str, dict[str, str]]:
        values: dict[str, str] = {}
        pieces: list[str] = []
        done = 0
        for start, end in result:
            instead = REMOVED
            if key is not None and len(values) < MAX_IN_TEXT:
                sealed_id = key.marker_id(self._principal, text[start:end].encode())
                values[sealed_id] = text[start:end]
                instead = marker(sealed_id)
            else:
                self.removed += 1
            pieces += [text[done:start], instead]
            done = end
        text = "".join([*pieces, text[done:]])
        # A value that was sealed before is sealed again: whether that unit was committed is not known here.
        again = [value for value in cached if value in text]
        if key is None:
            self.removed += len(again)
            return replace_values(text, {value: REMOVED for value in again}), values
        names = {value: key.marker_id(self._principal, value.encode()) for value in again}
        markers = {value: marker(name) for value, name in names.items()}
        return replace_values(text, markers), values | {name: value for value, name in names.items()}

    def keep(self, conn: Connection, session_id: SessionId) -> None:
        """Write the values, in the unit that records the texts."""
        key = self._key
        if not self._values or key is None:
            return
        now_ms, principal = self._seals.now_ms(), self._principal
        values = [
            SealedValue(
                principal, name, key.key_id, key.seal(value.encode(), _bond(principal, name)), created_ms=now_ms
            )
            for name, value in self._values.items()
        ]
        origins = [
            SealedOrigin(name, origin, key.proof(principal, name, origin)) for name, origin in sorted(self._origins)
        ]
        sealed_secrets.keep(conn, session_id, values, origins)

    def guard(self, session_id: SessionId) -> Guard | None:
        """Return the guard that writes the values with the events of a step; None if there are none."""
        if not self._values:
            return None

        def write(conn: Connection) -> Sequence[RunEvent]:
            self.keep(conn, session_id)
            return ()

        return write


def _bond(principal: PrincipalId, sealed_id: str) -> SealedContext:
    return SealedContext(principal, f"sealed:{sealed_id}", 1, "")


def _bounds(text: str, only_inert: bool) -> list[tuple[int, int]]:
    result = [(span.start, span.end) for span in secret_spans(text) if span.is_sure]
    return [(start, end) for start, end in result if not only_inert or _is_inert(text[start:end])]


def _is_inert(value: str) -> bool:
    """Tell whether every shell and reader would take a value for a single word."""
    return all(letter.isascii() and (letter.isalnum() or letter in "_-+/=.:@%^,") for letter in value)


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for name, part in value.items() for text in (*_texts(name), *_texts(part))]
    if isinstance(value, list | tuple):
        return [text for part in value for text in _texts(part)]
    return []
