"""Builds the models of a daemon, and reports their status in one line."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

from palyra.core.clock import Clock
from palyra.core.model.catalog import DialectName, ModelCard, ModelProvider
from palyra.daemon.parts.vault import VaultParts
from palyra.daemon.process.live_config import LiveConfig
from palyra.daemon.process.system_clock import SystemIds
from palyra.gateway.records.daemon import DaemonPart
from palyra.home import Home
from palyra.journal.engines.base import Engine
from palyra.memory.prompt_assembly import PromptAssembler
from palyra.providers import registry
from palyra.providers.base import Provider
from palyra.providers.circuit_breaker import CircuitBreakers
from palyra.providers.local.llama import LlamaRuntime
from palyra.providers.model_pool import ModelPool
from palyra.providers.prices import CurrentPrices
from palyra.providers.registry import ProviderFactory
from palyra.providers.transport.http import ProviderHttpClient
from palyra.providers.transport.remote_provider import RemoteProvider, ResolveKey, full_model_card
from palyra.runs.engine.models import ModelParts
from palyra.runs.services.budgets import BudgetService
from palyra.runs.system import CurrentConfig, System
from palyra.settings import Settings


async def build_models(
    home: Home, config: LiveConfig, system: System, engine: Engine, vault: VaultParts, stack: AsyncExitStack
) -> ModelParts:
    """Return the models of the settings; connections and local models are closed when the stack is closed."""
    http = ProviderHttpClient()
    stack.push_async_callback(http.close)
    prices = await asyncio.to_thread(CurrentPrices, home, lambda: config.now)
    config.include_prices(prices)
    llama = LlamaRuntime()
    stack.push_async_callback(llama.close)
    key = vault.settings_secrets.value
    return ModelParts(
        pool=build_pool(system, connector(config, key=key, http=http, llama=llama)),
        prompts=PromptAssembler(engine),
        budgets=BudgetService(lambda: config.now.spending, prices),
        remote=embeddings_router(config, key=key, http=http),
    )


def connector(
    config: CurrentConfig, *, key: ResolveKey, http: ProviderHttpClient, llama: LlamaRuntime
) -> ProviderFactory:
    """Return the factory for providers of the settings."""

    def connect(name: str, model: str | None, table: ModelProvider) -> Provider:
        maximum = config.now.model.max_output_tokens
        if table.dialect is DialectName.LOCAL:
            return _local(name, model, table, llama, max_output_tokens=maximum)
        assert model is not None, "the settings were checked"
        card = full_model_card(table, registry.load_dialect(table.dialect), model)
        remote = _remote(name, model, table, key=key, http=http, max_output_tokens=maximum)
        return _with_tools(remote, card)

    return connect


def embeddings_router(
    config: CurrentConfig, *, key: ResolveKey, http: ProviderHttpClient
) -> Callable[[str, str], RemoteProvider]:
    """Return a function that finds a provider and model by name, for requests that are passed on unchanged."""

    def find(provider: str, model: str) -> RemoteProvider:
        now = config.now.model
        table = now.providers[provider]
        return _remote(provider, model, table, key=key, http=http, max_output_tokens=now.max_output_tokens)

    return find


def _remote(
    name: str, model: str, table: ModelProvider, *, key: ResolveKey, http: ProviderHttpClient, max_output_tokens: int
) -> RemoteProvider:
    speaks = registry.load_dialect(table.dialect)
    return RemoteProvider(
        name,
        model,
        speaks=speaks,
        settings=table,
        card=full_model_card(table, speaks, model),
        key=key,
        http=http,
        max_output_tokens=max_output_tokens,
    )


def _local(
    name: str, model: str | None, table: ModelProvider, llama: LlamaRuntime, *, max_output_tokens: int
) -> Provider:
    # Imported here, since few homes use it.
    from palyra.providers.local.provider import LocalProvider, model_card, model_name

    model_name(table, model)
    card = model_card(table)
    return _with_tools(LocalProvider(name, table, card, llama, max_output_tokens=max_output_tokens), card)


def _with_tools(provider: Provider, card: ModelCard) -> Provider:
    """Return the provider, with emulated tool calls if its model needs them."""
    if card.tools != "schema":
        return provider
    from palyra.providers.emulated_tools.provider import EmulatedToolsProvider

    return EmulatedToolsProvider(provider)


def build_pool(system: System, connect: ProviderFactory) -> ModelPool:
    """Return the models of the settings; they follow the settings. Raise now if the first of them cannot be used."""
    roster = ModelPool(
        lambda: system.config.now.model,
        build=partial(registry.build, connect=connect),
        breakers=CircuitBreakers(system.clock),
    )
    roster.widest_tokens()
    return roster


def check_model(home: Home, settings: Settings, *, clock: Clock) -> None:
    """Raise if the configured models cannot be used: a script or a model file is missing, or a name is unknown."""

    async def no_key(_: str) -> str:
        raise AssertionError("nothing is asked here")

    system = System(clock, SystemIds(clock), LiveConfig(home, settings))
    connect = connector(system.config, key=no_key, http=ProviderHttpClient(), llama=LlamaRuntime())
    build_pool(system, connect)


def model_status(roster: ModelPool) -> DaemonPart:
    """Report which model is used, and which ones are paused after failures."""
    answers = f"{roster.default.name} {roster.default.model}"
    unavailable = [f"{name} is not used for {seconds:.0f} s" for name, seconds in roster.unavailable().items()]
    return DaemonPart(
        name="provider",
        status="providers_unavailable" if unavailable else "ok",
        detail="; ".join((answers, *unavailable)),
    )
