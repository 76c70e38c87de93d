"""`palyra providers add`: a provider is chosen, proved with one real answer, and only then kept.

To be asked it must stand in the settings. So it is written there first, with its key in the vault, and taken out again,
both of it, if it gives no answer or if somebody thinks better of it.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import click
from msgspec import Struct

from palyra.cli import providers_ask as asking
from palyra.cli.borrow import borrowed_daemon, has_person
from palyra.cli.config_file import Change, Written, change, take_back
from palyra.cli.options import Invocation, PalyraCommand
from palyra.cli.output import say, show, show_json
from palyra.cli.printable import printable_line
from palyra.cli.providers_found import address_of
from palyra.cli.providers_key import NO_KEY, Key, Source, find_key
from palyra.cli.providers_known import KNOWN
from palyra.cli.providers_table import OURS, make_default, put, put_tools, reload, take_out, warn_if_overridden
from palyra.cli.providers_tools import ToolChoice, choice_line, choose, seconds_for
from palyra.cli.providers_trial import Trial, admin, trial_lines, try_out
from palyra.core.errors import Conflict, Invalid, PalyraError, Unavailable
from palyra.core.model import BUILT_IN, Dialect, ModelCard, ModelProvider, ToolMode, faults
from palyra.core.redact import redact
from palyra.core.secret import SecretScope
from palyra.gateway.client import Client
from palyra.references import KINDS
from palyra.settings import ModelSettings

MOST_NAMED = 20


class ProviderNotNamed(Invalid):
    """Nobody is at the terminal to be asked which provider is meant. Name one that is known, or any other with
    --base-url or --path; `palyra providers add --help` lists the options."""


class ProviderUnknown(Invalid):
    """Nothing is known of a provider by this name. Say where it is with --base-url, and how it is spoken to with
    --dialect; or name a model file with --path."""


class ProviderInvalid(Invalid):
    """The provider can not be written into the settings as it was given. Nothing was stored."""


class ProviderExists(Conflict):
    """There is a provider by this name already."""


class ModelNotChosen(Invalid):
    """The provider has several models. Name one with --model. Nothing was stored."""


class TrialFailed(Unavailable):
    """The model gave no answer. Nothing was stored."""


class Added(Struct, frozen=True, kw_only=True):
    """What is there now."""

    provider: str
    model: str
    key: str | None
    """Where its key stands."""
    default: bool
    trial: Trial | None
    """None if it was not put to the proof."""
    tools: ToolChoice
    """How the model calls tools."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for, on the command line and in conversation."""

    name: str
    dialect: Dialect
    title: str
    base_url: str | None
    path: str | None
    model: str | None
    key: Key = NO_KEY

    def fields(self, reference: str | None, model: str | None) -> dict[str, str]:
        """Return what the settings say of it."""
        given = (self.dialect.value, self.base_url, self.path, reference, model)
        return {name: value for name, value in zip(OURS, given, strict=True) if value is not None}


@click.command("add", cls=PalyraCommand)
@click.argument("name", required=False)
@click.option("--preset", type=click.Choice(list(KNOWN)), help="Who it is, if it is to have another name.")
@click.option("--base-url", metavar="URL", help="Where it answers; any server that speaks a known dialect.")
@click.option(
    "--dialect",
    type=click.Choice([one.value for one in Dialect if one is not Dialect.LOCAL]),
    help="How it is spoken to; openai if nothing is said.",
)
@click.option("--path", metavar="FILE", help="A model file (GGUF), which the daemon runs by itself.")
@click.option("--model", metavar="MODEL", help="The model to ask; chosen from its list if none is named.")
@click.option("--key-env", metavar="VARIABLE", help="Copy the key from this variable to the vault.")
@click.option("--key-file", metavar="FILE", type=click.Path(path_type=Path), help="Copy it from this file.")
@click.option("--key-stdin", is_flag=True, help="Copy it from stdin.")
@click.option("--key-at", metavar="REFERENCE", help=f"Leave it where it is: {', '.join(KINDS.values())}.")
@click.option(
    "--tools",
    type=click.Choice(get_args(ToolMode)),
    help="How the model calls tools: by itself, by a JSON Schema, or not at all; a test finds out if nothing is said.",
)
@click.option("--default", "default", is_flag=True, help="Let it answer from now on.")
@click.option("--replace", "replace_it", is_flag=True, help="Put it in the place of one that has this name.")
@click.option("--no-test", is_flag=True, help="Do not put it to the proof.")
@click.option("--force", is_flag=True, help="Keep it also if it gives no answer.")
@click.pass_obj
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
    key_at: str | None,
    tools: ToolMode | None,
    default: bool,
    replace_it: bool,
    no_test: bool,
    force: bool,
) -> None:
    """Add a provider of models, and prove it with one real answer. Nothing is kept if it gives none.

    Small questions then find out how the model calls tools, and the settings keep that.

    Without a name it looks for keys and servers on this machine and asks. By name it knows anthropic, openai, gemini,
    openrouter, deepseek, mistral, groq, xai, together, cerebras, and on this machine ollama, lmstudio, llamacpp and
    vllm. The key goes to the vault; it is never an argument, and never stands in the settings.
    """
    person = has_person() and not invocation.json and not key_stdin
    wanted = _wanted(name, preset, base_url, dialect, path, model, person=person)
    _check_free(invocation, wanted.name, replace_it, person=person)
    _check(wanted)
    source = Source(key_env, key_file, key_stdin, key_at)
    if source.count > 1:
        raise click.UsageError("Give the key in one way only: --key-env, --key-file, --key-stdin or --key-at.")
    if wanted.dialect is not Dialect.LOCAL:
        wanted = replace(wanted, key=find_key(wanted.title, KNOWN.get(preset or wanted.name), source, person=person))
    with borrowed_daemon(invocation, keep=True) as client:
        added = _Adding(invocation, client, wanted, person=person).add(
            tools=tools, default=default, proves=not no_test, force=force
        )
    if invocation.json:
        show_json(added)
    else:
        _tell(invocation, added)


