"""The tool test of `palyra providers add`: finds out how a model calls tools, with small requests.

A mode works if the model calls the one tool that it is offered when instructed to, and does not call it when it should
only say hello. A small model that calls tools at random makes every run fail.
"""

from collections.abc import Callable

from msgspec import Struct

from palyra.cli.providers.trial import TOO_SLOW, ProviderTestResult
from palyra.cli.terminal.printable import printable_line
from palyra.core.model.catalog import ToolMode
from palyra.core.model.provider_status import PROBE_CITY, ToolProbe

WAYS: tuple[ToolMode, ...] = ("native", "schema")
"""In this order: a model with native tool calls is better at them."""
WORKS: dict[ToolMode, str] = {
    "native": "it calls tools natively",
    "schema": "it calls tools when its answers are restricted by a JSON Schema",
    "none": "it does not call tools, so it gets none",
}
UNDECIDED = frozenset({"model_network", "model_rate_limit", "model_quota", "model_auth"})
"""Failures that say nothing about tools."""

MIN_SECONDS = 20.0
MAX_SECONDS = 120.0
HELLO_TIMES = 4
"""How many times as long as the hello a request of the tool test may take."""


class ToolChoice(Struct, frozen=True, kw_only=True):
    """How a model calls tools, and how that is known."""

    mode: ToolMode | None
    """None if it is not known; then the model's default applies."""
    tested: bool = False
    reason: str = ""


class _Result(Struct, frozen=True):
    works: bool
    why: str = ""
    undecided: bool = False
    code: str = ""


Ask = Callable[[ToolProbe], ProviderTestResult]
SetMode = Callable[[ToolMode | None], None]


def choose(ask: Ask, set_mode: SetMode) -> ToolChoice:
    """Try one mode after the other, leave the settings with the first that works, and return it."""
    failed: list[tuple[ToolMode, _Result]] = []
    for way in WAYS:
        set_mode(way)
        result = _try(ask)
        if result.works:
            return ToolChoice(mode=way, tested=True, reason=_with_failures(WORKS[way], failed))
        failed.append((way, result))
        if result.undecided:
            break
    # A server that fails at every request is out of order, whatever the request.
    if failed[-1][1].undecided or all(result.code == "model_unavailable" for _, result in failed):
        set_mode(None)
        return ToolChoice(mode=None, reason=f"the tool test failed: {failed[-1][1].why}")
    set_mode("none")
    return ToolChoice(mode="none", tested=True, reason=_with_failures(WORKS["none"], failed))


def seconds_for(hello_ms: int | None) -> float:
    """Return the timeout of one request, from how long the hello took."""
    return min(max(MIN_SECONDS, HELLO_TIMES * (hello_ms or 0) / 1000), MAX_SECONDS)


def choice_line(choice: ToolChoice, provider: str, model: str) -> str:
    """Return a line that says how the model calls tools, why, and how to change that."""
    change = (
        f'To change it, set tools in [model.providers.{provider}.models."{printable_line(model)}"], or add it again'
        " with --replace --tools native|schema|none."
    )
    if choice.mode is None:
        return f"Tools: not tested, {printable_line(choice.reason)}; the model's default applies. {change}"
    return f"Tools: {choice.mode}; {printable_line(choice.reason, width=400)}. {change}"


def _try(ask: Ask) -> _Result:
    called = ask(ToolProbe.CALL)
    if not called.ok:
        return _broken(called)
    if not any(PROBE_CITY.casefold() in str(arguments.get("city", "")).casefold() for arguments in called.calls):
        why = "it called the test tool with wrong arguments" if called.calls else "it did not call the test tool"
        return _Result(works=False, why=why)
    answered = ask(ToolProbe.ANSWER)
    if not answered.ok:
        return _broken(answered)
    if answered.calls:
        return _Result(works=False, why="it called the test tool although it was asked only to say hello")
    return _Result(works=True)


def _broken(trial: ProviderTestResult) -> _Result:
    if trial.code == TOO_SLOW:
        return _Result(works=False, why=trial.reason, code=trial.code)
    is_known = trial.code.startswith("model_") and trial.code not in UNDECIDED
    return _Result(works=False, why=trial.reason.rstrip("."), undecided=not is_known, code=trial.code)


def _with_failures(what: str, failed: list[tuple[ToolMode, _Result]]) -> str:
    text = "; ".join(f"{way}: {result.why}" for way, result in failed)
    return f"{what} ({text})" if text else what
