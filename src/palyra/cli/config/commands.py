"""`palyra config`: check the settings, show where each comes from, and which daemon uses them."""

import os
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from palyra.cli.exit_codes import Exit
from palyra.cli.options import Invocation, PalyraGroup
from palyra.cli.terminal.output import facts, paint, plural, show, show_json, table
from palyra.cli.terminal.printable import printable_line
from palyra.config import (
    SettingSource,
    SettingsProblem,
    effective,
    load,
    read,
    references,
    settings_hash,
    stray_variables,
    unresolved,
    variable_of,
)
from palyra.gateway.client.target import find_daemon, is_held
from palyra.home import Home, choose_home
from palyra.settings import Settings


@click.group(cls=PalyraGroup)
def config() -> None:
    """Check, show and reload settings, and show which daemon the commands use.

    Settings are in config.toml in the home folder. An environment variable PALYRA_SECTION_KEY overrides a key.
    """


@config.command("check")
def check_config(invocation: Invocation) -> Exit:
    """Check the settings and list all problems with their fixes.

    \b
    Exit codes: 0 no problems, 1 problems found.
    """
    home = invocation.home
    reading = read(home)
    lost = list(unresolved(home, reading))
    problems = [*reading.problems, *lost, *check_references(home, reading.settings), *stray_variables()]
    # Only whether each reference resolves; the values stay secret.
    leading = {key: key not in {problem.key for problem in lost} for key in references(reading.settings)}
    if not invocation.printed_json(
        {"ok": not problems, "file": str(home.config), "references": leading, "problems": problems}
    ):
        _print_problems(home, problems)
        for key, reference in references(reading.settings).items():
            if leading[key]:
                print(f"{key}: found a secret at {printable_line(str(reference))}.")
    return Exit.FAILED if problems else Exit.DONE


@config.command("show")
@click.option("--effective", "everything", is_flag=True, help="Include settings with their default values.")
def show_config(invocation: Invocation, *, everything: bool) -> None:
    """Show settings and where each value comes from: the file or the environment. Secrets are not shown."""
    # Invalid settings are reported in full rather than shown in part.
    settings = load(invocation.home)
    sources = read(invocation.home).sources
    listed = [
        (key, value, sources[key])
        for key, value in effective(settings).items()
        if everything or sources[key] is not SettingSource.DEFAULT
    ]
    if invocation.json:
        values = [{"key": key, "value": value, "source": source} for key, value, source in listed]
        show_json({"file": str(invocation.home.config), "hash": settings_hash(settings), "values": values})
    elif not listed:
        print("All settings have their default values. Show them with `palyra config show --effective`.")
    else:
        rows = [[key, _spell(value), _origin(key, source, invocation.home)] for key, value, source in listed]
        show(table(["KEY", "VALUE", "SOURCE"], rows, stretch=1))


@config.command("schema")
def show_schema(_: Invocation) -> None:
    """Print the JSON Schema of config.toml, for editors and other tools."""
    schema = msgspec.json.schema(Settings)
    for part in (part for part in schema["$defs"].values() if "properties" in part):
        # Limits are also stored, where keys of a later version are accepted; in the file they are not.
        part["additionalProperties"] = False
    show_json({"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Palyra settings", **schema})


@config.command("target")
def show_target(invocation: Invocation) -> None:
    """Show which daemon the commands connect to, and why."""
    home, because = choose_home(home=invocation.home_option, profile=invocation.profile)
    daemon = find_daemon(home)
    running = is_held(home)
    if invocation.json:
        show_json(
            {
                "home": str(home.path),
                "because": because,
                "running": running,
                "address": daemon.address if daemon else None,
                "grpc": daemon.grpc if daemon else None,
                "pid": daemon.pid if daemon else None,
                "version": daemon.version if daemon else None,
                "token_file": str(home.token),
                "has_token": os.access(home.token, os.R_OK),
            }
        )
        return
    state = "not running; start it with `palyra up`"
    if running:
        state = f"running, process {daemon.pid}, version {daemon.version}" if daemon else "starting or stopping"
    token = str(home.token) if os.access(home.token, os.R_OK) else f"{home.token} (missing or not readable)"
    show(
        facts(
            ("home", str(home.path)),
            ("because", "; ".join(because)),
            ("daemon", state),
            ("address", f"{daemon.address} (configuration, lists)" if daemon else None),
            ("grpc", f"{daemon.grpc or 'unknown'} (streams, status)" if daemon else None),
            ("token", token),
        )
    )


@config.command("reload")
def reload_config(invocation: Invocation) -> None:
    """Reload the settings of the running daemon. Some changes need a restart."""
    # Invalid settings are reported here, in full; the daemon would keep its current ones.
    _ = invocation.settings
    answer = invocation.client.reload_config()
    if invocation.printed_json(answer):
        return
    if not answer.live and not answer.restart:
        print("No changes.")
    if answer.live:
        print(f"Applied: {', '.join(map(printable_line, answer.live))}.")
    if answer.restart:
        print(f"Restart required: {', '.join(map(printable_line, answer.restart))}. Run `palyra restart`.")


def check_references(home: Home, settings: Settings) -> Iterator[SettingsProblem]:
    """Find references in the settings that do not resolve, and whether the price file is valid."""
    from palyra.providers import prices

    where = str(home.config)
    try:
        prices.load(home, settings.spending.currency)
    except prices.PricesInvalid as error:
        yield SettingsProblem(str(home.prices), "prices", error.detail, "Fix it. Until then the previous prices apply.")
    root = settings.workspace.root
    if root is not None and not Path(os.path.expanduser(root)).is_dir():
        what = f"workspace.root is {root}, which is not a folder."
        yield SettingsProblem(where, "workspace.root", what, "Create it, or set another folder.")
    if settings.model.provider == "scripted" and settings.model.script is None:
        what = "model.provider is scripted, but model.script is not set."
        yield SettingsProblem(where, "model.script", what, "Set it to a script file.")
    files = {
        "http.tls_certificate": settings.http.tls_certificate,
        "http.tls_key": settings.http.tls_key,
        "model.script": settings.model.script,
    }
    for key, name in files.items():
        if name is not None and not os.access(Path(os.path.expanduser(name)), os.R_OK):
            yield SettingsProblem(
                where, key, f"{key} is {name}, which cannot be read.", "Create the file or fix its permissions."
            )


def _print_problems(home: Home, problems: list[SettingsProblem]) -> None:
    for problem in problems:
        print(f"{paint(printable_line(problem.where), 'red')}: {printable_line(problem.what)}")
        print(f"    {printable_line(problem.remedy)}")
    if problems:
        print(f"\n{plural(len(problems), 'problem')}.")
    elif home.config.exists():
        print(f"{home.config}: no problems.")
    else:
        print(f"No problems. {home.config} does not exist, so all settings have their default values.")


def _origin(key: str, source: SettingSource, home: Home) -> str:
    match source:
        case SettingSource.ENVIRONMENT:
            return variable_of(key)
        case SettingSource.FILE:
            return str(home.config)
        case SettingSource.DEFAULT:
            return "default"


def _spell(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
