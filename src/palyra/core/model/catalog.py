"""The catalog of language models: their providers, their capabilities, and which model is used for what."""

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from palyra.core.errors import Invalid, NotFound

MAX_PROVIDERS = 32
MAX_NAME_CHARS = 200
"""The maximum length of a model's name."""
BUILT_IN = ("embedded", "scripted")
"""Providers that work without a table in the settings."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_URL = re.compile(r"https?://[^\s/@\\?#]+(/[^\s\\?#]*)?(\?api-version=[A-Za-z0-9._-]{1,40})?")
"""Azure's version is the only query parameter that is allowed: anything else may be a secret."""
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")

Tokens = Annotated[int, Meta(ge=1, le=100_000_000)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]


class ModelNotFound(NotFound):
    """Unknown model or agent. `GET /v1/models` lists them."""


class ModelRequired(Invalid):
    """The provider has no default model. Name one as `PROVIDER/MODEL`."""


class ProviderNotFound(NotFound):
    """Unknown provider. `palyra providers list` lists them."""


class DialectName(StrEnum):
    """The API that a provider speaks."""

    OPENAI = "openai"
    """Chat Completions: OpenAI, and every compatible server."""
    RESPONSES = "responses"
    """OpenAI Responses."""
    ANTHROPIC = "anthropic"
    """Anthropic Messages."""
    GEMINI = "gemini"
    """Google Gemini."""
    LOCAL = "local"
    """A model file that runs in this process."""


class TaskClass(StrEnum):
    """What a run is for, as far as the choice of a model depends on it."""

    INTERACTIVE = "interactive"
    """A person waits for the answer."""
    BACKGROUND = "background"
    """No one waits: delegated and scheduled work."""
    AUXILIARY = "auxiliary"
    """Internal work: titles, summaries, test calls."""


class Complexity(StrEnum):
    """How demanding a turn seems to be."""

    SIMPLE = "simple"
    NORMAL = "normal"
    HARD = "hard"


ToolMode = Literal["native", "schema", "none"]
"""How a model calls tools: natively, through answers constrained by a JSON Schema, or not at all."""


class ModelCard(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the owner says about one model of a provider; the rest is known, or estimated conservatively."""

    window_tokens: Tokens | None = None
    """The maximum number of tokens of prompt and answer together."""
    max_output_tokens: Tokens | None = None
    """The maximum number of tokens of one answer."""
    tools: ToolMode | None = None
    """`native`: it calls tools by itself. `schema`: tool calls are emulated with answers constrained by a JSON Schema.
    `none`: it gets no tools."""
    vision: bool | None = None
    """It understands images."""
    reasoning: bool | None = None
    """It may be asked to reason first, and its reasoning is stored."""


class ModelProvider(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A provider as the configuration defines it."""

    dialect: DialectName
    """`openai` (and every compatible server), `responses`, `anthropic`, `gemini`, or `local`, a model file."""
    base_url: str | None = None
    """The base URL, without the path that the dialect adds (`https://api.openai.com/v1`); by default the vendor's."""
    key: str | None = None
    """A reference to its key: `env:NAME`, `file:/path`, `keyring:SERVICE/NAME` or `vault:NAME`; never the key."""
    keys: tuple[str, ...] = ()
    """Further keys, tried in this order when one is refused."""
    headers: dict[str, str] = {}
    """Headers of every request; a value may be a secret reference, as in `key`."""
    model: str | None = None
    """The model that is used if only the provider is named."""
    models: dict[str, ModelCard] = {}
    """Settings of single models, `[model.providers.NAME.models."MODEL"]`."""
    path: str | None = None
    """The model file (GGUF) of a `local` provider."""
    first_byte_timeout_seconds: Seconds = 60.0
    """The timeout until the answer begins, in seconds."""
    read_timeout_seconds: Seconds = 60.0
    """The timeout between two pieces of an answer, in seconds."""
    total_timeout_seconds: Seconds = 600.0
    """The timeout of one answer as a whole, in seconds."""
    max_attempts: Annotated[int, Meta(ge=1, le=10)] = 3
    """How often a turn is tried here before the next candidate is used."""


class RoutingRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which models are used, in this order, when all conditions match."""

    models: Annotated[tuple[str, ...], Meta(min_length=1)]
    """`PROVIDER` or `PROVIDER/MODEL`."""
    agent: str | None = None
    """The agent's name or id."""
    task: TaskClass | None = None
    complexity: Complexity | None = None


class Capabilities(Struct, frozen=True, kw_only=True):
    """What a model can do, as far as the choice of a model depends on it."""

    window_tokens: int
    max_output_tokens: int
    tools: bool = True
    vision: bool = False


def is_model_name(name: str) -> bool:
    """Return whether this can be the name of a model: it goes to the provider, the tape and the ledger."""
    return bool(name.strip()) and len(name) <= MAX_NAME_CHARS and name.isprintable()


def split_model_name(name: str) -> tuple[str, str | None]:
    """Return the provider and the model of `PROVIDER` or `PROVIDER/MODEL`; model names may contain further slashes."""
    provider, slash, model = name.partition("/")
    return provider, model if slash and model else None


def provider_problems(name: str, provider: ModelProvider) -> Iterator[tuple[str, str, str]]:
    """Yield what is wrong with a provider's settings: the key, the problem and the fix."""
    if not _NAME.fullmatch(name):
        yield "", "has a name that is not valid.", "Use up to 32 lower-case letters, digits, - and _."
    if name in BUILT_IN:
        yield "", f"cannot be called {name}: this name is built in.", "Choose another name."
    if provider.dialect is DialectName.LOCAL:
        if provider.path is None:
            yield "path", "has no model file.", "Set path to a GGUF file."
        for key in ("base_url", "key"):
            if getattr(provider, key) is not None:
                yield key, f"is local, so {key} does not apply.", "Remove it."
        return
    if provider.path is not None:
        yield "path", "is not local, so path does not apply.", 'Remove it, or set dialect = "local".'
    if provider.model is not None and not is_model_name(provider.model):
        yield "model", "has a model name that is not valid.", "Use up to 200 printable characters."
    if provider.base_url is not None and not _is_address(provider.base_url):
        yield (
            "base_url",
            "has a base_url that is not a valid URL.",
            (
                "Write https://HOST/PATH, without a user name or password; the only query parameter "
                "allowed is api-version."
            ),
        )
    for header in provider.headers:
        if not _HEADER.fullmatch(header):
            yield "headers", f"has a header {header[:40]!r} that cannot be sent.", "Fix its name."


def _is_address(url: str) -> bool:
    try:
        return _URL.fullmatch(url) is not None and urlsplit(url).port != 0
    except ValueError:
        return False
