"""The tables of the settings whose entries the owner names: MCP servers, model providers, budgets.

Their keys are checked like all others. A value that may be a secret is a reference, or is never shown.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from palyra.core import mcp
from palyra.core.mcp import McpServer
from palyra.core.model import catalog
from palyra.core.model.catalog import ModelProvider
from palyra.core.spending import budget
from palyra.core.spending.budget import Budget, BudgetSubject
from palyra.secret_references import KINDS, SecretReference, SecretReferenceInvalid, parse
from palyra.settings import Settings

Fault = tuple[str, str, str]
"""The key within the entry, what is wrong, and how to fix it."""


@dataclass(frozen=True, slots=True)
class SettingsTable:
    """One such table."""

    key: str
    entry: type[Struct]
    faults: Callable[[str, Any], Iterator[Fault]]
    texts: Callable[[Any], Iterator[tuple[str, str]]]
    """The texts of an entry that may be references, each with its key."""
    hidden: Callable[[Any], Any]
    """The entry with its secrets hidden."""


def reference_of(text: str) -> SecretReference | None:
    """Parse a variable or header as a reference; return None for plain text, which may contain a colon."""
    return parse(text) if text.partition(":")[0] in KINDS else None


def _hidden(values: Mapping[str, str]) -> dict[str, str]:
    return {key: text if reference_of(text) is not None else "***" for key, text in values.items()}


def _texts_of_server(server: McpServer) -> Iterator[tuple[str, str]]:
    for part, values in (("env", server.env), ("headers", server.headers)):
        for key, text in values.items():
            yield f"{part}.{key}", text


def _texts_of_provider(provider: ModelProvider) -> Iterator[tuple[str, str]]:
    if provider.key is not None:
        yield "key", provider.key
    for number, key in enumerate(provider.keys):
        yield f"keys.{number}", key
    for name, text in provider.headers.items():
        yield f"headers.{name}", text


def _faults_of_provider(name: str, provider: ModelProvider) -> Iterator[Fault]:
    yield from catalog.provider_problems(name, provider)
    for key, text in _texts_of_provider(provider):
        if not key.startswith("headers.") and text.partition(":")[0] not in KINDS:
            yield (
                key,
                "contains a key in clear text.",
                f"Put it into the vault (`palyra secrets set {name}`) and write vault:{name} here.",
            )


def _shown_server(server: McpServer) -> McpServer:
    url = mcp.display_url(server.url) if server.url is not None else None
    return msgspec.structs.replace(server, url=url, env=_hidden(server.env), headers=_hidden(server.headers))


def _shown_provider(provider: ModelProvider) -> ModelProvider:
    def safe(text: str) -> str:
        return text if text.partition(":")[0] in KINDS else "***"

    return msgspec.structs.replace(
        provider,
        key=safe(provider.key) if provider.key is not None else None,
        keys=tuple(safe(key) for key in provider.keys),
        headers=_hidden(provider.headers),
    )


TABLES = {
    table.key: table
    for table in (
        SettingsTable(
            "mcp.servers",
            McpServer,
            mcp.server_problems,
            _texts_of_server,
            _shown_server,
        ),
        SettingsTable("model.providers", ModelProvider, _faults_of_provider, _texts_of_provider, _shown_provider),
        SettingsTable("spending.budgets", Budget, budget.budget_problems, lambda _: iter(()), lambda entry: entry),
    )
}


def references(settings: Settings) -> Iterator[tuple[str, SecretReference]]:
    """Yield the references to secrets in the entries, except for those to the vault."""
    for key, table in TABLES.items():
        for name, entry in _entries(settings, key):
            for part, text in table.texts(entry):
                if (reference := reference_of(text)) is not None and reference.kind != "vault":
                    yield f"{key}.{name}.{part}", reference


def faults(settings: Settings) -> Iterator[Fault]:
    """Yield the problems of the entries: the full key, what is wrong, and how to fix it."""
    for key, table in TABLES.items():
        for name, entry in _entries(settings, key):
            for part, what, remedy in table.faults(name, entry):
                yield f"{key}.{name}.{part}".removesuffix("."), f"[{key}.{name}] {what}", remedy
            for part, text in table.texts(entry):
                try:
                    reference_of(text)
                except SecretReferenceInvalid as error:
                    where = f"{key}.{name}.{part}"
                    yield where, f"{where} is not valid: {error.detail}.", "Fix the reference."
    yield from _strangers(settings)


def unknown(key: str, entries: object) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the unknown keys of entries: the section, the key, and the known keys."""
    names = list(TABLES[key].entry.__struct_fields__)
    for name, value in entries.items() if isinstance(entries, dict) else ():
        for field in value if isinstance(value, dict) else ():
            if field not in names:
                yield f"{key}.{name}", field, names


def without_unknown(key: str, entries: object) -> object:
    """Return the entries without unknown keys: those were reported already, and would hide other problems."""
    if not isinstance(entries, dict):
        return entries
    names = TABLES[key].entry.__struct_fields__
    return {
        name: {field: value for field, value in supplied_value.items() if field in names}
        if isinstance(supplied_value, dict)
        else supplied_value
        for name, supplied_value in entries.items()
    }


def shown(key: str, entries: Mapping[str, Any]) -> object:
    """Return the entries as plain data, without secrets."""
    hidden = TABLES[key].hidden
    return msgspec.to_builtins({name: hidden(entry) for name, entry in entries.items()})


def _strangers(settings: Settings) -> Iterator[Fault]:
    """Find models that are named but that no provider offers."""
    named = [("model.provider", settings.model.provider)]
    named += [("model.fallback", name) for name in settings.model.fallback]
    named += [("model.rules", name) for rule in settings.model.rules for name in rule.models]
    if settings.model.embeddings is not None:
        named.append(("model.embeddings", settings.model.embeddings))
    budgets = settings.spending.budgets.items()
    named += [
        (f"spending.budgets.{name}.only", one.only)
        for name, one in budgets
        if one.subject is BudgetSubject.MODEL and one.only
    ]
    cached = (*catalog.BUILT_IN, *settings.model.providers)
    for key, name in named:
        provider, which = catalog.split_model_name(name)
        if provider not in cached:
            yield (
                key,
                f"{key} names the unknown provider {name!r}.",
                f"Known providers: {', '.join(cached)}. Add one with `palyra providers add`.",
            )
        elif which is None and provider in settings.model.providers:
            offered = settings.model.providers[provider]
            if offered.model is None and offered.dialect is not catalog.DialectName.LOCAL:
                yield (
                    key,
                    f"{key} names {name!r} without a model, and that provider has no default model.",
                    f"Write {name}/MODEL, or set model.providers.{provider}.model.",
                )


def _entries(settings: Settings, key: str) -> Iterator[tuple[str, Any]]:
    section, _, field = key.partition(".")
    yield from getattr(getattr(settings, section), field).items()
