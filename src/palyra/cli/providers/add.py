"""`palyra providers add`: a provider is chosen, tested with one real answer, and only then kept.

It can only be called if it is in the settings. So it is written there first, with its key in the vault, and both are
removed again if it does not answer or the person cancels.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import click
from msgspec import Struct

from palyra.cli.config.editor import Change, ConfigChange, change, restore_text
from palyra.cli.daemon.on_demand import daemon_on_demand, has_terminal
from palyra.cli.options import Invocation, PalyraCommand
from palyra.cli.providers import prompts as asking
from palyra.cli.providers.api_key import NO_KEY, KeyOptions, ProviderKey, find_key
from palyra.cli.providers.discovery import address_of
from palyra.cli.providers.presets import PROVIDER_PRESETS
from palyra.cli.providers.settings import (
    OURS,
    make_default,
    put_tools,
    reload,
    remove_provider,
    warn_if_overridden,
    write_provider,
)
from palyra.cli.providers.tool_probe import ToolChoice, choice_line, choose, seconds_for
from palyra.cli.providers.trial import ProviderTestResult, patient_client, run_model_test, trial_lines
from palyra.cli.terminal.output import say, show
from palyra.cli.terminal.printable import printable_line
from palyra.core.errors import Conflict, Invalid, PalyraError, Unavailable
from palyra.core.model.catalog import (
    BUILT_IN,
    DialectName,
    ModelCard,
    ModelProvider,
    ModelRequired,
    ProviderNotFound,
    ToolMode,
    provider_problems,
)
from palyra.core.secret import SecretScope
from palyra.core.text.redaction import redact
from palyra.gateway.client.client import Client
from palyra.secret_references import KINDS
from palyra.settings import ModelSettings

MAX_NAMED = 20


class ProviderRequired(Invalid):
    """No terminal is attached to choose a provider. Name a known provider, or pass --base-url or --path. See
    `palyra providers add --help`."""


class ProviderInvalid(Invalid):
    """The provider's settings are not valid. Nothing was stored."""


class ProviderExists(Conflict):
    """A provider with this name already exists."""


class ProviderTestFailed(Unavailable):
    """The model did not answer. Nothing was stored."""


class ProviderAdded(Struct, frozen=True, kw_only=True):
    """The provider that was added."""

    provider: str
    model: str
    key: str | None
    """The reference to its key."""
    default: bool
    test: ProviderTestResult | None
    """None if it was not tested."""
    tools: ToolChoice
    """How the model calls tools."""


@dataclass(frozen=True, slots=True)
class AddOptions:
    """What was set, by options and prompts."""

    name: str
    dialect: DialectName
    title: str
    base_url: str | None
    path: str | None
    model: str | None
    key: ProviderKey = NO_KEY

    def fields(self, reference: str | None, model: str | None) -> dict[str, str]:
        """Return its fields in the settings."""
        supplied_value = (self.dialect.value, self.base_url, self.path, reference, model)
        return {name: value for name, value in zip(OURS, supplied_value, strict=True) if value is not None}


@click.command("add", cls=PalyraCommand)
@click.argument("name", required=False)
@click.option(
    "--preset", type=click.Choice(list(PROVIDER_PRESETS)), help="Preset to use under another name, such as openai."
)
@click.option("--base-url", metavar="URL", help="Base URL of the API.")
@click.option(
    "--dialect",
    type=click.Choice([one.value for one in DialectName if one is not DialectName.LOCAL]),
    help="API type. Default: openai.",
)
@click.option("--path", metavar="FILE", help="A model file (GGUF) that the daemon runs.")
@click.option("--model", metavar="MODEL", help="Model to use. Default: choose from the provider's list.")
@click.option(
    "--key-env", metavar="VARIABLE", help="Read the API key from this environment variable and store it in the vault."
)
@click.option(
    "--key-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Read the API key from this file and store it in the vault.",
)
@click.option("--key-stdin", is_flag=True, help="Read the API key from stdin and store it in the vault.")
@click.option(
    "--key-ref", metavar="REFERENCE", help=f"Do not store the API key; refer to it: {', '.join(KINDS.values())}."
)
@click.option(
    "--tools",
    type=click.Choice(get_args(ToolMode)),
    help="How the model calls tools: natively, with a JSON Schema, or not at all. Default: find out with a test.",
)
@click.option("--default", "default", is_flag=True, help="Make it the default provider.")
@click.option("--replace", "replace_it", is_flag=True, help="Replace the provider with this name.")
@click.option("--no-test", is_flag=True, help="Skip the test call.")
@click.option("--force", is_flag=True, help="Store it even if the test call fails.")
def add(
    invocation: Invocation,
    name: str | None,
    *,
    preset: str | None,
    base_url: str | None,
    dialect: str | None,
    path: str | None,
    model: str | None,
    key_env: str | None,
    key_file: Path | None,
    key_stdin: bool,
    key_ref: str | None,
    tools: ToolMode | None,
    default: bool,
    replace_it: bool,
    no_test: bool,
    force: bool,
) -> None:
    """Add a model provider and test it with one call. If the test fails, nothing is stored.

    Further test calls find out how the model calls tools; the result is stored in the settings.

    Without a name, looks for API keys and servers on this machine and asks. Known names: anthropic, openai, gemini,
    openrouter, deepseek, mistral, groq, xai, together, cerebras, and on this machine ollama, lmstudio, llamacpp and
    vllm. The API key is stored in the vault, never in the settings, and cannot be given as an argument.
    """
    person = has_terminal() and not invocation.json and not key_stdin
    add_options = _add_options(name, preset, base_url, dialect, path, model, person=person)
    _check_free(invocation, add_options.name, replace_it, person=person)
    _check(add_options)
    source = KeyOptions(key_env, key_file, key_stdin, key_ref)
    if source.count > 1:
        raise click.UsageError("Use only one of --key-env, --key-file, --key-stdin and --key-ref.")
    if add_options.dialect is not DialectName.LOCAL:
        add_options = replace(
            add_options,
            key=find_key(add_options.title, PROVIDER_PRESETS.get(preset or add_options.name), source, person=person),
        )
    with daemon_on_demand(invocation, keep=True) as client:
        added = _ProviderSetup(invocation, client, add_options, person=person).add(
            tools=tools, default=default, proves=not no_test, force=force
        )
    if not invocation.printed_json(added):
        _print_added(invocation, added)


