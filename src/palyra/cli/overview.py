"""`palyra` alone: where things stand, and what to do next."""

from typing import Any

from palyra.cli.failure import describe
from palyra.cli.options import Invocation
from palyra.cli.output import counts, facts, model_name, show, show_json
from palyra.core.errors import PalyraError
from palyra.core.version import VERSION


def show_overview(invocation: Invocation) -> None:
    """Print a few lines about this home and its daemon."""
    from palyra.gateway.client import find_daemon

    home = invocation.home
    daemon = find_daemon(home)
    parts, trouble = _ask(invocation) if daemon is not None else ({}, _trouble(invocation))
    if invocation.json:
        show_json(
            {"version": VERSION, "home": str(home.path), "running": daemon is not None, "daemon": daemon, **parts}
        )
        return
    if daemon is None:
        standing = "not running"
    else:
        standing = f"running at {daemon.address} (process {daemon.pid})"
    print(f"Palyra {VERSION}")
    show(
        facts(
            [
                ("home", str(home.path) if home.path.exists() else f"{home.path} (made at the first start)"),
                ("daemon", standing),
                ("model", model_name(parts.get("provider"), parts.get("model")) or _planned_model(invocation)),
                ("runs", counts(parts["runs"]) + " under way" if parts.get("runs") else None),
                ("trouble", trouble),
            ],
            colours={"trouble": "red"},
        )
    )
    print()
    show(_next_steps(invocation, running=daemon is not None))


def _ask(invocation: Invocation) -> tuple[dict[str, Any], str]:
    try:
        return invocation.ask_status(), ""
    except PalyraError as error:
        return {}, describe(error)


def _planned_model(invocation: Invocation) -> str | None:
    try:
        return invocation.settings.model.provider
    except PalyraError:
        return None


def _trouble(invocation: Invocation) -> str:
    try:
        _ = invocation.settings
    except PalyraError as error:
        return describe(error)
    return ""


def _next_steps(invocation: Invocation, *, running: bool) -> list[str]:
    steps = [("palyra chat", "talk to the agent" if running else "talk to the agent (starts the daemon)")]
    if running:
        steps += [
            ("palyra sessions", "what was talked about"),
            ("palyra runs tape last", "every step of the last run"),
            ("palyra down", "stop the daemon"),
        ]
    else:
        steps += [
            ('palyra run -m "Hello"', "ask one thing"),
            ("palyra up", "start the daemon only"),
            ("palyra doctor", "check this installation"),
        ]
    longest = max(len(command) for command, _ in steps)
    return [f"  {command.ljust(longest)}  {what}" for command, what in [*steps, ("palyra --help", "all commands")]]
