"""What is found on this machine: keys by their variables, servers by their answers."""

import pytest

from palyra.cli.providers.discovery import address_of, discover_providers, key_variable, models_at
from palyra.cli.providers.presets import PROVIDER_PRESETS, ProviderPreset
from palyra.core.model.catalog import DialectName, ModelProvider, provider_problems
from tests.support.model_server import Reply, answer, raw, silent
from tests.support.provider_thread import played

OLLAMA = PROVIDER_PRESETS["ollama"]


def server(url: str) -> ProviderPreset:
    return ProviderPreset("here", "Here", DialectName.OPENAI, url)


@pytest.mark.parametrize("known", PROVIDER_PRESETS.values(), ids=PROVIDER_PRESETS.keys())
def test_whatever_is_known_makes_a_provider(known: ProviderPreset) -> None:
    made = ModelProvider(dialect=known.dialect, base_url=known.base_url)
    assert list(provider_problems(known.name, made)) == []


def test_a_key_is_found_by_its_variable_and_an_empty_one_is_none() -> None:
    environ = {"GOOGLE_API_KEY": "g", "OPENAI_API_KEY": " ", "OTHER_API_KEY": "x"}

    found = discover_providers(environ, [one for one in PROVIDER_PRESETS.values() if not one.is_server])

    assert [(one.preset.name, one.variable) for one in found] == [("gemini", "GOOGLE_API_KEY")]
    assert key_variable(PROVIDER_PRESETS["gemini"], {"GEMINI_API_KEY": "a", "GOOGLE_API_KEY": "b"}) == "GEMINI_API_KEY"


@pytest.mark.parametrize(
    ("said", "address"),
    [
        ("", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0:5000", "http://127.0.0.1:5000/v1"),
        ("192.168.1.2", "http://192.168.1.2:11434/v1"),
        ("http://box:5000", "http://box:5000/v1"),
        ("https://box", "https://box:11434/v1"),
        ("[::1]:5000", "http://[::1]:5000/v1"),
        ("box:no-port", "http://127.0.0.1:11434/v1"),
    ],
)
def test_where_ollama_answers_is_what_its_variable_says(said: str, address: str) -> None:
    assert address_of(OLLAMA, {"OLLAMA_HOST": said}) == address


def test_servers_that_answer_are_found_with_their_models() -> None:
    with played(models=("a", "b")) as one:
        there = server(one.url)
        nobody = server("http://127.0.0.1:1/v1")

        (found,) = discover_providers({}, [there, nobody])

    assert found.preset is there
    assert found.summary == f"running at {one.url}, 2 models"


@pytest.mark.parametrize(
    ("reply", "models"),
    [
        (answer(200, {"object": "list", "data": None}), 0),
        (answer(200, "<html>Hello</html>"), None),
        (answer(200, {"models": []}), None),
        (answer(401, {"data": []}), None),
        (answer(302, "", headers={"Location": "http://127.0.0.1:1/"}), None),
        (raw(b"220 mail.example.org ESMTP\r\n"), None),
        (silent, None),
    ],
)
def test_what_answers_in_another_way_is_no_server_of_models(reply: Reply, models: int | None) -> None:
    with played() as one:
        one.server.play(reply)

        assert models_at(one.url) == models