def _wanted(
    name: str | None,
    preset: str | None,
    base_url: str | None,
    dialect: str | None,
    path: str | None,
    model: str | None,
    *,
    person: bool,
) -> Wanted:
    """Put together who is meant."""
    if name is None:
        name = preset
    known = KNOWN.get(preset or name or "")
    if name is None:
        if not person:
            raise ProviderNotNamed
        chosen = asking.ask_provider()
        name, known = chosen.name, chosen.known
        base_url, path = base_url or chosen.base_url, path or chosen.path
    if path is not None:
        file = Path(path).expanduser().absolute()
        return Wanted(name, Dialect.LOCAL, name, None, str(file), model)
    if known is not None:
        spoken = Dialect(dialect) if dialect is not None else known.dialect
        return Wanted(name, spoken, known.title, base_url or address_of(known), None, model)
    if base_url is None and dialect is None:
        raise ProviderUnknown(f"Nothing is known of a provider {redact(name)[:40]!r}. {_KNOWN_ARE}")
    spoken = Dialect(dialect) if dialect is not None else asking.ask_dialect(name) if person else Dialect.OPENAI
    return Wanted(name, spoken, name, base_url, None, model)


_KNOWN_ARE = (
    f"Known by name are: {', '.join(KNOWN)}. Of any other say where it is with --base-url, and how it is spoken to with"
    " --dialect; or name a model file with --path."
)


def _check(wanted: Wanted) -> None:
    """Find what the settings would refuse, before anybody is asked for a key."""
    made = ModelProvider(dialect=wanted.dialect, base_url=wanted.base_url, path=wanted.path, model=wanted.model)
    for _, what, remedy in faults(wanted.name, made):
        # Without its name, which may be a key that stands in the wrong place.
        raise ProviderInvalid(f"The provider {what} {remedy} Nothing was stored.")


def _check_free(invocation: Invocation, name: str, replace_it: bool, *, person: bool) -> None:
    if name in BUILT_IN:
        raise ProviderExists(f"{name} is built in. Choose another name; --preset says who it is.")
    if name not in invocation.settings.model.providers or replace_it:
        return
    if person and click.confirm(f"There is a provider {name} already. Put this one in its place", err=True):
        return
    raise ProviderExists(
        f"There is a provider {name[:40]!r} already. --replace puts this one in its place; another NAME with --preset"
        " keeps both. Nothing was changed."
    )


