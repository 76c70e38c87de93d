"""The configured models: built on first use, and chosen for each turn."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from palyra.core.agent import Agent
from palyra.core.model.catalog import BUILT_IN, Complexity, RoutingRule, TaskClass, split_model_name
from palyra.core.model.routing_plan import RoutingMode, RoutingPlan
from palyra.providers.base import Provider, ProviderFailed
from palyra.providers.circuit_breaker import CircuitBreakers
from palyra.providers.routing import RoutingOption, RoutingPreference, RoutingRequest, plan
from palyra.settings import ModelSettings

MAX_KNOWN = 1_000
"""How many models are kept: callers may name any number of them."""

Build = Callable[[ModelSettings, str, str | None], Provider]
"""Builds the provider of that name for a model, by default its own. The only I/O is to read a script."""


@dataclass(slots=True)
class _BuiltModels:
    """The models built for one version of the settings."""

    settings: ModelSettings
    providers: dict[str, Provider] = field(default_factory=dict)
    options: dict[str, RoutingOption] = field(default_factory=dict)
    ordered: tuple[str, ...] = ()
    widest_tokens: int = 0


class ModelPool:
    """Holds every model by its name, `PROVIDER/MODEL`, and its health."""

    def __init__(self, settings: Callable[[], ModelSettings], *, build: Build, breakers: CircuitBreakers) -> None:
        self._settings = settings
        self._build = build
        self._breakers = breakers
        self._built = _BuiltModels(settings())

    def named(self, name: str) -> Provider:
        """Return the model of that name; the provider's default model if only a provider is named."""
        built = self._current()
        if name not in built.providers:
            provider, model = split_model_name(name)
            made = self._build(built.settings, provider, model)
            full = full_name(made)
            while len(built.providers) >= MAX_KNOWN:
                forgotten = next(iter(built.providers))
                built.providers.pop(forgotten)
                built.options.pop(forgotten, None)
            # The same model by another name is the same.
            built.providers[name] = built.providers.setdefault(full, made)
        return built.providers[name]

    def meant(self, name: str) -> str:
        """Return the full name of a requested model; raise if there is no such provider."""
        return full_name(self.named(name))

    def names(self) -> list[str]:
        """Return the models that the settings name, in the order of preference."""
        settings = self._current().settings
        named = [settings.provider, *settings.fallback, *(name for rule in settings.rules for name in rule.models)]
        for provider, table in settings.providers.items():
            named += [f"{provider}/{model}" for model in (*((table.model,) if table.model else ()), *table.models)]
            if table.path is not None and table.model is None:
                # A file is a model, named after the file.
                named.append(provider)
        return list(dict.fromkeys(full_name(self.named(name)) for name in named))

    @property
    def default(self) -> Provider:
        """The default model."""
        return self.named(self._current().settings.provider)

    @property
    def max_output_tokens(self) -> int:
        """The maximum length of an answer."""
        return self._current().settings.max_output_tokens

    def widest_tokens(self, pinned: str = "") -> int:
        """Return the largest window among the models that may be used."""
        if pinned:
            return self.named(pinned).capabilities.window_tokens
        built = self._current()
        if not built.widest_tokens:
            rules = (name for rule in built.settings.rules for name in rule.models)
            models = (self.named(name) for name in (built.settings.provider, *built.settings.fallback, *rules))
            built.widest_tokens = max(model.capabilities.window_tokens for model in models)
        return built.widest_tokens

    def plan(self, turn: RoutingRequest, *, agent: Agent, pinned: str = "") -> RoutingPlan:
        """Choose the model of a turn. A pinned one is the only candidate."""
        built = self._current()
        settings = built.settings
        if pinned:
            name = full_name(self.named(pinned))
            alone = RoutingPreference((name,), "named by the caller")
            return plan(turn, self._options(built, (name,)), ordered=alone, by_rules=None, mode=RoutingMode.SUGGEST)
        if not built.ordered:
            built.ordered = tuple(full_name(self.named(name)) for name in (settings.provider, *settings.fallback))
        by_rules = self._by_rules(settings, agent, turn.task, turn.complexity)
        names = (*built.ordered, *(by_rules.names if by_rules is not None else ()))
        only = len(names) == 1 and not settings.providers.keys() - {split_model_name(settings.provider)[0]}
        return plan(
            turn,
            self._options(built, names),
            ordered=RoutingPreference(built.ordered, "the only model configured" if only else "the default"),
            by_rules=by_rules,
            mode=settings.routing,
        )

    def note_attempt(self, model: Provider) -> None:
        """Record that a turn of a model begins."""
        self._breakers.note_attempt(model.name)

    def answered(self, model: Provider) -> None:
        """Record that a turn ended."""
        self._breakers.answered(model.name)

    def failed(self, model: Provider, error: ProviderFailed) -> None:
        """Record that a turn failed."""
        self._breakers.failed(model.name, error)

    def try_again(self, provider: str) -> None:
        """Close a provider's circuit, to test it now."""
        self._breakers.forget(provider)

    def unavailable(self) -> dict[str, float]:
        """Return the providers with an open circuit, and for how many seconds it stays open."""
        self._current()
        return self._breakers.unavailable()

    def _by_rules(
        self, settings: ModelSettings, agent: Agent, task: TaskClass, complexity: Complexity
    ) -> RoutingPreference | None:
        for number, rule in enumerate(settings.rules, start=1):
            if _fits(rule, agent, task, complexity):
                names = tuple(full_name(self.named(name)) for name in rule.models)
                return RoutingPreference(names, f"rule {number}{_named(rule)}")
        return None

    def _options(self, built: _BuiltModels, names: tuple[str, ...]) -> dict[str, RoutingOption]:
        for name in names:
            if name not in built.options:
                built.options[name] = self._option(built.settings, self.named(name))
        options = {name: built.options[name] for name in names}
        for provider, seconds in self._breakers.unavailable().items():
            for name, option in options.items():
                if split_model_name(name)[0] == provider:
                    options[name] = replace(option, retry_in_seconds=seconds)
        return options

    def _option(self, settings: ModelSettings, provider: Provider) -> RoutingOption:
        table = settings.providers.get(provider.name)
        # A built-in provider fails for a reason that does not go away in a second.
        attempts = table.max_attempts if table is not None and provider.name not in BUILT_IN else 1
        return RoutingOption(full_name(provider), provider.capabilities, attempts=attempts)

    def _current(self) -> _BuiltModels:
        settings = self._settings()
        if settings is not self._built.settings:
            for name, table in settings.providers.items():
                if table != self._built.settings.providers.get(name):
                    # Its settings were changed: the old health does not apply.
                    self._breakers.forget(name)
            self._built = _BuiltModels(settings)
        return self._built


def full_name(provider: Provider) -> str:
    """Return the full name of a model: `PROVIDER/MODEL`."""
    return f"{provider.name}/{provider.model}"


def _fits(rule: RoutingRule, agent: Agent, task: TaskClass, complexity: Complexity) -> bool:
    return (
        (rule.agent is None or rule.agent in (agent.name, agent.agent_id))
        and (rule.task is None or rule.task is task)
        and (rule.complexity is None or rule.complexity is complexity)
    )


def _named(rule: RoutingRule) -> str:
    texts = [
        f"agent {rule.agent}" if rule.agent is not None else "",
        f"{rule.task} work" if rule.task is not None else "",
        f"{rule.complexity} turns" if rule.complexity is not None else "",
    ]
    words = ", ".join(word for word in texts if word)
    return f" ({words})" if words else ""
