"""The models of a daemon: put together, and told of in one line."""

from functools import partial

from palyra.core.clock import Clock
from palyra.core.model import ModelProvider
from palyra.daemon.current import Current
from palyra.gateway.records import Part
from palyra.providers import registry
from palyra.providers.base import Provider
from palyra.providers.breaker import Breakers
from palyra.providers.http import Http
from palyra.providers.registry import Connect
from palyra.providers.remote import Remote, whole_card
from palyra.providers.roster import Roster
from palyra.runs.references import Referred


def connector(settings: Current, *, referred: Referred, http: Http) -> Connect:
    """Return what makes a provider of the settings."""

    def connect(name: str, model: str | None, table: ModelProvider) -> Provider:
        assert model is not None, "the settings were checked"
        speaks = registry.dialect(table.dialect)
        return Remote(
            name,
            model,
            speaks=speaks,
            settings=table,
            card=whole_card(table, speaks, model),
            key=referred.value,
            http=http,
            max_output_tokens=settings.now.model.max_output_tokens,
        )

    return connect


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
