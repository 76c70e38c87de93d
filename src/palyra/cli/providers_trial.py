"""A trial of a model: one real question, what came of it, how long it took, and what it cost."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from palyra.cli.exits import Exit
from palyra.cli.narration import Ended, ended_by
from palyra.cli.options import Invocation
from palyra.cli.output import paint, plural, say
from palyra.cli.printable import printable_line
from palyra.cli.watch import LOST, watch
from palyra.core.errors import PalyraError
from palyra.core.events import (
    ApprovalRequested,
    ModelReasoning,
    ModelText,
    ModelTurnEnded,
    ModelTurnStarted,
    ToolProposed,
)
from palyra.core.message import Accepted
from palyra.core.model import split
from palyra.core.price import shown
from palyra.core.provider import PROBE_TOOL, ToolProbe
from palyra.core.tool import JsonObject
from palyra.core.usage import Usage
from palyra.gateway.client import ADMIN_ROOT, Client
from palyra.gateway.follow import Line
from palyra.gateway.target import find_target

ANSWER_SECONDS = 90.0
"""A provider that is asked for its models may take its time."""
TOO_SLOW = "trial_too_slow"
"""The code of a trial that took longer than it may."""
WAITS = (
    "A budget wants your word before a model is asked, and a trial does not wait for it. Raise the budget in"
    " [spending.budgets], or let it warn only."
)


class Trial(Struct, frozen=True, kw_only=True):
    """What came of it."""

    ok: bool
    model: str
    """`PROVIDER/MODEL`."""
    run_id: str
    answer: str = ""
    first_ms: int | None = None
    """Until the first of the answer was there; None if nothing came."""
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
        """How a command ends that was about it."""
        return Exit.DONE if self.ok else Exit.FAILED


def admin(invocation: Invocation) -> Client:
    """Return the way to what only whoever administers this Palyra may ask."""
    return Client(lambda: find_target(invocation.home), root=ADMIN_ROOT, answer_seconds=ANSWER_SECONDS)


def try_out(
    invocation: Invocation, name: str, probe: ToolProbe | None = None, *, seconds: float | None = None
) -> Trial:
    """Put `PROVIDER` or `PROVIDER/MODEL` to the proof, with a tool if there is a `probe`. Ctrl-C cancels the question,
    and so do the `seconds` that it may take."""
    provider, model = split(name)
    client = invocation.client
    path = f"/providers/{quote(provider, safe='')}/test"
    sent = admin(invocation).ask(Accepted, "POST", path, body={"model": model, "tools": probe})
    heard = _Heard(client, name, currency=invocation.settings.spending.currency)
    with _cancelled_after(client, sent.run_id, seconds) as over:
        ended = watch(client, sent.run_id, after_seq=sent.after_seq, audience=heard)
    with suppress(PalyraError):
        # It stays on its tape, and out of the way.
        client.change(sent.session_id, "archive")
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
            client.cancel(run_id, reason="the trial took too long")

    timer = threading.Timer(seconds, end) if seconds is not None else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield over
    finally:
        if timer is not None:
            timer.cancel()


def trial_lines(trial: Trial) -> list[str]:
    """Return what came of it, for a person."""
    if not trial.ok:
        return [f"{paint('No answer', 'red')} from {printable_line(trial.model)}: {printable_line(trial.reason)}"]
    cost = "not known, it has no price" if trial.micros is None else shown(trial.micros, trial.currency)
    guess = "about " if trial.usage.estimated else ""
    took = f"first words after {trial.first_ms} ms, all after {trial.total_ms} ms"
    tokens = f"{guess}{plural(trial.usage.input_tokens, 'token')} in, {trial.usage.output_tokens} out"
    return [
        f"{paint(printable_line(trial.model), 'green')} says: {printable_line(trial.answer.strip(), width=300)}",
        f"{took}; {tokens}; cost: {cost}",
    ]


class _Heard:
    """Listens to the run."""

    def __init__(self, client: Client, name: str, *, currency: str) -> None:
        self._client = client
        self._name = name
        self._currency = currency
        self._began: datetime | None = None
        self._first: datetime | None = None
        self._done: Line | None = None
        self._text = ""
        self._calls: list[JsonObject] = []
        self._waits = False

    def hear(self, line: Line) -> Ended | None:
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
                self._client.cancel(line.run_id or "", reason="a trial waits for nobody")
            case _:
                pass  # says nothing about the model
        return ended_by(line)

    def hear_beside(self, line: Line) -> None:
        """Pass it over: a trial has no tool that anybody would work with for it."""

    def lost(self) -> None:
        say(LOST)

    def trial(self, ended: Ended) -> Trial:
        if ended.status != "done" or self._done is None or not isinstance(self._done.event, ModelTurnEnded):
            reason = WAITS if self._waits else ended.reason
            if ended.status == "cancelled" and not self._waits:
                reason = f"The trial was cancelled ({ended.reason})."
            return Trial(
                ok=False, model=self._name, run_id=ended.run_id, code=ended.code or ended.status, reason=reason
            )
        turn = self._done.event
        return Trial(
            ok=True,
            model=self._name,
            run_id=ended.run_id,
            answer=self._text,
            first_ms=_ms(self._began, self._first or self._done.at),
            total_ms=_ms(self._began, self._done.at),
            usage=turn.usage,
            micros=turn.micros,
            currency=self._currency if turn.micros is not None else "",
            calls=tuple(self._calls),
        )


def _ms(began: datetime | None, then: datetime) -> int | None:
    return round((then - began).total_seconds() * 1000) if began is not None else None
