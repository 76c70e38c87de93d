"""What may be written of a provider."""

import pytest

from palyra.core.model.catalog import DialectName, ModelProvider, provider_problems


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:11434/v1",
        "https://api.example.org",
        "https://api.example.org/",
        "https://[::1]:8080/v1",
        "https://name.openai.azure.com/openai/v1/",
        "https://name.openai.azure.com/openai/deployments/gpt-4o?api-version=2024-10-21",
        "https://name.openai.azure.com/openai/v1?api-version=preview",
    ],
)
def test_an_address_of_a_server_is_taken(url: str) -> None:
    assert not list(provider_problems("mine", ModelProvider(dialect=DialectName.OPENAI, base_url=url)))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:11434",
        "ftp://example.org/v1",
        "https://ana:secret@example.org/v1",
        "https://example.org/v1?key=secret",
        "https://example.org?key=secret",
        "https://example.org/v1?api-version=1&key=secret",
        "https://example.org/v1?api-version=",
        "https://example.org/v1#part",
        "https://example.org#part",
        "https://example.org/v 1",
        "https://",
        "https://example.org\\v1",
        "http://[::1/v1",
        "http://127.0.0.1:99999/v1",
        "http://127.0.0.1:abc/v1",
    ],
)
def test_an_address_with_anything_else_in_it_is_not(url: str) -> None:
    assert [
        key for key, _, _ in provider_problems("mine", ModelProvider(dialect=DialectName.OPENAI, base_url=url))
    ] == ["base_url"]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ü", "A", "-a", "a" * 33, "a\n", "embedded", "a.b"])
def test_a_name_that_can_not_be_used_is_told(name: str) -> None:
    assert [key for key, _, _ in provider_problems(name, ModelProvider(dialect=DialectName.OPENAI))] == [""]


@pytest.mark.parametrize("model", ["", "  ", "a\nb", "x" * 201])
def test_a_model_without_a_name_is_told(model: str) -> None:
    assert [key for key, _, _ in provider_problems("mine", ModelProvider(dialect=DialectName.OPENAI, model=model))] == [
        "model"
    ]


@pytest.mark.parametrize("model", ["gpt-4o", "org/model:free", "models/gemini 2", "x" * 200])
def test_a_model_may_be_called_what_its_maker_calls_it(model: str) -> None:
    assert not list(provider_problems("mine", ModelProvider(dialect=DialectName.OPENAI, model=model)))
