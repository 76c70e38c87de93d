"""Reads the settings from one TOML file and the environment, and checks them.

Only this module and `secret_references` read the environment. A variable `PALYRA_<SECTION>_<KEY>` overrides the key of
that section. Unknown keys are refused, and the error names the nearest known key. A key that holds a secret may hold a
reference instead (`env:NAME`, `file:/path`, `keyring:SERVICE/NAME`): the settings keep the reference, and the code that
uses the secret resolves it then.
"""

import difflib
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from palyra import settings_tables
from palyra.home import Home
from palyra.secret_references import (
    SecretReference,
    SecretReferenceInvalid,
    SecretReferenceNotFound,
    SecretText,
    parse,
    redacted,
    resolve,
)
from palyra.settings import Settings, SettingsInvalid

SECRETS = frozenset({"journal.database_url", "vault.key"})
"""The keys whose value may be a reference, and is never shown."""
BEFORE_THE_VAULT = frozenset({"journal.database_url", "vault.key"})
"""The keys that are needed to open the vault, so their values cannot be in the vault."""
LIVE_SECTIONS = frozenset({"limits", "gateway", "approvals", "mcp", "model", "spending"})
LIVE_KEYS = frozenset({"runs.max_queued_inputs", "runs.max_open_runs"})
"""The keys that a running daemon reloads; every other key needs a restart."""
MAX_LIMIT = 2**31 - 1
"""Maximum for the limits of a run: 24 days in milliseconds, which every clock and timer supports."""
OTHER_VARIABLES = frozenset({"PALYRA_HOME", "PALYRA_PROFILE", "PALYRA_DEBUG", "PALYRA_CRASH_AFTER"})
"""Variables with our prefix that are not settings."""

RENAMED = {
    "http.names": "allowed_hosts",
    "http.origins": "allowed_origins",
    "gateway.streams": "max_streams",
    "gateway.streams_per_token": "max_streams_per_token",
    "gateway.connections": "max_connections",
    "gateway.connect_seconds": "connect_timeout_seconds",
    "gateway.slow_reader_seconds": "write_timeout_seconds",
    "runs.concurrency": "max_concurrent",
    "runs.queued_inputs": "max_queued_inputs",
    "runs.open_runs": "max_open_runs",
    "approvals.expire_seconds": "timeout_seconds",
    "limits.last_turn_ms": "last_turn_timeout_ms",
    "limits.tool_ms": "tool_timeout_ms",
    "limits.depth": "max_depth",
    "limits.children": "max_children",
    "model.providers.first_byte_seconds": "first_byte_timeout_seconds",
    "model.providers.idle_seconds": "read_timeout_seconds",
    "model.providers.total_seconds": "total_timeout_seconds",
    "model.providers.attempts": "max_attempts",
    "spending.budgets.of": "subject",
    "spending.budgets.per": "period",
}
"""Keys of earlier versions, and their names now. They are refused: a limit must not vanish without a word."""

_LOOPBACK = re.compile(r"localhost|::1|127(\.\d{1,3}){3}")


class SettingSource(StrEnum):
    """Where a value comes from."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class SettingsProblem:
    """One problem with the settings, and how to fix it."""

    where: str
    """The file or the variable."""
    key: str | None
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} {self.remedy}"


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """The result of reading the file and the environment."""

    settings: Settings
    """The values that could be read; an invalid one has its default."""
    sources: Mapping[str, SettingSource]
    problems: tuple[SettingsProblem, ...]


class SettingsReload(NamedTuple):
    """The settings in force after a reload, and the keys that have changed in the file or the environment."""

    settings: Settings
    live: tuple[str, ...]
    restart: tuple[str, ...]


def load(home: Home, *, environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the home's settings, with the environment's overrides."""
    reading = read(home, environ=environ)
    if reading.problems:
        first, *others = reading.problems
        more = ""
        if others:
            noun = "problem" if len(others) == 1 else "problems"
            more = f" {len(others)} more {noun}; `palyra config check` lists all of them."
        raise SettingsInvalid(f"{first}{more}")
    return reading.settings