def _add_options(
    name: str | None,
    preset: str | None,
    base_url: str | None,
    dialect: str | None,
    path: str | None,
    model: str | None,
    *,
    person: bool,
) -> AddOptions:
    """Collect the provider's options."""
    if name is None:
        name = preset
    cached_preset = PROVIDER_PRESETS.get(preset or name or "")
    if name is None:
        if not person:
            raise ProviderRequired
        chosen = asking.ask_provider()
        name, cached_preset = chosen.name, chosen.preset
        base_url, path = base_url or chosen.base_url, path or chosen.path
    if path is not None:
        file = Path(path).expanduser().absolute()
        return AddOptions(name, DialectName.LOCAL, name, None, str(file), model)
    if cached_preset is not None:
        spoken = DialectName(dialect) if dialect is not None else cached_preset.dialect
        return AddOptions(name, spoken, cached_preset.title, base_url or address_of(cached_preset), None, model)
    if base_url is None and dialect is None:
        raise ProviderNotFound(f"Unknown provider {redact(name)[:40]!r}. {_KNOWN_ARE}")
    spoken = DialectName(dialect) if dialect is not None else asking.ask_dialect(name) if person else DialectName.OPENAI
    return AddOptions(name, spoken, name, base_url, None, model)


_KNOWN_ARE = (
    f"Choose one of: {', '.join(PROVIDER_PRESETS)}; or pass --base-url and --dialect for another server, or --path for"
    " a model file."
)


def _check(add_options: AddOptions) -> None:
    """Find what the settings would refuse, before a person is asked for a key."""
    made = ModelProvider(
        dialect=add_options.dialect, base_url=add_options.base_url, path=add_options.path, model=add_options.model
    )
    for _, what, remedy in provider_problems(add_options.name, made):
        # Without its name, which may be a key that was entered in the wrong field.
        raise ProviderInvalid(f"The provider {what} {remedy} Nothing was stored.")


def _check_free(invocation: Invocation, name: str, replace_it: bool, *, person: bool) -> None:
    if name in BUILT_IN:
        raise ProviderExists(f"{name} is built in. Choose another name, and give the provider with --preset.")
    if name not in invocation.settings.model.providers or replace_it:
        return
    if person and click.confirm(f"Provider {name} already exists. Replace it", err=True):
        return
    raise ProviderExists(
        f"Provider {name[:40]!r} already exists. Replace it with --replace, or keep both with another NAME"
        " and --preset. Nothing was changed."
    )


