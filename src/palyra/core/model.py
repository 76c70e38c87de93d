"""Language models as the owner names them: who offers one, what it can do, and which is asked for what."""

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct

MAX_PROVIDERS = 32
MOST_NAME_CHARS = 200
"""Of a model."""
BUILT_IN = ("embedded", "scripted")
"""Providers that need no table of their own."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_URL = re.compile(r"https?://[^\s/@\\?#]+(/[^\s\\?#]*)?(\?api-version=[A-Za-z0-9._-]{1,40})?")
"""Of all that can stand behind a question mark only Azure's version is let in: anything else may be a secret."""
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")

Tokens = Annotated[int, Meta(ge=1, le=100_000_000)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]


class Dialect(StrEnum):
    """How a provider is spoken to."""

    OPENAI = "openai"
    """Chat Completions: OpenAI, and every server that does as it does."""
    RESPONSES = "responses"
    """OpenAI Responses."""
    ANTHROPIC = "anthropic"
    """Anthropic Messages."""
    GEMINI = "gemini"
    """Google Gemini."""
    LOCAL = "local"
    """A model file that is run in this process."""


class TaskClass(StrEnum):
    """What a run is for, as far as the choice of a model goes."""

    INTERACTIVE = "interactive"
    """Somebody waits for the answer."""
    BACKGROUND = "background"
    """Nobody waits: delegated and scheduled work."""
    AUXILIARY = "auxiliary"
    """Work about the work: titles, summaries, trials."""


class Complexity(StrEnum):
    """How much a turn seems to ask of the model."""

    SIMPLE = "simple"
    NORMAL = "normal"
    HARD = "hard"


ToolMode = Literal["native", "schema", "none"]
"""How a model calls tools: by itself, by answers that must keep to a JSON Schema, or not at all."""


class ModelCard(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the owner says about one model of a provider; what is left out is known, or guessed with care."""

    window_tokens: Tokens | None = None
    """How much prompt and answer together may take."""
    max_output_tokens: Tokens | None = None
    """How long one answer may be."""
    tools: ToolMode | None = None
    """`native`: it calls tools by itself. `schema`: it is made to, by answers that must keep to a JSON Schema. `none`:
    it is offered no tools."""
    vision: bool | None = None
    """It understands pictures."""
    reasoning: bool | None = None
    """It may be asked to think first, and its thoughts are kept."""


class ModelProvider(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A provider as the configuration names it."""

    dialect: Dialect
    """`openai` (and every compatible server), `responses`, `anthropic`, `gemini`, or `local`, a model file."""
    base_url: str | None = None
    """Where it answers, up to what the dialect adds (`https://api.openai.com/v1`); the maker's own if none is named."""
    key: str | None = None
    """Where its key stands: `env:NAME`, `file:/path`, `keyring:SERVICE/NAME` or `vault:NAME`; never the key itself."""
    keys: tuple[str, ...] = ()
    """Further keys, tried in this order when one is refused."""
    headers: dict[str, str] = {}
    """Headers of every request; a value may say where a secret is, as in `key`."""
    model: str | None = None
    """The model that is asked if only the provider is named."""
    models: dict[str, ModelCard] = {}
    """What is to be known of its models, `[model.providers.NAME.models."MODEL"]`."""
    path: str | None = None
    """The model file (GGUF) of a `local` provider."""
    first_byte_seconds: Seconds = 60.0
    """Seconds until the answer must begin."""
    idle_seconds: Seconds = 60.0
    """Seconds that may pass between two pieces of an answer."""
    total_seconds: Seconds = 600.0
    """Seconds that one answer may take in all."""
    attempts: Annotated[int, Meta(ge=1, le=10)] = 3
    """How often a turn is tried here before the next candidate has its turn."""


class Rule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which models are asked, in this order, when all that is named here fits."""

    models: Annotated[tuple[str, ...], Meta(min_length=1)]
    """`PROVIDER` or `PROVIDER/MODEL`."""
    agent: str | None = None
    """The agent's name or id."""
    task: TaskClass | None = None
    complexity: Complexity | None = None


class Capabilities(Struct, frozen=True, kw_only=True):
    """What a model can do, as far as choosing among models goes."""

    window_tokens: int
    max_output_tokens: int
    tools: bool = True
    vision: bool = False


def is_model_name(name: str) -> bool:
    """Tell whether a model can have that name: it goes to the provider, the tape and the ledger."""
    return bool(name.strip()) and len(name) <= MOST_NAME_CHARS and name.isprintable()


def split(name: str) -> tuple[str, str | None]:
    """Return the provider and the model of `PROVIDER` or `PROVIDER/MODEL`; models may have further slashes."""
    provider, slash, model = name.partition("/")
    return provider, model if slash and model else None


def faults(name: str, provider: ModelProvider) -> Iterator[tuple[str, str, str]]:
    """Yield what is wrong with a provider of the configuration: the key, what it is, and a remedy."""
    if not _NAME.fullmatch(name):
        yield "", "has a name that can not be used.", "Use small letters, digits, - and _; at most 32 of them."
    if name in BUILT_IN:
        yield "", f"can not be called {name}: that is built in.", "Choose another name."
    if provider.dialect is Dialect.LOCAL:
        if provider.path is None:
            yield "path", "has no model file.", "Set path to a file in the GGUF format."
        for key in ("base_url", "key"):
            if getattr(provider, key) is not None:
                yield key, f"is local and has no use for {key}.", "Leave it out."
        return
    if provider.path is not None:
        yield "path", "is not local and has no use for path.", 'Leave it out, or set dialect = "local".'
    if provider.model is not None and not is_model_name(provider.model):
        yield "model", "has a model that has no name.", "Name one; up to 200 characters, all of which can be seen."
    if provider.base_url is not None and not _is_address(provider.base_url):
        yield (
            "base_url",
            "has a base_url that is no address of a server.",
            "Write https://HOST/PATH, without a name or a password in it; behind a question mark only api-version.",
        )
    for header in provider.headers:
        if not _HEADER.fullmatch(header):
            yield "headers", f"has a header {header[:40]!r} that can not be sent.", "Mend its name."


def _is_address(url: str) -> bool:
    try:
        return _URL.fullmatch(url) is not None and urlsplit(url).port != 0
    except ValueError:
        return False