def read(home: Home, *, environ: Mapping[str, str] = os.environ, text: str | None = None) -> SettingsFile:
    """Read the settings and collect every problem; `text` replaces the content of the file."""
    problems: list[SettingsProblem] = []
    table: dict[str, Any] = {}
    try:
        if text is None:
            text = home.config.read_text("utf-8") if home.config.exists() else ""
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(
            SettingsProblem(str(home.config), None, f"cannot be read: {error}.", "It must be TOML in UTF-8.")
        )
    except OSError as error:
        problems.append(
            SettingsProblem(str(home.config), None, f"cannot be read: {error.strerror}.", "Make the file readable.")
        )
    problems += [*_unknown(table, home.config), *_old_variables(environ)]
    parts: dict[str, dict[str, Any]] = {}
    sources: dict[str, SettingSource] = {}
    for key, field in _fields():
        section, _, name = key.partition(".")
        value, source, where = _configured_value(key, table, path=home.config, environ=environ)
        try:
            # A variable is always text, whatever type the key has; in the file, the type is explicit.
            if source is not SettingSource.DEFAULT:
                value = settings_tables.without_unknown(key, value) if key in settings_tables.TABLES else value
                value = msgspec.convert(value, field.type, strict=source is SettingSource.FILE)
                _check_sign(key, value)
                value = _secret(key, str(value)) if key in SECRETS else value
        except (msgspec.ValidationError, SettingsInvalid, SecretReferenceInvalid) as error:
            default = "none" if _default(field) in (None, {}, ()) else field.default
            what = f"{key} {_complaint(error, field.type)}."
            problems.append(SettingsProblem(where, key, what, f"Fix or remove it; the default is {default}."))
            source = SettingSource.DEFAULT
        parts.setdefault(section, {})[name] = _default(field) if source is SettingSource.DEFAULT else value
        sources[key] = source
    kinds = {section.name: section.type for section in msgspec.structs.fields(Settings)}
    settings = Settings(**{name: kinds[name](**fields) for name, fields in parts.items()})
    problems += [*_exposed(settings, home.config), *_faults_of_tables(settings, home.config)]
    return SettingsFile(settings, sources, tuple(problems))


def stray_variables(environ: Mapping[str, str] = os.environ) -> Iterator[SettingsProblem]:
    """Find variables that look like settings but are not."""
    names = {variable_of(key) for key, _ in _fields()} | OTHER_VARIABLES
    names |= {variable_of(key) for key in RENAMED}  # `read` reports these
    for name in sorted(environ):
        if name.startswith("PALYRA_") and name not in names:
            close = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
            remedy = f"Did you mean {close[0]}?" if close else "It has no effect. Remove it."
            yield SettingsProblem(name, None, "unknown variable.", remedy)


def variable_of(key: str) -> str:
    """Return the name of the variable that overrides a key."""
    return f"PALYRA_{key.replace('.', '_')}".upper()


