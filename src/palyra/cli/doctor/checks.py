"""The doctor's checks: one function for each, each with a fix; those of the journal are in `journal_checks.py`."""

import asyncio
import calendar
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from palyra.cli.doctor.check import FAIL, OK, WARN, Check, error_text
from palyra.cli.doctor.journal_checks import check_journal, check_tapes
from palyra.cli.errors import describe
from palyra.cli.options import STATUS_SECONDS, Invocation
from palyra.cli.sandbox import check_memory_accounting, check_tier, try_search
from palyra.cli.terminal.output import plural
from palyra.core.errors import PalyraError
from palyra.core.model.catalog import DialectName, ModelProvider, split_model_name
from palyra.core.version import VERSION
from palyra.gateway.client.errors import TokenRejected, TokenUnusable
from palyra.gateway.client.target import find_daemon, is_held, read_token
from palyra.home import Home, HomeOwnerMismatch, HomePermissionsTooOpen
from palyra.sandbox.base import Tier
from palyra.sandbox.wasm.module import ModuleJob
from palyra.sandbox.wasm.runner import NOTHING, WasmRunner
from palyra.settings import Settings
from palyra.tools.plugins.installed import FaultyPlugin, load_all

MIN_PYTHON = (3, 11)
LOW_SPACE_BYTES = 500 * 1024 * 1024
NO_SPACE_BYTES = 50 * 1024 * 1024
FIRST_YEAR = 2024
"""A clock that shows an earlier year was never set."""
SKEW_SECONDS = 120


def check_all(invocation: Invocation) -> list[Check]:
    """Run all checks. Those that depend on a failed one are left out."""
    try:
        home = invocation.home
    except (HomeOwnerMismatch, HomePermissionsTooOpen) as error:
        return [check_python(), Check("home", FAIL, error.detail)]
    checks = [check_python(), check_clock(home), *check_home(home)]
    checks.append(check_space(invocation.home))
    try:
        settings = invocation.settings
    except PalyraError as error:
        return [
            *checks,
            Check("settings", FAIL, error.detail, "Fix the file or the variable, then run `palyra doctor` again."),
        ]
    exists = invocation.home.config.exists()
    what = f"read from {invocation.home.config}" if exists else "defaults (there is no config.toml)"
    checks.append(Check("settings", OK, what))
    checks.append(check_provider(settings))
    checks.extend(check_providers(invocation, settings))
    checks.append(check_sandbox(settings, invocation.home))
    checks.append(check_search(settings))
    checks.append(check_wasm())
    checks.extend(check_plugins(invocation.home))
    checks.append(check_daemon(invocation))
    checks.extend(check_mcp(invocation, settings))
    checks.extend(check_journal(invocation.home, settings))
    checks.extend(check_tapes(invocation))
    return checks


def check_python() -> Check:
    """Check that this Python is new enough."""
    what = f"Python {'.'.join(map(str, sys.version_info[:3]))}"
    if sys.version_info[:2] < MIN_PYTHON:
        return Check("python", FAIL, what, f"Install Palyra with Python {'.'.join(map(str, MIN_PYTHON))} or newer.")
    return Check("python", OK, what)


def check_clock(home: Home) -> Check:
    """Check that the machine's clock can be right: set at all, and not behind what was written before."""
    # This checks the machine's own clock, so it is read directly.
    now = time.gmtime()
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", now)
    if now.tm_year < FIRST_YEAR:
        return Check("clock", FAIL, f"the system clock reads {text}", "Set the system clock.")
    seconds = calendar.timegm(now)
    ahead = [
        path for path in (home.journal, home.log) if path.exists() and path.stat().st_mtime > seconds + SKEW_SECONDS
    ]
    if ahead:
        return Check(
            "clock",
            WARN,
            f"{ahead[0].name} was modified after the current time ({text})",
            "The clock was set back. Set it correctly: tapes and leases depend on it.",
        )
    return Check("clock", OK, text)


def check_home(home: Home) -> Iterator[Check]:
    """Check that the home exists, and that only its owner has access."""
    if not home.path.exists():
        yield _check_missing(home)
        return
    if not home.path.is_dir():
        yield Check("home", FAIL, f"{home.path} is not a folder", "Move it, or choose another home with --home.")
        return
    yield _check_mode("home", home.path, requested=0o700)
    private = (("token", home.token), ("key", home.key), ("vault", home.vault_key), ("history", home.history))
    for name, path in private:
        if path.exists():
            yield _check_mode(name, path, requested=0o600)
    if home.token.exists():
        try:
            read_token(home)
        except TokenUnusable as error:
            yield Check("token", FAIL, error.detail)


