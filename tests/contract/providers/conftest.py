"""A server that plays the provider, and the model that is asked there."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from palyra.core.model.catalog import ModelProvider
from palyra.core.model.prompt import Message, ModelEvent, Prompt, Role
from palyra.core.tool import ToolSpec
from palyra.providers.base import ProviderFailed
from palyra.providers.registry import load_dialect
from palyra.providers.transport.http import ProviderHttpClient
from palyra.providers.transport.remote_provider import RemoteProvider, full_model_card
from palyra.secret_references import SecretReferenceNotFound
from tests.contract.providers.wire import Wire, wires
from tests.support.model_server import ModelServer, model_server

KEYS = {"env:KEY": "sk-0123456789abcdefghij", "env:SECOND": "sk-zyxwvutsrqponmlkjihg"}
PROMPT = Prompt(
    system="Be brief.",
    tools=tuple(
        ToolSpec(name=name, description=name, parameters={"type": "object", "properties": {}})
        for name in ("files.read", "time.now")
    ),
    messages=(Message(role=Role.USER, text="hello"),),
)

Asking = Callable[..., RemoteProvider]


@pytest.fixture(params=wires(), ids=lambda wire: wire.name)
def wire(request: pytest.FixtureRequest) -> Wire:
    """Each dialect."""
    found: Wire = request.param
    return found


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with model_server() as made:
        yield made


@pytest.fixture
async def http() -> AsyncIterator[ProviderHttpClient]:
    made = ProviderHttpClient()
    yield made
    await made.close()


@pytest.fixture
def asking(wire: Wire, server: ModelServer, http: ProviderHttpClient) -> Asking:
    """Make the model of the dialect that answers at the server, or elsewhere, with settings of its own."""

    def make(**settings: Any) -> RemoteProvider:
        table = ModelProvider(**{"dialect": wire.dialect, "base_url": server.url, "key": "env:KEY", **settings})
        speaks = load_dialect(wire.dialect)
        return RemoteProvider(
            "acme",
            wire.model,
            speaks=speaks,
            settings=table,
            card=full_model_card(table, speaks, wire.model),
            key=resolved,
            http=http,
        )

    return make


async def resolved(reference: str) -> str:
    """Return the key at a reference."""
    if reference not in KEYS:
        raise SecretReferenceNotFound(f"{reference} is not set or does not exist.")
    return KEYS[reference]


async def said(model: RemoteProvider, prompt: Prompt = PROMPT) -> list[ModelEvent]:
    """Return all that a model says in a turn."""
    return [event async for event in model.stream(prompt)]


async def failing(model: RemoteProvider, prompt: Prompt = PROMPT) -> ProviderFailed:
    """Return how a turn fails. Whatever it is, it names provider and model in one line, and no key."""
    with pytest.raises(ProviderFailed) as caught:
        await said(model, prompt)
    failed = caught.value
    assert "acme" in failed.detail
    assert model.model in failed.detail
    assert failed.detail.isprintable()
    assert failed.detail.endswith(".")
    assert not any(key in failed.detail for key in KEYS.values())
    return failed
