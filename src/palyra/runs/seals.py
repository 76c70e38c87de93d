"""Secrets in texts: sealed in the vault where a text comes in, and opened only on the way back to where they came from.

A text that is about to be recorded goes through a `Sealing`. A secret in it becomes a marker, and its value is written
in the unit that records the text: at no moment is one there without the other. Where the vault cannot keep a value, the
text loses it; it is never recorded as it came in.
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
from palyra.core.marker import REMOVED, in_arguments, in_texts, is_id, marker, markers_in, resolved
from palyra.core.redact import replaced
from palyra.core.secret import SealedRecord
from palyra.core.shapes import spans
from palyra.core.tool import JsonObject
from palyra.journal import sealed, secrets
from palyra.journal.engine import Connection, Engine
from palyra.journal.sealed import Origin, SealedValue
from palyra.journal.sealing import Bond, KeyPlace, VaultKey
from palyra.runs.emit import Guard
from palyra.runs.secrets import Used

MAX_SEALED = 20_000
"""Of one principal."""
MAX_IN_TEXT = 1_000
LONG_CHARS = 16 * 1024
"""A longer text is not searched on the event loop."""

MESSAGE = "message"
"""The origin of what a person wrote."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class SealedNotFound(NotFound):
    """There is no sealed value of this id among yours. `palyra secrets sealed` lists them."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A value, and where it came from."""

    value: str
    origins: frozenset[str]


def call_origin(tool: str, arguments: JsonObject) -> str:
    """Return the origin of values that a call brings itself. The same call proposed again is the same origin."""
    digest = hashlib.sha256(msgspec.json.encode([tool, arguments], order="sorted"))
    return f"call:{digest.hexdigest()[:32]}"


class Seals:
    """The vault's part for values that were found in texts."""

    def __init__(self, engine: Engine, key: KeyPlace, *, clock: Clock, used: Used) -> None:
        self._engine = engine
        self._key = key
        self._clock = clock
        self.used = used

    def sealing(self, principal: PrincipalId) -> "Sealing":
        """Begin to seal the texts of one unit of work."""
        return Sealing(self, principal)

    async def open(self, principal: PrincipalId, ids: Collection[str]) -> dict[str, Opened]:
        """Return the principal's values of these ids. Raises if the vault cannot open one of them."""
        if not ids:
            return {}

        def query(conn: Connection) -> list[tuple[SealedValue, list[Origin]]]:
            found = sealed.get(conn, principal, ids)
            return [(one, sealed.origins_of(conn, principal, one.sealed_id)) for one in found]

        found = await self._engine.read(query)
        return await asyncio.to_thread(self._opened, found) if found else {}

    def _opened(self, found: Sequence[tuple[SealedValue, list[Origin]]]) -> dict[str, Opened]:
        key = self._key.load()
        if key is None:
            raise self._key.missing()
        opened: dict[str, Opened] = {}
        for one, origins in found:
            if one.key_id != key.key_id:
                raise self._key.other(marker(one.sealed_id), sealed_with=one.key_id, found=key)
            value = key.open(one.sealed, _bond(one.principal, one.sealed_id)).decode()
            proved = (
                origin.origin
                for origin in origins
                if origin.proof == key.proof(one.principal, one.sealed_id, origin.origin)
            )
            opened[one.sealed_id] = Opened(value, frozenset(proved))
            self.used.add_sealed(one.principal, value, one.sealed_id)
        return opened

    async def revealed(self, principal: PrincipalId, value: T) -> T:
        """Return a text, or a JSON value with texts in it, as its owner may see it: with values in place of markers."""
        opened = await self._shown(principal, markers_in(value))
        values = {name: one.value for name, one in opened.items()}
        shown = in_texts(value, lambda text: resolved(text, values.get))
        return cast("T", shown)

    async def reveal(self, principal: PrincipalId, sealed_id: str) -> str:
        """Return one value to its owner."""
        opened = await self._shown(principal, {sealed_id} if is_id(sealed_id) else set())
        if sealed_id not in opened:
            raise SealedNotFound
        return opened[sealed_id].value

    async def _shown(self, principal: PrincipalId, ids: Collection[str]) -> dict[str, Opened]:
        """Open values for a person's screen, and write down that this was done."""
        opened = await self.open(principal, ids)
        for sealed_id in sorted(opened):
            log.info("the sealed secret %s was revealed to %s", sealed_id, principal)
        return opened

    async def page(self, principal: PrincipalId, *, limit: int) -> list[SealedRecord]:
        """Return what of the principal's is sealed, the latest first, without the values."""
        found = await self._engine.read(lambda conn: sealed.page(conn, principal, limit=limit))
        return [
            SealedRecord(sealed_id=one.sealed_id, origins=one.origins, created_at=from_ms(one.created_ms))
            for one in found
        ]

    async def forget(self, principal: PrincipalId, sealed_id: str) -> None:
        """Delete one value for good. Its markers stay, and stand for nothing. It needs no key."""
        if not is_id(sealed_id) or not await self._engine.write(lambda conn: sealed.delete(conn, principal, sealed_id)):
            raise SealedNotFound
        self.used.forget_sealed(principal, sealed_id)

    async def key_for(self, principal: PrincipalId) -> VaultKey | None:
        """Return the key to seal with, made now if nothing was ever sealed; None if the vault cannot keep a value."""
        try:
            key = await asyncio.to_thread(self._key.load)
            exist, count = await self._engine.read(
                lambda conn: (secrets.exist(conn) or sealed.exist(conn), sealed.count(conn, principal))
            )
            if count >= MAX_SEALED:
                log.warning("%s has %d sealed values, which is as many as there may be", principal, count)
                return None
            if key is None and not exist:
                key = await asyncio.to_thread(self._key.load_or_create)
            if key is None:
                log.warning("a secret is removed from a text: %s", self._key.missing().detail)
            return key
        except (PalyraError, OSError) as error:
            log.warning("a secret is removed from a text, since the vault cannot keep it: %s", error)
            return None

    def now_ms(self) -> int:
        """Return the time at which something is sealed."""
        return to_ms(self._clock.now())


