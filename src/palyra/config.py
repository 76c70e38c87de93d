"""The settings as they are read: from one TOML file and the environment.

Nobody but this module and `references` reads the environment. A variable `PALYRA_<SECTION>_<KEY>` overrides the key of
that section. Unknown keys are refused with the nearest name that exists. A key that holds a secret may name where the
secret is instead (`env:NAME`, `file:/path`, `keyring:SERVICE/NAME`): the settings hold the reference, and whoever uses
the secret resolves it then.
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

from palyra import tables
from palyra.home import Home
from palyra.references import (
    Reference,
    ReferenceInvalid,
    ReferenceUnresolved,
    SecretText,
    parse,
    redacted,
    resolve,
)
from palyra.settings import Settings, SettingsInvalid

SECRETS = frozenset({"journal.database_url", "vault.key"})
"""The keys whose value may be a reference, and is never shown."""
BEFORE_THE_VAULT = frozenset({"journal.database_url", "vault.key"})
"""What it takes to open the vault, and so can not stand in it."""
LIVE_SECTIONS = frozenset({"limits", "gateway", "approvals", "mcp", "model", "spending"})
LIVE_KEYS = frozenset({"runs.queued_inputs", "runs.open_runs"})
"""What a running daemon takes over; everything else needs a restart."""
MAX_LIMIT = 2**31 - 1
"""Of the limits of a run: in milliseconds 24 days, and as much as every clock and timer can wait."""
OTHER_VARIABLES = frozenset({"PALYRA_HOME", "PALYRA_PROFILE", "PALYRA_DEBUG", "PALYRA_CRASH_AFTER"})
"""Variables of ours that are no settings."""

_LOOPBACK = re.compile(r"localhost|::1|127(\.\d{1,3}){3}")


class Source(StrEnum):
    """Where a value is from."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with the settings, and what to do about it."""

    where: str
    """The file or the variable."""
    key: str | None
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} {self.remedy}"


@dataclass(frozen=True, slots=True)
class Reading:
    """What was found in the file and the environment."""

    settings: Settings
    """As far as they could be read: what is wrong has its default."""
    sources: Mapping[str, Source]
    problems: tuple[Problem, ...]


class Reloaded(NamedTuple):
    """The settings that hold after a reload, and the keys that have changed in the file or the environment."""

    settings: Settings
    live: tuple[str, ...]
    restart: tuple[str, ...]


