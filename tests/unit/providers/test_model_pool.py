"""The models that are kept ready."""

from msgspec.structs import replace

from palyra.core.agent import Agent
from palyra.core.ids import AgentId
from palyra.core.model.catalog import Complexity, DialectName, ModelProvider, TaskClass
from palyra.providers.base import FailureKind, Provider, ProviderFailed
from palyra.providers.circuit_breaker import FAILURES, CircuitBreakers
from palyra.providers.model_pool import MAX_KNOWN, ModelPool
from palyra.providers.routing import RoutingRequest, TurnNeeds
from palyra.settings import ModelSettings
from tests.support.builders import ANA
from tests.support.clock import FakeClock
from tests.unit.providers.writing import Writes

SETTINGS = ModelSettings(provider="mine", providers={"mine": ModelProvider(dialect=DialectName.OPENAI, model="own")})
AGENT = Agent(agent_id=AgentId("01ARZ3NDEKTSV4RRFFQ69G5FAV"), principal=ANA, name="main", instructions="")
TURN = RoutingRequest(TurnNeeds(), TaskClass.INTERACTIVE, Complexity.NORMAL)


def test_callers_that_name_ever_other_models_do_not_fill_the_memory() -> None:
    built: list[Provider] = []

    def build(settings: ModelSettings, name: str, model: str | None) -> Provider:
        made = Writes()
        made.name, made.model = name, model or "own"
        built.append(made)
        return made

    roster = ModelPool(lambda: SETTINGS, build=build, breakers=CircuitBreakers(FakeClock()))
    assert roster.plan(TURN, agent=AGENT).choice == "mine/own"
    for number in range(MAX_KNOWN + 10):
        name = f"mine/{number}"
        assert roster.plan(TURN, agent=AGENT, pinned=name).choice == name
    before = len(built)
    assert roster.named(f"mine/{MAX_KNOWN}") is roster.named(f"mine/{MAX_KNOWN}")
    assert len(built) == before
    # The first has been forgotten meanwhile, and is there again as soon as it is wanted.
    assert roster.plan(TURN, agent=AGENT).choice == "mine/own"
    roster.named("mine/0")
    assert len(built) > before


def test_a_model_file_is_among_the_models_though_the_settings_give_it_no_name() -> None:
    def build(settings: ModelSettings, name: str, model: str | None) -> Provider:
        made = Writes()
        made.name, made.model = name, model or "own"
        return made

    files = {"here": ModelProvider(dialect=DialectName.LOCAL, path="/models/own.gguf")}
    settings = ModelSettings(provider="mine", providers=SETTINGS.providers | files)
    roster = ModelPool(lambda: settings, build=build, breakers=CircuitBreakers(FakeClock()))
    assert roster.names() == ["mine/own", "here/own"]


def test_a_provider_whose_table_was_changed_is_left_alone_no_longer() -> None:
    now = SETTINGS

    def build(settings: ModelSettings, name: str, model: str | None) -> Provider:
        made = Writes()
        made.name, made.model = name, model or "own"
        return made

    roster = ModelPool(lambda: now, build=build, breakers=CircuitBreakers(FakeClock()))
    for _ in range(FAILURES):
        roster.failed(roster.named("mine"), ProviderFailed(kind=FailureKind.NETWORK))
    assert "mine" in roster.unavailable()
    now = replace(SETTINGS, fallback=("embedded",))
    assert "mine" in roster.unavailable(), "nothing was done about it"
    mended = replace(SETTINGS.providers["mine"], base_url="http://127.0.0.1:9/v1")
    now = replace(SETTINGS, providers={"mine": mended})
    assert not roster.unavailable()
