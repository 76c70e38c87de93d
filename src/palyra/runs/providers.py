"""The doors to the providers of models: how they stand, what they offer, and a trial of one.

A trial is a run like any other, so that it is on the tape, counts for the budgets, and can be cancelled.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from palyra.core import channel
from palyra.core.errors import NotFound
from palyra.core.ids import PrincipalId
from palyra.core.message import Inbound
from palyra.core.model import BUILT_IN, Dialect, ModelProvider, split
from palyra.core.provider import TEXTS, LostKey, ProviderStanding, ToolProbe, trial_of
from palyra.home import Home
from palyra.providers import registry
from palyra.providers.registry import UnknownProvider
from palyra.providers.remote import Remote
from palyra.providers.roster import Roster
from palyra.references import ReferenceUnresolved, resolve
from palyra.runs.secrets import Secrets
from palyra.settings import ModelSettings
from palyra.tables import reference_of

LIST = "its list of models"
"""Stands for the model in what is said when the list can not be had."""


class ProviderNotFound(NotFound):
    """There is no such provider. `palyra providers list` shows those there are."""


class ModelMissing(NotFound):
    """The provider has no model of its own. Name one as `PROVIDER/MODEL`."""


class Providers:
    """Looks at the providers that the settings name."""

    def __init__(
        self,
        settings: Callable[[], ModelSettings],
        *,
        roster: Roster,
        remote: Callable[[str, str], Remote],
        secrets: Secrets,
        home: Home,
        owner: PrincipalId,
    ) -> None:
        """`remote` gives the provider of a name, to be asked over HTTP for a model."""
        self._settings = settings
        self._roster = roster
        self._remote = remote
        self._secrets = secrets
        self._home = home
        self._owner = owner

    async def all(self) -> list[ProviderStanding]:
        """Return how each stands; of those that are built in, the ones that are asked."""
        settings = self._settings()
        named = [split(name)[0] for name in (settings.provider, *settings.fallback)]
        own = [ProviderStanding(name=name) for name in BUILT_IN if name in named]
        kept = {secret.name for secret in await self._secrets.list(self._owner)}
        own += await asyncio.to_thread(_look, settings.providers, kept=kept, base=self._home.path)
        return [self._placed(one, settings) for one in own]

    def order(self) -> list[str]:
        """Return who answers, and then who does when that one can not, as the settings name them."""
        settings = self._settings()
        return [settings.provider, *settings.fallback]

    async def models(self, name: str) -> list[str]:
        """Ask a provider which models it has."""
        table = self._settings().providers.get(name)
        if table is None:
            return [self._named(name)]
        if table.dialect is Dialect.LOCAL:
            return [self._roster.named(name).model]
        return await self._remote(name, LIST).models()

    def trial(self, principal: PrincipalId, name: str, probe: ToolProbe | None = None) -> Inbound:
        """Return the message that puts `PROVIDER` or `PROVIDER/MODEL` to the proof, in a session of its own; with a
        `probe`, how it deals with a tool."""
        self._named(name)
        # However often it has failed: it may have been mended, and to find that out is what a trial is for.
        self._roster.try_again(split(name)[0])
        return Inbound(principal=principal, text=TEXTS[probe], origin=channel.TRIAL, brief=trial_of(name, probe))

    def _named(self, name: str) -> str:
        provider, model = split(name)
        table = self._settings().providers.get(provider)
        if table is not None and model is None and table.model is None and table.dialect is not Dialect.LOCAL:
            raise ModelMissing(f"{provider} has no model of its own. Name one, as {provider}/MODEL.")
        try:
            return self._roster.named(name).model
        except UnknownProvider as error:
            raise ProviderNotFound(error.detail) from None

    def _placed(self, one: ProviderStanding, settings: ModelSettings) -> ProviderStanding:
        """Add what the settings and the failures of the last minutes say of it."""
        return msgspec.structs.replace(
            one,
            default=split(settings.provider)[0] == one.name,
            fallback=tuple(
                place for place, name in enumerate(settings.fallback, start=1) if split(name)[0] == one.name
            ),
            rests_seconds=self._roster.resting().get(one.name, 0.0),
        )


def _look(tables: Mapping[str, ModelProvider], *, kept: set[str], base: Path) -> list[ProviderStanding]:
    """Look at what the settings say of each, and whether its keys are there. Blocks."""
    return [_standing(name, table, tuple(_lost(table, kept=kept, base=base))) for name, table in tables.items()]


def _standing(name: str, table: ModelProvider, lost: tuple[LostKey, ...]) -> ProviderStanding:
    if table.dialect is Dialect.LOCAL:
        where, model = table.path or "", table.model or Path(table.path or "").stem
    else:
        where, model = table.base_url or registry.dialect(table.dialect).base_url, table.model or ""
    return ProviderStanding(
        name=name,
        dialect=table.dialect,
        where=where,
        keys=tuple(key for key in (table.key, *table.keys) if key),
        lost=lost,
        model=model,
        models=tuple(dict.fromkeys((*((model,) if model else ()), *table.models))),
    )


def _lost(table: ModelProvider, *, kept: set[str], base: Path) -> Iterator[LostKey]:
    """Find references that lead nowhere. What they lead to is looked at, and not kept."""
    for text in (table.key, *table.keys, *table.headers.values()):
        if not text or (reference := reference_of(text)) is None:
            continue
        try:
            if reference.kind != "vault":
                resolve(reference, base=base)
            elif reference.rest not in kept:
                raise ReferenceUnresolved(f"there is no secret {reference.rest} in the vault.")
        except ReferenceUnresolved as error:
            yield LostKey(reference=text, reason=error.detail)