def crash_after(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return after how many commits the daemon must kill itself: the tests use it to stop a run at any point."""
    text = environ.get("PALYRA_CRASH_AFTER", "")
    return int(text) if text.isdigit() else None


def effective(settings: Settings) -> dict[str, object]:
    """Return every key with its value; secrets are hidden."""
    return {key: _displayed(key, value) for key, value in _flat(settings)}


def references(settings: Settings) -> dict[str, SecretReference]:
    """Return the keys whose secret is stored elsewhere, and where."""
    supplied_value = ((key, value) for key, value in _flat(settings) if key in SECRETS and value is not None)
    secret_references = {key: reference for key, value in supplied_value if (reference := parse(value)) is not None}
    secret_references.update(settings_tables.references(settings))
    return secret_references


def unresolved(
    home: Home, reading: SettingsFile, *, environ: Mapping[str, str] = os.environ
) -> Iterator[SettingsProblem]:
    """Find references that cannot be resolved. The secrets are read but not kept."""
    for key, reference in references(reading.settings).items():
        try:
            resolve(reference, base=home.path, environ=environ)
        except SecretReferenceNotFound as error:
            in_file = reading.sources.get(key, SettingSource.FILE) is SettingSource.FILE
            where = str(home.config) if in_file else variable_of(key)
            what = f"{key} is not valid: {error.detail}"
            yield SettingsProblem(where, key, what, "Put the secret there, or change the reference.")


def settings_hash(settings: Settings) -> str:
    """Return a hash that identifies these settings. A secret counts by its reference, or without its password."""
    text = json.dumps(effective(settings), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def changes(old: Settings, new: Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the keys that differ: those that a running daemon reloads, and those that need a restart."""
    before = dict(_flat(old))
    differing = [key for key, value in _flat(new) if before[key] != value]
    live = [key for key in differing if key in LIVE_KEYS or key.partition(".")[0] in LIVE_SECTIONS]
    return tuple(live), tuple(key for key in differing if key not in live)


def reload(home: Home, current: Settings, *, environ: Mapping[str, str] = os.environ) -> SettingsReload:
    """Return the settings with the keys that a running daemon reloads; raise and change nothing if any is invalid."""
    matching_settings = load(home, environ=environ)
    live, restart = changes(current, matching_settings)
    settings = current
    for key in live:
        section, _, name = key.partition(".")
        fresh = {name: getattr(getattr(matching_settings, section), name)}
        part = msgspec.structs.replace(getattr(settings, section), **fresh)
        settings = msgspec.structs.replace(settings, **{section: part})
    return SettingsReload(settings, live, restart)


def _flat(settings: Settings) -> Iterator[tuple[str, Any]]:
    for section in settings.__struct_fields__:
        part = getattr(settings, section)
        for name in part.__struct_fields__:
            yield f"{section}.{name}", getattr(part, name)


def _fields() -> Iterator[tuple[str, Any]]:
    """Yield every key with its declaration."""
    for section in msgspec.structs.fields(Settings):
        for field in msgspec.structs.fields(section.type):
            yield f"{section.name}.{field.name}", field


def _configured_value(
    key: str, table: dict[str, Any], *, path: Path, environ: Mapping[str, str]
) -> tuple[object, SettingSource, str]:
    """Return the value that was set for a key, if there is one, and where it was set."""
    section, _, name = key.partition(".")
    variable, value = variable_of(key), table.get(section)
    if text := environ.get(variable):
        return text, SettingSource.ENVIRONMENT, variable
    if isinstance(value, dict) and name in value:
        return value[name], SettingSource.FILE, str(path)
    return None, SettingSource.DEFAULT, ""


def _unknown(table: dict[str, Any], path: Path) -> Iterator[SettingsProblem]:
    cached = {part.name: list(part.type.__struct_fields__) for part in msgspec.structs.fields(Settings)}
    for section, value in table.items():
        if section not in cached:
            what = f"unknown section [{section}]."
            yield SettingsProblem(str(path), section, what, _nearest(section, list(cached)))
        elif not isinstance(value, dict):
            what = f"{section} is a section."
            yield SettingsProblem(str(path), section, what, f"Write [{section}] and its keys below it.")
        else:
            for name in value:
                if name not in cached[section]:
                    what = f"unknown key {name!r} in section [{section}]."
                    yield SettingsProblem(str(path), f"{section}.{name}", what, _remedy(section, name, cached[section]))
                elif (key := f"{section}.{name}") in settings_tables.TABLES:
                    for location, field, names in settings_tables.unknown(key, value[name]):
                        what = f"unknown key {field!r} in section [{location}]."
                        yield SettingsProblem(str(path), f"{location}.{field}", what, _remedy(key, field, names))


def _old_variables(environ: Mapping[str, str]) -> Iterator[SettingsProblem]:
    for key, now in RENAMED.items():
        # Keys of tables, which have one dot more, never had variables.
        if key.count(".") == 1 and (old := variable_of(key)) in environ:
            new = variable_of(f"{key.rpartition('.')[0]}.{now}")
            yield SettingsProblem(old, key, "unknown variable.", f"It was renamed: set {new}.")


def _faults_of_tables(settings: Settings, path: Path) -> Iterator[SettingsProblem]:
    for key, what, remedy in settings_tables.faults(settings):
        yield SettingsProblem(str(path), key, what, remedy)


def _exposed(settings: Settings, path: Path) -> Iterator[SettingsProblem]:
    """Find addresses that other machines can reach without TLS and `allow_remote`, and incomplete certificates."""
    http = settings.http
    if (http.tls_certificate is None) != (http.tls_key is None):
        missing = "http.tls_key" if http.tls_key is None else "http.tls_certificate"
        what = "http.tls_certificate and http.tls_key must be set together."
        yield SettingsProblem(str(path), missing, what, f"Set {missing} too, or remove both.")
    has_tls = http.tls_certificate is not None and http.tls_key is not None
    for key, host in (("http.host", http.host), ("grpc.host", settings.grpc.host)):
        if _LOOPBACK.fullmatch(host) or (has_tls and http.allow_remote):
            continue
        what = (
            f"{key} is {host!r}, which other machines can reach. This requires TLS "
            f"(http.tls_certificate and http.tls_key: {'set' if has_tls else 'missing'}) and "
            f"http.allow_remote = true ({'set' if http.allow_remote else 'missing'})."
        )
        yield SettingsProblem(str(path), key, what, "Set both, or use 127.0.0.1 and a tunnel.")


def _check_sign(key: str, value: Any) -> None:
    if key.startswith("limits.") and not 0 <= value <= MAX_LIMIT:
        raise SettingsInvalid("a limit cannot be negative" if value < 0 else f"the maximum of a limit is {MAX_LIMIT}")


def _complaint(error: Exception, kind: object) -> str:
    """Say what is wrong with a value; for an enum, list the values that it may have."""
    if isinstance(error, msgspec.ValidationError) and isinstance(kind, type) and issubclass(kind, StrEnum):
        return f"must be one of: {', '.join(kind)}"
    return f"is not valid: {str(error).removesuffix('.')}"


def _remedy(section: str, name: str, names: list[str]) -> str:
    if (now := RENAMED.get(f"{section}.{name}")) is not None:
        return f"It was renamed: write {now!r}."
    return _nearest(name, names)


def _nearest(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Known names: {', '.join(names)}."


def _secret(key: str, text: str) -> str:
    """Return a configured secret as a reference, or as a text that is not shown in logs."""
    reference = parse(text)
    if reference is not None and reference.kind == "vault" and key in BEFORE_THE_VAULT:
        raise SettingsInvalid(
            f"{text} cannot be used here, because this key is needed to open the vault; use env:NAME, "
            "file:/path or keyring:SERVICE/NAME"
        )
    if reference is None and key == "vault.key":
        raise SettingsInvalid(
            "the key itself must not be in the settings, which are part of every backup; use env:NAME, "
            "file:/path or keyring:SERVICE/NAME"
        )
    return text if reference is not None else SecretText(text, displayed=redacted(text))


def _default(field: Any) -> Any:
    return field.default_factory() if field.default is msgspec.NODEFAULT else field.default


def _displayed(key: str, value: object) -> object:
    if key in settings_tables.TABLES:
        assert isinstance(value, dict)
        return json.dumps(settings_tables.shown(key, value), sort_keys=True)
    if isinstance(value, tuple):
        return json.dumps(msgspec.to_builtins(value), sort_keys=True)
    if isinstance(value, SecretText):
        return value.display
    return redacted(value) if isinstance(value, str) and key in SECRETS else value