def load(home: Home, *, environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the home's settings, with the environment's overrides."""
    reading = read(home, environ=environ)
    if reading.problems:
        first, *others = reading.problems
        more = f" Problems beside this one: {len(others)}; `palyra config check` names them all." if others else ""
        raise SettingsInvalid(f"{first}{more}")
    return reading.settings


def read(home: Home, *, environ: Mapping[str, str] = os.environ, text: str | None = None) -> Reading:
    """Read what there is, and find everything that is wrong with it; `text` is taken for what the file holds."""
    problems: list[Problem] = []
    table: dict[str, Any] = {}
    try:
        if text is None:
            text = home.config.read_text("utf-8") if home.config.exists() else ""
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(Problem(str(home.config), None, f"can not be read: {error}.", "It must be TOML in UTF-8."))
    except OSError as error:
        problems.append(Problem(str(home.config), None, f"can not be read: {error.strerror}.", "Make it readable."))
    problems += _unknown(table, home.config)
    parts: dict[str, dict[str, Any]] = {}
    sources: dict[str, Source] = {}
    for key, field in _fields():
        section, _, name = key.partition(".")
        value, source, where = _given(key, table, path=home.config, environ=environ)
        try:
            # A variable is text, whatever the key holds; the file says which kind it means.
            if source is not Source.DEFAULT:
                value = tables.without_unknown(key, value) if key in tables.TABLES else value
                value = msgspec.convert(value, field.type, strict=source is Source.FILE)
                _check_sign(key, value)
                value = _secret(key, str(value)) if key in SECRETS else value
        except (msgspec.ValidationError, SettingsInvalid, ReferenceInvalid) as error:
            default = "none" if _default(field) in (None, {}, ()) else field.default
            what = f"{key} is wrong: {str(error).removesuffix('.')}."
            problems.append(Problem(where, key, what, f"Mend it, or leave it out; the default is {default}."))
            source = Source.DEFAULT
        parts.setdefault(section, {})[name] = _default(field) if source is Source.DEFAULT else value
        sources[key] = source
    kinds = {section.name: section.type for section in msgspec.structs.fields(Settings)}
    settings = Settings(**{name: kinds[name](**fields) for name, fields in parts.items()})
    problems += [*_exposed(settings, home.config), *_faults_of_tables(settings, home.config)]
    return Reading(settings, sources, tuple(problems))


def stray_variables(environ: Mapping[str, str] = os.environ) -> Iterator[Problem]:
    """Find variables that look like settings and are none."""
    known = {variable_of(key) for key, _ in _fields()} | OTHER_VARIABLES
    for name in sorted(environ):
        if name.startswith("PALYRA_") and name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            remedy = f"Did you mean {close[0]}?" if close else "It changes nothing; take it away."
            yield Problem(name, None, "there is no such variable.", remedy)


def variable_of(key: str) -> str:
    """Return the variable that overrides a key."""
    return f"PALYRA_{key.replace('.', '_')}".upper()


def crash_after(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return after how many commits the daemon must kill itself: how the tests reach every instant of a run."""
    text = environ.get("PALYRA_CRASH_AFTER", "")
    return int(text) if text.isdigit() else None


def effective(settings: Settings) -> dict[str, object]:
    """Return every key with its value as it may be shown."""
    return {key: _shown(key, value) for key, value in _flat(settings)}


def references(settings: Settings) -> dict[str, Reference]:
    """Return the keys whose secret stands elsewhere, and where."""
    given = ((key, value) for key, value in _flat(settings) if key in SECRETS and value is not None)
    found = {key: reference for key, value in given if (reference := parse(value)) is not None}
    found.update(tables.references(settings))
    return found


def unresolved(home: Home, reading: Reading, *, environ: Mapping[str, str] = os.environ) -> Iterator[Problem]:
    """Find references that lead nowhere. What they lead to is looked at, and not kept."""
    for key, reference in references(reading.settings).items():
        try:
            resolve(reference, base=home.path, environ=environ)
        except ReferenceUnresolved as error:
            in_file = reading.sources.get(key, Source.FILE) is Source.FILE
            where = str(home.config) if in_file else variable_of(key)
            what = f"{key} is wrong: {error.detail}"
            yield Problem(where, key, what, "Put the secret there, or change the reference.")


def settings_hash(settings: Settings) -> str:
    """Return what tells these settings from others. A secret counts by its reference, or with its password left out."""
    text = json.dumps(effective(settings), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def changes(old: Settings, new: Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the keys that differ: those that a running daemon takes over, and those that need a restart."""
    before = dict(_flat(old))
    differing = [key for key, value in _flat(new) if before[key] != value]
    live = [key for key in differing if key in LIVE_KEYS or key.partition(".")[0] in LIVE_SECTIONS]
    return tuple(live), tuple(key for key in differing if key not in live)


def reload(home: Home, current: Settings, *, environ: Mapping[str, str] = os.environ) -> Reloaded:
    """Return the settings with what may change under a running daemon; raise, and change nothing, if any is wrong."""
    found = load(home, environ=environ)
    live, restart = changes(current, found)
    settings = current
    for key in live:
        section, _, name = key.partition(".")
        fresh = {name: getattr(getattr(found, section), name)}
        part = msgspec.structs.replace(getattr(settings, section), **fresh)
        settings = msgspec.structs.replace(settings, **{section: part})
    return Reloaded(settings, live, restart)


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


def _given(key: str, table: dict[str, Any], *, path: Path, environ: Mapping[str, str]) -> tuple[object, Source, str]:
    """Return what was set for a key, if anything was, and where."""
    section, _, name = key.partition(".")
    variable, given = variable_of(key), table.get(section)
    if text := environ.get(variable):
        return text, Source.ENVIRONMENT, variable
    if isinstance(given, dict) and name in given:
        return given[name], Source.FILE, str(path)
    return None, Source.DEFAULT, ""


def _unknown(table: dict[str, Any], path: Path) -> Iterator[Problem]:
    known = {part.name: list(part.type.__struct_fields__) for part in msgspec.structs.fields(Settings)}
    for section, given in table.items():
        if section not in known:
            what = f"there is no section [{section}]."
            yield Problem(str(path), section, what, _nearest(section, list(known)))
        elif not isinstance(given, dict):
            what = f"{section} is a section."
            yield Problem(str(path), section, what, f"Write [{section}] and its keys below it.")
        else:
            for name in given:
                if name not in known[section]:
                    what = f"section [{section}] has no key {name!r}."
                    yield Problem(str(path), f"{section}.{name}", what, _nearest(name, known[section]))
                elif (key := f"{section}.{name}") in tables.TABLES:
                    for place, field, there in tables.unknown(key, given[name]):
                        what = f"section [{place}] has no key {field!r}."
                        yield Problem(str(path), f"{place}.{field}", what, _nearest(field, there))


def _faults_of_tables(settings: Settings, path: Path) -> Iterator[Problem]:
    for key, what, remedy in tables.faults(settings):
        yield Problem(str(path), key, what, remedy)


def _exposed(settings: Settings, path: Path) -> Iterator[Problem]:
    """Find doors that others could reach without both of what that needs, and half a certificate."""
    http = settings.http
    if (http.tls_certificate is None) != (http.tls_key is None):
        missing = "http.tls_key" if http.tls_key is None else "http.tls_certificate"
        what = "http.tls_certificate and http.tls_key belong together."
        yield Problem(str(path), missing, what, f"Set {missing} too, or neither.")
    has_tls = http.tls_certificate is not None and http.tls_key is not None
    for key, host in (("http.host", http.host), ("grpc.host", settings.grpc.host)):
        if _LOOPBACK.fullmatch(host) or (has_tls and http.allow_remote):
            continue
        what = (
            f"{key} is {host!r}, which other machines may reach. That needs two things: "
            f"TLS (http.tls_certificate and http.tls_key: {'there' if has_tls else 'missing'}), "
            f"and http.allow_remote = true ({'there' if http.allow_remote else 'missing'})."
        )
        yield Problem(str(path), key, what, "Set both, or use 127.0.0.1 and a tunnel.")


def _check_sign(key: str, value: Any) -> None:
    if key.startswith("limits.") and not 0 <= value <= MAX_LIMIT:
        raise SettingsInvalid("a limit cannot be negative" if value < 0 else f"the maximum of a limit is {MAX_LIMIT}")


def _nearest(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"There are: {', '.join(names)}."


def _secret(key: str, text: str) -> str:
    """Return a secret that was given: as a reference, or as a text that does not show itself."""
    reference = parse(text)
    if reference is not None and reference.kind == "vault" and key in BEFORE_THE_VAULT:
        raise SettingsInvalid(
            f"{text} can not be used for it: it is needed to open the vault; use env:NAME, file:/path"
            " or keyring:SERVICE/NAME"
        )
    if reference is None and key == "vault.key":
        raise SettingsInvalid(
            "the key itself must not stand in the settings, which are part of every backup; say where it is with"
            " env:NAME, file:/path or keyring:SERVICE/NAME"
        )
    return text if reference is not None else SecretText(text, shown=redacted(text))


def _default(field: Any) -> Any:
    return field.default_factory() if field.default is msgspec.NODEFAULT else field.default


def _shown(key: str, value: object) -> object:
    if key in tables.TABLES:
        assert isinstance(value, dict)
        return json.dumps(tables.shown(key, value), sort_keys=True)
    if isinstance(value, tuple):
        return json.dumps(msgspec.to_builtins(value), sort_keys=True)
    if isinstance(value, SecretText):
        return value.shown
    return redacted(value) if isinstance(value, str) and key in SECRETS else value