def _check_missing(home: Home) -> Check:
    above = _nearest(home.path)
    if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
        return Check("home", OK, f"{home.path} does not exist yet", "The first start creates it.")
    what = f"{home.path} does not exist, and you cannot create it in {above}"
    return Check("home", FAIL, what, "Choose another home with --home or PALYRA_HOME.")


def check_space(home: Home) -> Check:
    """Check that the journal has room to grow."""
    free = shutil.disk_usage(_nearest(home.path)).free
    what = f"{free / 1024**3:.1f} GiB free"
    if free < NO_SPACE_BYTES:
        return Check("disk", FAIL, what, "Free disk space now: soon the journal cannot be written.")
    if free < LOW_SPACE_BYTES:
        return Check("disk", WARN, what, "Free disk space soon.")
    return Check("disk", OK, what)


def check_provider(settings: Settings) -> Check:
    """Check that there is a model to answer."""
    model = settings.model
    match model.provider:
        case "embedded":
            return Check("model", OK, "embedded (the built-in helper)", "Add a real model with `palyra providers add`.")
        case "scripted" if model.script is None:
            return Check(
                "model", FAIL, "scripted, but model.script is not set", "Set model.script to a JSON or TOML file."
            )
        case "scripted" if not Path(os.path.expanduser(model.script or "")).is_file():
            return Check(
                "model", FAIL, f"the script {model.script} does not exist", "Set model.script to an existing file."
            )
        case "scripted":
            return Check("model", OK, f"scripted: plays {model.script}")
        case name if split_model_name(name)[0] in model.providers:
            return Check("model", OK, name, "Test it with `palyra providers test`.")
        case unknown:
            return Check("model", FAIL, f"there is no provider {unknown!r}", "Set model.provider to 'embedded'.")


def check_providers(invocation: Invocation, settings: Settings) -> Iterator[Check]:
    """Check that every provider has what it needs: a model file and what runs it, or a key."""
    for name, table in settings.model.providers.items():
        if table.dialect is DialectName.LOCAL:
            yield _check_local(name, table)
    yield from _check_keys(invocation, settings)


def _check_local(name: str, table: ModelProvider) -> Check:
    if find_spec("xllamacpp") is None:
        what = f"{name} is a model file, but the package that runs it is not installed"
        return Check("model", FAIL, what, "Install it: pip install 'palyra[local]'.")
    path = Path(os.path.expanduser(table.path or ""))
    if not path.is_file():
        return Check(
            "model", FAIL, f"the model file of {name} does not exist: {path}", "Put the file there, or set path."
        )
    return Check("model", OK, f"{name}: {path}")


def _check_keys(invocation: Invocation, settings: Settings) -> Iterator[Check]:
    """Check that providers' keys are where the settings say. Their values are not shown."""
    keys = {
        text: f"model.providers.{name}"
        for name, table in settings.model.providers.items()
        for text in (table.key, *table.keys)
        if text
    }
    if not keys:
        return
    lost = _lost_keys(invocation)
    if lost is None:
        yield Check(
            "keys",
            OK,
            f"{', '.join(keys)}: not checked",
            "Start the daemon with `palyra up`, then run `palyra doctor` again.",
        )
        return
    for reference, why in lost.items():
        remedy = "Store the key there, or set another with `palyra providers add NAME --replace`."
        yield Check("keys", FAIL, f"{keys.get(reference, 'a provider')}: {why}", remedy)
    if matches := [reference for reference in keys if reference not in lost]:
        yield Check("keys", OK, f"found: {', '.join(matches)}")


def _lost_keys(invocation: Invocation) -> dict[str, str] | None:
    """Return the references that do not resolve, and why; None if only a daemon could tell, and none answers."""
    if find_daemon(invocation.home) is None:
        return None
    # The daemon's environment may have other variables than ours, and the vault is its own.
    client = invocation.client_within(STATUS_SECONDS)
    try:
        provider_statuses = client.providers.list().providers
    except PalyraError:
        return None  # why it does not answer is reported already
    return {lost.reference: lost.reason for one in provider_statuses for lost in one.lost}