class Sealing:
    """The texts of one unit of work: they go in as they came, and out as they are recorded."""

    def __init__(self, seals: Seals, principal: PrincipalId) -> None:
        self._seals = seals
        self._principal = principal
        self._key: VaultKey | None = None
        self._values: dict[str, str] = {}
        self._origins: set[tuple[str, str]] = set()
        self.removed = 0
        """How many secrets the vault could not keep."""

    @property
    def sealed(self) -> int:
        """How many secrets there were."""
        return len(self._values)

    async def seal(self, text: str, *origins: str) -> str:
        """Return the text with markers for all secrets in it."""
        # What is stored by name comes first: its name says more than a marker.
        return (await self.found_in(self._seals.used.hide_for(self._principal, text), origins))[0]

    async def seal_inert(self, text: str, *origins: str) -> str:
        """Return the text with markers for secrets that nothing acts on: what a person approves hides no command."""
        return (await self.found_in(text, origins, only_inert=True))[0]

    async def seal_arguments(self, tool: str, arguments: JsonObject, *, only_inert: bool) -> JsonObject:
        """Return arguments with markers for the secrets that a call brings itself."""
        found: dict[str, str] = {}
        changed: dict[str, str] = {}
        for text in _texts(arguments):
            changed[text], ids = await self.found_in(text, (), only_inert=only_inert)
            found |= ids
        if not found:
            return arguments
        recorded = in_arguments(arguments, lambda text: changed.get(text, text))
        origin = call_origin(tool, recorded)
        self._origins |= {(sealed_id, origin) for sealed_id in found}
        return recorded

    async def found_in(
        self, text: str, origins: Sequence[str] = (), *, only_inert: bool = False
    ) -> tuple[str, dict[str, str]]:
        """Return the text with markers, and the values that they stand for by their ids."""
        known = self._seals.used.sealed(self._principal)
        is_long = len(text) > LONG_CHARS
        found = await asyncio.to_thread(_bounds, text, only_inert) if is_long else _bounds(text, only_inert)
        known = {value: name for value, name in known.items() if value in text and (not only_inert or _is_inert(value))}
        if not found and not known:
            return text, {}
        if self._key is None:
            self._key = await self._seals.key_for(self._principal)
        key = self._key
        text, values = await asyncio.to_thread(self._with_markers, text, found, known, key)
        for sealed_id, value in values.items():
            self._seals.used.add_sealed(self._principal, value, sealed_id)
        self._values |= values
        self._origins |= {(sealed_id, origin) for sealed_id in values for origin in origins}
        return text, values

    def _with_markers(
        self, text: str, found: Sequence[tuple[int, int]], known: dict[str, str], key: VaultKey | None
    ) -> tuple[str, dict[str, str]]:
        values: dict[str, str] = {}
        pieces: list[str] = []
        done = 0
        for start, end in found:
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
        # A value that was sealed before is sealed again: whether the unit of then was committed is not known here.
        again = [value for value in known if value in text]
        if key is None:
            self.removed += len(again)
            return replaced(text, {value: REMOVED for value in again}), values
        names = {value: key.marker_id(self._principal, value.encode()) for value in again}
        markers = {value: marker(name) for value, name in names.items()}
        return replaced(text, markers), values | {name: value for value, name in names.items()}

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
        origins = [Origin(name, origin, key.proof(principal, name, origin)) for name, origin in sorted(self._origins)]
        sealed.keep(conn, session_id, values, origins)

    def guard(self, session_id: SessionId) -> Guard | None:
        """Return what writes the values with the events of a step; None if there are none."""
        if not self._values:
            return None

        def write(conn: Connection) -> Sequence[RunEvent]:
            self.keep(conn, session_id)
            return ()

        return write


def _bond(principal: PrincipalId, sealed_id: str) -> Bond:
    return Bond(principal, f"sealed:{sealed_id}", 1, "")


def _bounds(text: str, only_inert: bool) -> list[tuple[int, int]]:
    found = [(span.start, span.end) for span in spans(text) if span.is_sure]
    return [(start, end) for start, end in found if not only_inert or _is_inert(text[start:end])]


def _is_inert(value: str) -> bool:
    """Tell whether no shell, and no reader, would take a value for anything but one word."""
    return all(letter.isascii() and (letter.isalnum() or letter in "_-+/=.:@%^,") for letter in value)


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for name, part in value.items() for text in (*_texts(name), *_texts(part))]
    if isinstance(value, list | tuple):
        return [text for part in value for text in _texts(part)]
    return []
