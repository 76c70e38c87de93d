"""`palyra` alone: the current status, and what to do next."""

from typing import TYPE_CHECKING

from palyra.cli.errors import describe
from palyra.cli.options import Invocation
from palyra.cli.terminal.output import counts, facts, model_name, show, show_json
from palyra.core.errors import PalyraError
from palyra.core.version import VERSION

if TYPE_CHECKING:
    from palyra.gateway.records.daemon import DaemonStatus


def show_overview(invocation: Invocation) -> None:
    """Print a few lines about this home and its daemon."""
    import msgspec

    from palyra.gateway.client.target import find_daemon

    home = invocation.home
    daemon = find_daemon(home)
    status, trouble = _ask(invocation) if daemon is not None else (None, _trouble(invocation))
    if invocation.json:
        parts = msgspec.structs.asdict(status) if status is not None else {}
        show_json(
            {"version": VERSION, "home": str(home.path), "running": daemon is not None, "daemon": daemon, **parts}
        )
        return
    if daemon is None:
        state = "not running"
    else:
        state = f"running at {daemon.address} (process {daemon.pid})"
    print(f"Palyra {VERSION}")
    show(
        facts(
            ("home", str(home.path) if home.path.exists() else f"{home.path} (created at the first start)"),
            ("daemon", state),
            (
                "model",
                model_name(status.provider, status.model) if status is not None else _planned_model(invocation),
            ),
            ("stopped", _stopped(status)),
            ("runs", counts(status.runs) + "" if status is not None and status.runs else None),
            ("error", trouble),
            colours={"error": "red", "stopped": "red"},
        )
    )
    print()
    provider = status.provider if status is not None else _planned_model(invocation)
    show(_next_steps(running=daemon is not None, has_model=provider != "embedded"))


def _ask(invocation: Invocation) -> "tuple[DaemonStatus | None, str]":
    try:
        return invocation.ask_status(), ""
    except PalyraError as error:
        return None, describe(error)


def _stopped(status: "DaemonStatus | None") -> str | None:
    parts = status.parts if status is not None else []
    return next((part.detail for part in parts if (part.name, part.status) == ("stop", "stopped")), None)


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


def _next_steps(*, running: bool, has_model: bool) -> list[str]:
    steps = [("palyra chat", "chat with the agent" if running else "chat with the agent (starts the daemon)")]
    if not has_model:
        steps.append(("palyra providers add", "add a model"))
    if running:
        steps += [
            ("palyra sessions", "list sessions"),
            ("palyra runs tape last", "show every step of the last run"),
            ("palyra down", "stop the daemon"),
        ]
    else:
        steps += [
            ('palyra run -m "Hello"', "send one message"),
            ("palyra up", "start the daemon"),
            ("palyra doctor", "check this installation"),
        ]
    longest = max(len(command) for command, _ in steps)
    return [f"  {command.ljust(longest)}  {what}" for command, what in [*steps, ("palyra --help", "list all commands")]]