def check_sandbox(settings: Settings, home: Home | None = None) -> Check:
    """Check that the configured sandbox works: without it agents run no programs, everything else works."""
    tier = Tier(settings.sandbox.tier)
    tier_check = check_tier(tier, requested_tier=tier, home=home, settings=settings)
    if not tier_check.works:
        return Check("sandbox", WARN, f"{tier} is not available: {tier_check.what}", tier_check.remedy)
    if tier is Tier.OFF:
        return Check("sandbox", WARN, "off: programs run with all of your rights", "Set sandbox.tier to strict.")
    counted = check_memory_accounting(home).what if home is not None else ""
    return Check("sandbox", OK, f"{tier}: {tier_check.what}" + (f"; memory: {counted}" if counted else ""))


def check_search(settings: Settings) -> Check:
    """Check that ripgrep is available for file searches. It is optional: without it searches only take longer."""
    search_check = try_search(Tier(settings.sandbox.tier))
    return Check("search", OK, search_check.what, search_check.remedy)


def check_wasm() -> Check:
    """Check that WebAssembly modules run: without them plugins and wasm.run fail, everything else works."""
    try:
        outcome = asyncio.run(WasmRunner().run(ModuleJob(module=NOTHING)))
    except (PalyraError, OSError) as error:
        return Check(
            "wasm", WARN, f"modules cannot run: {error_text(error)}", "Reinstall Palyra with its dependencies."
        )
    if not outcome.ok:
        return Check("wasm", WARN, f"a test module failed: {outcome.stopped}", "Reinstall Palyra.")
    return Check("wasm", OK, "modules can run")


def check_plugins(home: Home) -> Iterator[Check]:
    """Check that the plugins are what was installed; no result if there are none."""
    result = list(load_all(home))
    for plugin in result:
        try:
            if isinstance(plugin, FaultyPlugin):
                raise plugin.error
            plugin.module()
        except PalyraError as error:
            yield Check("plugins", WARN, error.detail, "Check all plugins with `palyra plugins verify`.")
            return
    if result:
        yield Check("plugins", OK, f"{plural(len(result), 'plugin')} installed and unchanged")


def check_daemon(invocation: Invocation) -> Check:
    """Check that the daemon runs, answers, and has this version."""
    daemon = find_daemon(invocation.home)
    if daemon is None:
        if is_held(invocation.home):
            return Check("daemon", WARN, "starting or stopping", "Try again in a moment.")
        return Check("daemon", OK, "not running", "Start it with `palyra up`.")
    try:
        status = invocation.ask_status()
    except (TokenUnusable, TokenRejected) as error:
        return Check("daemon", FAIL, f"process {daemon.pid} is running, but it rejects the token", describe(error))
    except PalyraError as error:
        return Check("daemon", FAIL, f"process {daemon.pid} is running, but does not answer correctly", describe(error))
    if status.storage != "ok":
        detail = next((part.detail for part in status.parts if part.name == "journal"), "")
        return Check("daemon", FAIL, f"the journal cannot be written: {status.storage}", detail or "See `palyra logs`.")
    if status.version != VERSION:
        what = f"version {status.version} is running; this command is {VERSION}"
        return Check("daemon", WARN, what, "Update the daemon with `palyra restart`.")
    return Check("daemon", OK, f"running at {daemon.address} (process {daemon.pid})")


def check_mcp(invocation: Invocation, settings: Settings) -> Iterator[Check]:
    """Check that MCP servers, if there are any, can be used, and whether one waits for the owner's decision."""
    if not settings.mcp.servers:
        return
    if find_spec("mcp") is None:
        remedy = "Install it: pip install 'palyra[mcp]'."
        yield Check("mcp", FAIL, "servers are configured, but the package mcp is not installed", remedy)
        return
    try:
        status = invocation.ask_status() if find_daemon(invocation.home) is not None else None
    except PalyraError:
        status = None  # why it does not answer is reported already
    for part in status.parts if status is not None else ():
        if part.name == "mcp":
            state = OK if part.status == "ok" else WARN
            yield Check("mcp", state, part.detail, "" if state == OK else "See `palyra mcp list`.")


def _nearest(path: Path) -> Path:
    return next(target_path for target_path in (path, *path.parents) if target_path.exists())


def _check_mode(name: str, path: Path, *, requested: int) -> Check:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        what = f"{path} is accessible to other users (mode {mode:04o})"
        return Check(name, FAIL, what, f"chmod {requested:o} {path}")
    return Check(name, OK, f"{path} (mode {mode:04o})")
