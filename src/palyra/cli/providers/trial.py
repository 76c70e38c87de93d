"""A test of a model: one real request, its result, how long it took, and what it cost."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from palyra.cli.exit_codes import Exit
from palyra.cli.options import Invocation
from palyra.cli.run_view.narration import RunEnded, ended_by
from palyra.cli.run_view.watch import LOST, watch
from palyra.cli.terminal.output import paint, plural, say
from palyra.cli.terminal.printable import printable_line
from palyra.core.errors import PalyraError
from palyra.core.events import (
    ApprovalRequested,
    ModelReasoning,
    ModelText,
    ModelTurnEnded,
    ModelTurnStarted,
    ToolProposed,
)
from palyra.core.model.catalog import split_model_name
from palyra.core.model.provider_status import PROBE_TOOL, ToolProbe
from palyra.core.spending.price import format_money
from palyra.core.spending.usage import Usage
from palyra.core.tool import JsonObject
from palyra.gateway.client.client import Client
from palyra.gateway.client.tape_stream import ReceivedEntry

RESPONSE_TIMEOUT_SECONDS = 90.0
"""A provider may take long to list its models."""
TOO_SLOW = "trial_too_slow"
"""The code of a test that took too long."""
WAITS = "A budget requires approval before a model is called, and a test does not wait for it. Raise the budget in"


class ProviderTestResult(Struct, frozen=True, kw_only=True):
    """The result of a test."""

    ok: bool
    model: str
    """`PROVIDER/MODEL`."""
    run_id: str
    answer: str = ""
    first_ms: int | None = None
    """Until the first part of the answer; None if nothing came."""
    total_ms: int | None = None
    usage: Usage = Usage()
    micros: int | None = None
    """What it cost, in millionths of the currency; None if the model has no price."""
    currency: str = ""
    code: str = ""
    reason: str = ""
    """Why there is no answer."""
    calls: tuple[JsonObject, ...] = ()
    """The arguments of each call of the tool that was offered, if one was."""

    @property
    def exit(self) -> Exit:
        """The exit code of the command."""
        return Exit.DONE if self.ok else Exit.FAILED


def patient_client(invocation: Invocation) -> Client:
    """Return a client that waits for a provider's answer."""
    return invocation.client_within(RESPONSE_TIMEOUT_SECONDS)


def run_model_test(
    invocation: Invocation, name: str, probe: ToolProbe | None = None, *, seconds: float | None = None
) -> ProviderTestResult:
    """Test `PROVIDER` or `PROVIDER/MODEL`, with a tool if there is a `probe`. Ctrl-C or the timeout cancels it."""
    provider, model = split_model_name(name)
    client = invocation.client
    sent = patient_client(invocation).providers.test(provider, model=model, tools=probe)
    heard = _TestAudience(client, name, currency=invocation.settings.spending.currency)
    with _cancelled_after(client, sent.run_id, seconds) as over:
        ended = watch(client, sent.run_id, after_seq=sent.after_seq, audience=heard)
    with suppress(PalyraError):
        # The session stays on its tape, archived.
        client.archive(sent.session_id)
    trial = heard.trial(ended)
    if over.is_set() and not trial.ok:
        return replace(trial, code=TOO_SLOW, reason=f"it took longer than {seconds:.0f} s")
    return trial


@contextmanager
def _cancelled_after(client: Client, run_id: str, seconds: float | None) -> Iterator[threading.Event]:
    """Cancel the run if it takes longer than that; the event says whether it did."""
    over = threading.Event()

    def end() -> None:
        over.set()
        with suppress(PalyraError):
            client.cancel(run_id, reason="the test took too long")

    timer = threading.Timer(seconds, end) if seconds is not None else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield over
    finally:
        if timer is not None:
            timer.cancel()


def trial_lines(trial: ProviderTestResult) -> list[str]:
    """Return the result as lines for a person."""
    if not trial.ok:
        return [f"{paint('No answer', 'red')} from {printable_line(trial.model)}: {printable_line(trial.reason)}"]
    cost = "unknown (the model has no price)" if trial.micros is None else format_money(trial.micros, trial.currency)
    guess = "about " if trial.usage.estimated else ""
    took = f"first token after {trial.first_ms} ms, complete after {trial.total_ms} ms"
    tokens = f"{guess}{plural(trial.usage.input_tokens, 'token')} in, {trial.usage.output_tokens} out"
    return [
        f"{paint(printable_line(trial.model), 'green')} says: {printable_line(trial.answer.strip(), width=300)}",
        f"{took}; {tokens}; cost: {cost}",
    ]


class _TestAudience:
    """Receives the entries of the run."""

    def __init__(self, client: Client, name: str, *, currency: str) -> None:
        self._client = client
        self._name = name
        self._currency = currency
        self._began: datetime | None = None
        self._first: datetime | None = None
        self._done: ReceivedEntry | None = None
        self._text = ""
        self._calls: list[JsonObject] = []
        self._waits = False

    def on_entry(self, line: ReceivedEntry) -> RunEnded | None:
        match line.event:
            case ModelTurnStarted(provider=provider, model=model):
                self._name = f"{provider}/{model}"
                self._began, self._first, self._text, self._calls = line.at, None, "", []
            case ToolProposed(tool=PROBE_TOOL.name, arguments=arguments, malformed=""):
                self._calls.append(arguments)
            case ModelText(text=text):
                self._first = self._first or line.at
                self._text += text
            case ModelReasoning():
                self._first = self._first or line.at
            case ModelTurnEnded():
                self._done = line
            case ApprovalRequested():
                self._waits = True
                self._client.cancel(line.run_id or "", reason="a test does not wait for approval")
            case _:
                pass  # says nothing about the model
        return ended_by(line)

    def on_child_entry(self, line: ReceivedEntry) -> None:
        """Ignore it: a test has no tool that starts child runs."""

    def lost(self) -> None:
        say(LOST)

    def trial(self, ended: RunEnded) -> ProviderTestResult:
        if ended.status != "done" or self._done is None or not isinstance(self._done.event, ModelTurnEnded):
            reason = WAITS if self._waits else ended.reason
            if ended.status == "cancelled" and not self._waits:
                reason = f"The test was cancelled ({ended.reason})."
            return ProviderTestResult(
                ok=False, model=self._name, run_id=ended.run_id, code=ended.code or ended.status, reason=reason
            )
        turn = self._done.event
        return ProviderTestResult(
            ok=True,
            model=self._name,
            run_id=ended.run_id,
            answer=self._text,
            first_ms=_ms(self._began, self._first or self._done.at),
            total_ms=_ms(self._began, self._done.at),
            usage=turn.usage,
            micros=turn.cost_micros,
            currency=self._currency if turn.cost_micros is not None else "",
            calls=tuple(self._calls),
        )


def _ms(began: datetime | None, then: datetime) -> int | None:
    return round((then - began).total_seconds() * 1000) if began is not None else None
