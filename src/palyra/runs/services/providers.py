"""Model providers: their status, their models, and a test of one.

A test is a run like any other, so that it is on the tape, counts for the budgets, and can be cancelled.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from palyra.core import channel
from palyra.core.ids import PrincipalId
from palyra.core.message import Inbound
from palyra.core.model.catalog import (
    BUILT_IN,
    DialectName,
    ModelProvider,
    ModelRequired,
    ProviderNotFound,
    split_model_name,
)
from palyra.core.model.provider_status import TEXTS, ProviderStatus, ToolProbe, UnresolvedKey, options_for_test
from palyra.home import Home
from palyra.providers import registry
from palyra.providers.model_pool import ModelPool
from palyra.providers.transport.remote_provider import RemoteProvider
from palyra.runs.services.secrets import SecretService
from palyra.secret_references import SecretReferenceNotFound, resolve
from palyra.settings import ModelSettings
from palyra.settings_tables import reference_of

LIST = "the list of models"
"""Replaces the model's name in the error when the list of models cannot be fetched."""


class ProviderService:
    """Reports on the providers that the settings name."""

    def __init__(
        self,
        settings: Callable[[], ModelSettings],
        *,
        roster: ModelPool,
        remote: Callable[[str, str], RemoteProvider],
        secrets: SecretService,
        home: Home,
        owner: PrincipalId,
    ) -> None:
        """`remote` returns the provider of a name, to be called over HTTP for a model."""
        self._settings = settings
        self._roster = roster
        self._remote = remote
        self._secrets = secrets
        self._home = home
        self._owner = owner

    async def all(self) -> list[ProviderStatus]:
        """Return the status of each; of the built-in ones, only those in use."""
        settings = self._settings()
        named = [split_model_name(name)[0] for name in (settings.provider, *settings.fallback)]
        own = [ProviderStatus(name=name) for name in BUILT_IN if name in named]
        stored = {secret.name for secret in await self._secrets.list(self._owner)}
        own += await asyncio.to_thread(_provider_statuses, settings.providers, stored=stored, base=self._home.path)
        return [self._placed(one, settings) for one in own]

    def order(self) -> list[str]:
        """Return the providers in fallback order, as the settings name them."""
        settings = self._settings()
        return [settings.provider, *settings.fallback]

    async def models(self, name: str) -> list[str]:
        """Return the models that a provider lists."""
        table = self._settings().providers.get(name)
        if table is None:
            return [self._named(name)]
        if table.dialect is DialectName.LOCAL:
            return [self._roster.named(name).model]
        return await self._remote(name, LIST).models()

    def trial(self, principal: PrincipalId, name: str, probe: ToolProbe | None = None) -> Inbound:
        """Return the message that tests `PROVIDER` or `PROVIDER/MODEL`, in a session of its own; with a `probe`, how it
        uses a tool."""
        self._named(name)
        # However often it has failed: it may work again, and a test is there to find that out.
        self._roster.try_again(split_model_name(name)[0])
        return Inbound(
            principal=principal, text=TEXTS[probe], channel=channel.TEST, options=options_for_test(name, probe)
        )

    def _named(self, name: str) -> str:
        provider, model = split_model_name(name)
        table = self._settings().providers.get(provider)
        if table is not None and model is None and table.model is None and table.dialect is not DialectName.LOCAL:
            raise ModelRequired(f"{provider} has no default model. Name one as {provider}/MODEL.")
        try:
            return self._roster.named(name).model
        except ProviderNotFound as error:
            raise ProviderNotFound(error.detail) from None

    def _placed(self, one: ProviderStatus, settings: ModelSettings) -> ProviderStatus:
        """Add what the settings and the failures of the last minutes say about it."""
        return msgspec.structs.replace(
            one,
            default=split_model_name(settings.provider)[0] == one.name,
            fallback=tuple(
                index for index, name in enumerate(settings.fallback, start=1) if split_model_name(name)[0] == one.name
            ),
            retry_in_seconds=self._roster.unavailable().get(one.name, 0.0),
        )


def _provider_statuses(tables: Mapping[str, ModelProvider], *, stored: set[str], base: Path) -> list[ProviderStatus]:
    """Check the settings of each, and whether its keys exist. Blocks."""
    return [
        _provider_status(name, table, tuple(_lost(table, stored=stored, base=base))) for name, table in tables.items()
    ]


def _provider_status(name: str, table: ModelProvider, lost: tuple[UnresolvedKey, ...]) -> ProviderStatus:
    if table.dialect is DialectName.LOCAL:
        where, model = table.path or "", table.model or Path(table.path or "").stem
    else:
        where, model = table.base_url or registry.load_dialect(table.dialect).base_url, table.model or ""
    return ProviderStatus(
        name=name,
        dialect=table.dialect,
        where=where,
        keys=tuple(key for key in (table.key, *table.keys) if key),
        lost=lost,
        model=model,
        models=tuple(dict.fromkeys((*((model,) if model else ()), *table.models))),
    )


def _lost(table: ModelProvider, *, stored: set[str], base: Path) -> Iterator[UnresolvedKey]:
    """Find references that do not resolve. Their values are checked, and not kept."""
    for text in (table.key, *table.keys, *table.headers.values()):
        if not text or (reference := reference_of(text)) is None:
            continue
        try:
            if reference.kind != "vault":
                resolve(reference, base=base)
            elif reference.rest not in stored:
                raise SecretReferenceNotFound(f"the vault has no secret {reference.rest}.")
        except SecretReferenceNotFound as error:
            yield UnresolvedKey(reference=text, reason=error.detail)
