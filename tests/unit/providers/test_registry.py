"""Providers are built by name."""

import json
from pathlib import Path

import pytest

from palyra.core.model.catalog import MAX_NAME_CHARS, DialectName, ModelProvider, ProviderNotFound
from palyra.providers.base import Provider
from palyra.providers.embedded.provider import EmbeddedProvider
from palyra.providers.registry import ModelNameInvalid, ScriptMissing, build
from palyra.providers.scripted import ScriptedProvider
from palyra.settings import ModelSettings


def nobody(name: str, model: str | None, settings: ModelProvider) -> Provider:
    raise AssertionError(f"{name} is built in")


def test_the_embedded_provider_needs_nothing() -> None:
    provider = build(ModelSettings(), "embedded", None, connect=nobody)
    assert isinstance(provider, EmbeddedProvider)
    assert provider.capabilities.window_tokens == 8192


def test_the_scripted_provider_plays_its_script(tmp_path: Path) -> None:
    script = tmp_path / "s.json"
    script.write_text(json.dumps({"model": "toy"}))
    provider = build(ModelSettings(script=str(script)), "scripted", None, connect=nobody)
    assert isinstance(provider, ScriptedProvider)
    assert provider.model == "toy"


def test_the_scripted_provider_without_a_script_says_what_it_needs() -> None:
    with pytest.raises(ScriptMissing, match="JSON or TOML file"):
        build(ModelSettings(), "scripted", None, connect=nobody)


def test_a_provider_of_the_settings_is_asked_for_its_own_model_if_none_is_named() -> None:
    asked = []

    def connect(name: str, model: str | None, settings: ModelProvider) -> Provider:
        asked.append((name, model, settings.dialect))
        return EmbeddedProvider()

    settings = ModelSettings(providers={"mine": ModelProvider(dialect=DialectName.OPENAI, model="small")})
    build(settings, "mine", None, connect=connect)
    build(settings, "mine", "large", connect=connect)
    assert asked == [("mine", "small", DialectName.OPENAI), ("mine", "large", DialectName.OPENAI)]


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ProviderNotFound, match=r"'gpt'.*embedded, scripted") as caught:
        build(ModelSettings(), "gpt", None, connect=nobody)
    assert caught.value.code == "provider_not_found"


@pytest.mark.parametrize("model", ["a\0b", "a\nb", "a\ud800", "m" * (MAX_NAME_CHARS + 1)])
def test_what_can_be_no_name_of_a_model_is_refused(model: str) -> None:
    settings = ModelSettings(providers={"mine": ModelProvider(dialect=DialectName.OPENAI)})
    with pytest.raises(ModelNameInvalid):
        build(settings, "mine", model, connect=nobody)
