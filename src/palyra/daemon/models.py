"""The models of a daemon: put together, and told of in one line."""

from collections.abc import Callable
from functools import partial

from palyra.core.clock import Clock
from palyra.core.model import Dialect, ModelCard, ModelProvider
from palyra.daemon.current import Current
from palyra.gateway.records import Part
from palyra.providers import registry
from palyra.providers.base import Provider
from palyra.providers.breaker import Breakers
from palyra.providers.http import Http
from palyra.providers.llama import Llama
from palyra.providers.registry import Connect
from palyra.providers.remote import Remote, ResolveKey, whole_card
from palyra.providers.roster import Roster


def connector(settings: Current, *, key: ResolveKey, http: Http, llama: Llama) -> Connect:
    """Return what makes a provider of the settings."""

    def connect(name: str, model: str | None, table: ModelProvider) -> Provider:
        most = settings.now.model.max_output_tokens
        if table.dialect is Dialect.LOCAL:
            return _local(name, model, table, llama, max_output_tokens=most)
        assert model is not None, "the settings were checked"
        card = whole_card(table, registry.dialect(table.dialect), model)
        remote = _remote(name, model, table, key=key, http=http, max_output_tokens=most)
        return _with_tools(remote, card)

    return connect


def passer_on(settings: Current, *, key: ResolveKey, http: Http) -> Callable[[str, str], Remote]:
    """Return what gives the provider and the model of two names, for requests that are passed on as they are."""

    def find(provider: str, model: str) -> Remote:
        now = settings.now.model
        table = now.providers[provider]
        return _remote(provider, model, table, key=key, http=http, max_output_tokens=now.max_output_tokens)

    return find


def _remote(
    name: str, model: str, table: ModelProvider, *, key: ResolveKey, http: Http, max_output_tokens: int
) -> Remote:
    speaks = registry.dialect(table.dialect)
    return Remote(
        name,
        model,
        speaks=speaks,
        settings=table,
        card=whole_card(table, speaks, model),
        key=key,
        http=http,
        max_output_tokens=max_output_tokens,
    )


def _local(name: str, model: str | None, table: ModelProvider, llama: Llama, *, max_output_tokens: int) -> Provider:
    # What few use is not loaded for all.
    from palyra.providers.local import Local, known, model_name

    model_name(table, model)
    card = known(table)
    return _with_tools(Local(name, table, card, llama, max_output_tokens=max_output_tokens), card)


def _with_tools(provider: Provider, card: ModelCard) -> Provider:
    """Return a model that calls tools, if it must be made to."""
    if card.tools != "schema":
        return provider
    from palyra.providers.constrained import Constrained

    return Constrained(provider)


def build(settings: Current, *, connect: Connect, clock: Clock) -> Roster:
    """Return the models of the settings; they follow the settings. Raise now if the first of them can not be used."""
    roster = Roster(
        lambda: settings.now.model, build=partial(registry.build, connect=connect), breakers=Breakers(clock)
    )
    roster.widest_tokens()
    return roster


def part(roster: Roster) -> Part:
    """Say who answers, and who is left alone after failures."""
    answers = f"{roster.default.name} {roster.default.model}"
    resting = [f"{name} is left alone for {seconds:.0f} s" for name, seconds in roster.resting().items()]
    return Part(name="provider", status="providers_resting" if resting else "ok", detail="; ".join((answers, *resting)))
