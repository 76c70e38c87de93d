"""`palyra providers`: the model providers, which of them answers, and why."""

from collections.abc import Sequence

import click

from palyra.cli.daemon.on_demand import has_terminal
from palyra.cli.exit_codes import Exit
from palyra.cli.options import Invocation, PalyraGroup
from palyra.cli.providers.add import add
from palyra.cli.providers.explain import explain
from palyra.cli.providers.settings import make_default, remove_provider, warn_if_overridden, write
from palyra.cli.providers.trial import patient_client, run_model_test, trial_lines
from palyra.cli.terminal.output import say, show, show_json, table
from palyra.cli.terminal.printable import printable_line
from palyra.core.model.catalog import BUILT_IN, ModelProvider, ProviderNotFound, split_model_name
from palyra.core.model.provider_status import ProviderStatus
from palyra.gateway.client.target import is_held


@click.group(cls=PalyraGroup, default="list")
def providers() -> None:
    """Add, test and choose model providers. Without a command, lists them.

    Providers are configured in config.toml as [model.providers.NAME]. API keys are in the vault, or where a reference
    points to.
    """


providers.add_command(add)
providers.add_command(explain)


@providers.command("list")
def list_providers(invocation: Invocation) -> None:
    """List providers with their address, models, API key and health."""
    provider_page = patient_client(invocation).providers.list()
    if invocation.printed_json(provider_page):
        return
    rows = [
        [
            one.name,
            _use(one),
            one.dialect.value if one.dialect is not None else "built in",
            ", ".join(one.models),
            ", ".join(one.keys) or "none",
            _state(one),
            one.where,
        ]
        for one in provider_page.providers
    ]
    show(table(["PROVIDER", "USE", "API", "MODELS", "KEY", "HEALTH", "ADDRESS"], rows, stretch=3))
    for one in provider_page.providers:
        for lost in one.lost:
            print(f"{one.name}: {printable_line(lost.reason)}")
    if all(one.dialect is None for one in provider_page.providers):
        print("\nAdd a real model with `palyra providers add`.")


@providers.command("models")
@click.argument("name")
def list_models(invocation: Invocation, name: str) -> None:
    """List the models of a provider."""
    matches = models_of(invocation, name)
    none = f"{printable_line(name)} lists no models."
    invocation.report({"models": matches}, map(printable_line, matches) if matches else none)


@providers.command("test")
@click.argument("name", required=False, metavar="[NAME[/MODEL]]")
def test(invocation: Invocation, name: str | None) -> Exit:
    """Send one test message to a model and show time and cost. Without a name, tests the default model.

    The test is an ordinary run: it is recorded and counts towards the budgets.

    \b
    Exit codes: 0 the model answers, 1 it does not.
    """
    trial = run_model_test(invocation, name or patient_client(invocation).providers.list().default)
    invocation.report(trial, trial_lines(trial))
    return trial.exit


@providers.command("default")
@click.argument("name", metavar="NAME[/MODEL]")
def default(invocation: Invocation, name: str) -> None:
    """Set the default provider, from the next turn on; `embedded` is the built-in helper."""
    _check_known(invocation, name)
    write(invocation, make_default(name))
    warn_if_overridden(invocation)
    invocation.report({"default": name}, f"{printable_line(name)} answers {_from_when(invocation)}.")


@providers.command("remove")
@click.argument("name")
@click.option("--default", "other", metavar="NAME[/MODEL]", help="New default provider, if this one is the default.")
@click.option(
    "--delete-secret/--keep-secret",
    default=None,
    help="Delete its API key from the vault, or keep it. Default: ask at a terminal, otherwise keep.",
)
def remove(invocation: Invocation, name: str, *, other: str | None, delete_secret: bool | None) -> None:
    """Remove a provider."""
    removed = _check_known(invocation, name)
    if removed is None:
        raise ProviderNotFound(
            f"{name} is built in and cannot be removed. Choose another with `palyra providers default`."
        )
    if other is not None:
        _check_known(invocation, other)
    write(invocation, remove_provider(name, invocation.settings.model, default=other))
    if not invocation.json:
        print(f"Removed provider {name}.")
    deleted = [
        secret for secret in _own_secrets(invocation, name, removed) if _delete(invocation, secret, delete_secret)
    ]
    if invocation.json:
        show_json({"removed": name, "deleted_secrets": deleted})


def models_of(invocation: Invocation, name: str) -> Sequence[str]:
    """Return the models that a provider lists."""
    return patient_client(invocation).providers.models(name)


def _check_known(invocation: Invocation, name: str) -> ModelProvider | None:
    """Return the provider of a name, None for a built-in one; raise if there is none."""
    target_providers = invocation.settings.model.providers
    provider = split_model_name(name)[0]
    if provider not in target_providers and provider not in BUILT_IN:
        known_name = ", ".join((*target_providers, *BUILT_IN))
        raise ProviderNotFound(f"Unknown provider {provider[:40]!r}. Known: {known_name}. Nothing was changed.")
    return target_providers.get(provider)


def _own_secrets(invocation: Invocation, name: str, removed: ModelProvider) -> list[str]:
    """Return the provider's secrets in the vault that nothing else in the settings refers to."""
    from palyra.config import effective

    texts = [text for text in (removed.key, *removed.keys) if text and text.startswith("vault:")]
    left = {other: one for other, one in invocation.settings.model.providers.items() if other != name}
    elsewhere = str([effective(invocation.settings).get("mcp.servers"), left])
    return [text.removeprefix("vault:") for text in texts if text not in elsewhere]


def _delete(invocation: Invocation, secret: str, requested: bool | None) -> bool:
    """Delete a secret if that is wanted; ask if a terminal is attached."""
    if requested is None and has_terminal() and not invocation.json:
        requested = click.confirm(f"Also delete the secret {secret} from the vault", default=False, err=True)
    if not requested or not is_held(invocation.home):
        say(f"palyra: the secret {secret} is still in the vault. Delete it with `palyra secrets delete {secret}`.")
        return False
    invocation.client.secrets.delete(secret)
    if not invocation.json:
        print(f"Deleted secret {secret}.")
    return True


def _from_when(invocation: Invocation) -> str:
    return "from now on" if is_held(invocation.home) else "from the next start of the daemon"


def _use(one: ProviderStatus) -> str:
    fallback = [f"fallback {index}" for index in one.fallback]
    return ", ".join((*(("default",) if one.default else ()), *fallback))


def _state(one: ProviderStatus) -> str:
    if one.lost:
        return "key missing"
    return f"unavailable, next try in {one.retry_in_seconds:.0f} s" if one.retry_in_seconds else "ok"
