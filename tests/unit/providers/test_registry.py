"""Providers are built by name."""

import json
from pathlib import Path

import pytest

from palyra.providers.embedded.provider import Embedded
from palyra.providers.registry import ScriptMissing, UnknownProvider, build
from palyra.providers.scripted import Scripted


def test_the_embedded_provider_needs_nothing() -> None:
    provider = build("embedded", script=None)
    assert isinstance(provider, Embedded)
    assert provider.capabilities.window_tokens == 8192


def test_the_scripted_provider_plays_its_script(tmp_path: Path) -> None:
    script = tmp_path / "s.json"
    script.write_text(json.dumps({"model": "toy"}))
    provider = build("scripted", script=script)
    assert isinstance(provider, Scripted)
    assert provider.model == "toy"


def test_the_scripted_provider_without_a_script_says_what_it_needs() -> None:
    with pytest.raises(ScriptMissing, match="JSON or TOML file"):
        build("scripted", script=None)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownProvider, match=r"'gpt'.*embedded, scripted") as caught:
        build("gpt", script=None)
    assert caught.value.code == "unknown_provider"