class _Adding:
    """One provider on its way into the settings."""

    def __init__(self, invocation: Invocation, client: Client, wanted: Wanted, *, person: bool) -> None:
        self._invocation = invocation
        self._client = client
        self._wanted = wanted
        self._person = person
        self._first: Written | None = None
        self._last: Written | None = None
        self._secret: str | None = None
        self._tooled: str | None = None
        """The model whose way to call tools was written into the settings."""

    def add(self, *, tools: ToolMode | None, default: bool, proves: bool, force: bool) -> Added:
        """Bring it in; or raise, and leave everything as it was."""
        wanted = self._wanted
        before: ModelSettings = self._invocation.settings.model
        try:
            reference = wanted.key.reference or self._keep_key()
            model = wanted.model
            if model is None and wanted.dialect is not Dialect.LOCAL:
                self._write(put(wanted.name, wanted.fields(reference, None)))
                model = self._choose_model()
            self._write(put(wanted.name, wanted.fields(reference, model)))
            shown = model or Path(wanted.path or "").stem
            if tools is not None:
                self._tooled = shown
                self._write(put_tools(wanted.name, shown, tools))
            trial = self._prove(force=force) if proves else None
            choice = self._choose_tools(shown, tools, trial)
            if not default and self._person:
                default = click.confirm(
                    f"Let {wanted.name} answer from now on",
                    default=before.provider in BUILT_IN,
                    err=True,
                )
            if default:
                self._write(make_default(wanted.name))
        except BaseException:
            self._undo(before)
            raise
        return Added(provider=wanted.name, model=shown, key=reference, default=default, trial=trial, tools=choice)

    def _keep_key(self) -> str | None:
        """Put the key into the vault, under a name that nothing else has."""
        if self._wanted.key.value is None:
            return None
        taken = {secret.name for secret in self._client.secrets.all()}
        names = (self._wanted.name, *(f"{self._wanted.name}-{number}" for number in range(2, len(taken) + 3)))
        name = next(name for name in names if name not in taken)
        self._client.secrets.set(name, self._wanted.key.value.encode(), SecretScope())
        self._secret = name
        return f"vault:{name}"

    def _choose_model(self) -> str:
        name = self._wanted.name
        say(f"Asking {self._wanted.title} for its models …")
        try:
            models = admin(self._invocation).ask(tuple[str, ...], "GET", f"/providers/{name}/models", field="models")
        except PalyraError as error:
            raise TrialFailed(f"{error.detail} Nothing was stored.") from error
        if len(models) == 1:
            return models[0]
        if self._person and models:
            return asking.ask_model(models)
        if not models:
            raise ModelNotChosen(f"{name} lists no models. Name one with --model. Nothing was stored.")
        more = f" and {len(models) - MOST_NAMED} more" if len(models) > MOST_NAMED else ""
        listed = ", ".join(models[:MOST_NAMED])
        raise ModelNotChosen(f"{name} has several models. Name one with --model: {listed}{more}. Nothing was stored.")

    def _prove(self, *, force: bool) -> Trial:
        trial = try_out(self._invocation, self._wanted.name)
        if not trial.ok and not force:
            raise TrialFailed(f"{trial.reason} Nothing was stored; --force stores it all the same.")
        if not self._invocation.json:
            show(trial_lines(trial))
        return trial

    def _choose_tools(self, model: str, asked: ToolMode | None, trial: Trial | None) -> ToolChoice:
        """Find out how the model calls tools, unless that was said."""
        if asked is not None:
            return ToolChoice(mode=asked, reason="you chose it, and it was not tested")
        if trial is None or not trial.ok:
            return ToolChoice(mode=None, reason="since there was no answer" if trial else "since no test was wanted")
        say(f"Testing how {printable_line(model)} calls tools …")
        self._tooled = model
        seconds = seconds_for(trial.total_ms)
        return choose(
            lambda probe: try_out(self._invocation, self._wanted.name, probe, seconds=seconds),
            lambda mode: self._write(put_tools(self._wanted.name, model, mode)),
        )

    def _write(self, what: Change) -> None:
        done = change(self._invocation.home, what)
        self._first = self._first or done
        self._last = done
        reload(self._invocation)

    def _undo(self, before: ModelSettings) -> None:
        """Bring everything back; what can not be is told, and does not hide why."""
        name = self._wanted.name
        try:
            if self._first is not None and self._last is not None:
                all_of_it = replace(self._last, before=self._first.before)
                old = before.providers.get(name)
                given = {key: str(value) for key in OURS if (value := getattr(old, key, None)) is not None}
                undo = (
                    self._put_back(old, given) if old is not None else take_out(name, before, default=before.provider)
                )
                take_back(self._invocation.home, all_of_it, undo)
                reload(self._invocation)
            if self._secret is not None:
                self._client.secrets.delete(self._secret)
        except PalyraError as error:
            say(
                f"palyra: not all could be taken back: {printable_line(error.detail)} Look at [model.providers.{name}]."
            )

    def _put_back(self, old: ModelProvider, given: dict[str, str]) -> Change:
        def what(tables: Any) -> None:
            put(self._wanted.name, given)(tables)
            if self._tooled is not None:
                card = old.models.get(self._tooled, ModelCard())
                put_tools(self._wanted.name, self._tooled, card.tools)(tables)

        return what


def _tell(invocation: Invocation, added: Added) -> None:
    name, key = printable_line(added.provider), ""
    if added.key is not None:
        in_vault = added.key.startswith("vault:")
        key = f"; its key is in the vault as {added.key[6:]}" if in_vault else f"; its key stays at {added.key}"
    print(f"{name} is in {invocation.home.config}, with the model {printable_line(added.model)}{key}.")
    print(choice_line(added.tools, name, added.model))
    if added.default:
        print(f"{name} answers from now on. `palyra chat` talks to it.")
        warn_if_overridden(invocation)
    else:
        print(f"`palyra providers default {name}` lets it answer.")