class _ProviderSetup:
    """Adds one provider to the settings."""

    def __init__(self, invocation: Invocation, client: Client, add_options: AddOptions, *, person: bool) -> None:
        self._invocation = invocation
        self._client = client
        self._wanted = add_options
        self._person = person
        self._first: ConfigChange | None = None
        self._last: ConfigChange | None = None
        self._secret: str | None = None
        self._tooled: str | None = None
        """The model whose tool mode was written into the settings."""

    def add(self, *, tools: ToolMode | None, default: bool, proves: bool, force: bool) -> ProviderAdded:
        """Add it; or raise, and leave everything as it was."""
        add_options = self._wanted
        before: ModelSettings = self._invocation.settings.model
        try:
            reference = add_options.key.reference or self._keep_key()
            model = add_options.model
            if model is None and add_options.dialect is not DialectName.LOCAL:
                self._write(write_provider(add_options.name, add_options.fields(reference, None)))
                model = self._choose_model()
            self._write(write_provider(add_options.name, add_options.fields(reference, model)))
            displayed = model or Path(add_options.path or "").stem
            if tools is not None:
                self._tooled = displayed
                self._write(put_tools(add_options.name, displayed, tools))
            trial = self._prove(force=force) if proves else None
            choice = self._choose_tools(displayed, tools, trial)
            if not default and self._person:
                default = click.confirm(
                    f"Make {add_options.name} the default provider",
                    default=before.provider in BUILT_IN,
                    err=True,
                )
            if default:
                self._write(make_default(add_options.name))
        except BaseException:
            self._undo(before)
            raise
        return ProviderAdded(
            provider=add_options.name, model=displayed, key=reference, default=default, test=trial, tools=choice
        )

    def _keep_key(self) -> str | None:
        """Put the key into the vault, under an unused name."""
        if self._wanted.key.value is None:
            return None
        claimed_names = {secret.name for secret in self._client.secrets.all()}
        names = (self._wanted.name, *(f"{self._wanted.name}-{number}" for number in range(2, len(claimed_names) + 3)))
        name = next(name for name in names if name not in claimed_names)
        self._client.secrets.set(name, self._wanted.key.value.encode(), SecretScope())
        self._secret = name
        return f"vault:{name}"

    def _choose_model(self) -> str:
        name = self._wanted.name
        say(f"Listing the models of {self._wanted.title} …")
        try:
            models = patient_client(self._invocation).providers.models(name)
        except PalyraError as error:
            raise ProviderTestFailed(f"{error.detail} Nothing was stored.") from error
        if len(models) == 1:
            return models[0]
        if self._person and models:
            return asking.ask_model(models)
        if not models:
            raise ModelRequired(f"{name} lists no models. Name one with --model. Nothing was stored.")
        more = f" and {len(models) - MAX_NAMED} more" if len(models) > MAX_NAMED else ""
        listed = ", ".join(models[:MAX_NAMED])
        raise ModelRequired(f"{name} has several models. Name one with --model: {listed}{more}. Nothing was stored.")

    def _prove(self, *, force: bool) -> ProviderTestResult:
        trial = run_model_test(self._invocation, self._wanted.name)
        if not trial.ok and not force:
            raise ProviderTestFailed(f"{trial.reason} Nothing was stored. Use --force to store it anyway.")
        if not self._invocation.json:
            show(trial_lines(trial))
        return trial

    def _choose_tools(self, model: str, tool_mode: ToolMode | None, trial: ProviderTestResult | None) -> ToolChoice:
        """Find out how the model calls tools, unless that was set."""
        if tool_mode is not None:
            return ToolChoice(mode=tool_mode, reason="you chose it, and it was not tested")
        if trial is None or not trial.ok:
            return ToolChoice(
                mode=None, reason="because there was no answer" if trial else "because tests were skipped"
            )
        say(f"Testing how {printable_line(model)} calls tools …")
        self._tooled = model
        seconds = seconds_for(trial.total_ms)
        return choose(
            lambda probe: run_model_test(self._invocation, self._wanted.name, probe, seconds=seconds),
            lambda mode: self._write(put_tools(self._wanted.name, model, mode)),
        )

    def _write(self, what: Change) -> None:
        done = change(self._invocation.home, what)
        self._first = self._first or done
        self._last = done
        reload(self._invocation)

    def _undo(self, before: ModelSettings) -> None:
        """Undo everything; what cannot be undone is reported, without hiding the cause."""
        name = self._wanted.name
        try:
            if self._first is not None and self._last is not None:
                all_of_it = replace(self._last, before=self._first.before)
                old = before.providers.get(name)
                arguments = {key: str(value) for key in OURS if (value := getattr(old, key, None)) is not None}
                undo = (
                    self._put_back(old, arguments)
                    if old is not None
                    else remove_provider(name, before, default=before.provider)
                )
                restore_text(self._invocation.home, all_of_it, undo)
                reload(self._invocation)
            if self._secret is not None:
                self._client.secrets.delete(self._secret)
        except PalyraError as error:
            say(f"palyra: could not undo all changes: {printable_line(error.detail)} Check [model.providers.{name}].")

    def _put_back(self, old: ModelProvider, arguments: dict[str, str]) -> Change:
        def what(tables: Any) -> None:
            write_provider(self._wanted.name, arguments)(tables)
            if self._tooled is not None:
                card = old.models.get(self._tooled, ModelCard())
                put_tools(self._wanted.name, self._tooled, card.tools)(tables)

        return what


def _print_added(invocation: Invocation, added: ProviderAdded) -> None:
    name, key = printable_line(added.provider), ""
    if added.key is not None:
        in_vault = added.key.startswith("vault:")
        key = f"; its API key is in the vault as {added.key[6:]}" if in_vault else f"; its API key stays at {added.key}"
    print(f"Added {name} with model {printable_line(added.model)} to {invocation.home.config}{key}.")
    print(choice_line(added.tools, name, added.model))
    if added.default:
        print(f"{name} is now the default provider. Try it with `palyra chat`.")
        warn_if_overridden(invocation)
    else:
        print(f"Make it the default with `palyra providers default {name}`.")
