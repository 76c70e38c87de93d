"""One call of a tool from its arguments to the text that the model is given."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from palyra.core.artifact import MAX_KEPT_BYTES
from palyra.core.attestation import Whole
from palyra.core.errors import PalyraError
from palyra.core.message import mend_text
from palyra.core.tool import MAX_RESULT_BYTES, Outcome, ToolCall
from palyra.exhaustion import wait_out
from palyra.tools.arguments import BadCall, check
from palyra.tools.base import Delegation, Found, OutcomeUnknown, ToolContext
from palyra.tools.catalog import Catalog

Hide = Callable[[str], Awaitable[str]]
"""Returns a text without secrets."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Finished:
    """What came of a call, in the words that the model is given."""

    outcome: Outcome
    text: str
    whole: Whole | None = None
    """The whole of it, if the text is only a part."""
    found: tuple[str, ...] = ()
    """Tools that it brings."""

    @property
    def artifact(self) -> str | None:
        """Where the whole is kept."""
        return self.whole.artifact_id if self.whole is not None else None


async def execute(
    call: ToolCall, *, catalog: Catalog, context: ToolContext, timeout_ms: int, hide: Hide | None = None
) -> Finished | Delegation:
    """Run the call to its end, whatever that is; only a cancellation gets out of here.

    `timeout_ms` is what the run allows; a tool that sets a time of its own has that. `hide` sees a result before it is
    cut or kept anywhere: half a secret would not be recognised any more.
    """
    result = await _run(call, catalog=catalog, context=context, timeout_ms=timeout_ms)
    if isinstance(result, Delegation):
        return result
    outcome, text = (Outcome.OK, result.text) if isinstance(result, Found) else result
    finished = await _finished(outcome, await hide(text) if hide is not None else text, context)
    return replace(finished, found=result.tools) if isinstance(result, Found) else finished


async def _run(
    call: ToolCall, *, catalog: Catalog, context: ToolContext, timeout_ms: int
) -> tuple[Outcome, str] | Delegation | Found:
    arguments = check(catalog, call)
    if isinstance(arguments, BadCall):
        return Outcome.ERROR, arguments.reason
    tool = catalog.get(call.tool)
    assert tool is not None
    allowed_ms = timeout_ms if tool.timeout_ms is None else tool.timeout_ms
    try:
        # What a call waits for its turn does not count: the principal's other calls must not use up its time.
        async with context.shares.hold(context.principal, tool.pool), asyncio.timeout(allowed_ms / 1000) as limit:
            if tool.spec.repeatable:
                result = await wait_out(lambda: tool.run(context, arguments), what=f"tool {call.tool}")
            else:
                result = await tool.run(context, arguments)
    except OutcomeUnknown as error:
        return Outcome.INTERRUPTED, error.detail
    except PalyraError as error:
        return Outcome.ERROR, error.detail
    except Exception as error:
        if isinstance(error, TimeoutError) and limit.expired():
            return Outcome.TIMEOUT, _too_slow(call.tool, allowed_ms)
        # A tool's fault must not end the run: the model is told, and the log keeps where it happened.
        _log.exception("tool %s failed", call.tool, extra={"call_id": call.call_id})
        return Outcome.ERROR, f"{call.tool} failed: {type(error).__name__}: {error}"
    return (Outcome.OK, result) if isinstance(result, str) else result


def fit(text: str, *, limit: int = MAX_RESULT_BYTES, more: str = "") -> str:
    """Return the text in at most `limit` bytes: its head, its tail, and between them a line on what is missing.

    `more` ends that line: how to read on.
    """
    whole = mend_text(text).encode()
    if len(whole) <= limit:
        return whole.decode()
    room = limit - len(_gap(len(whole), more))
    if room <= 0:
        return whole[:limit].decode(errors="ignore")
    # What comes first says what it is, and what comes last how it ended; the end needs less room.
    tail_bytes = room // 4
    head = whole[: room - tail_bytes].decode(errors="ignore")
    tail = whole[len(whole) - tail_bytes :].decode(errors="ignore")
    missing = len(whole) - len(head.encode()) - len(tail.encode())
    return head + _gap(missing, more).decode() + tail


def _gap(missing: int, more: str) -> bytes:
    return f"\n[… {missing} bytes left out{more} …]\n".encode()


async def _finished(outcome: Outcome, text: str, context: ToolContext) -> Finished:
    if len(text) * 4 <= MAX_RESULT_BYTES or len(whole := mend_text(text).encode()) <= MAX_RESULT_BYTES:
        return Finished(outcome, fit(text))
    try:
        spilt = await context.keeping.spill(whole[:MAX_KEPT_BYTES])
    except PalyraError as error:
        # The part that is given is better than nothing.
        _log.warning("a long result is not kept: %s", error.detail)
        spilt = None
    if spilt is None:
        return Finished(outcome, fit(text))
    kept = "the whole" if len(whole) <= MAX_KEPT_BYTES else f"the first {MAX_KEPT_BYTES >> 20} MiB"
    more = f"; read {kept} of {len(whole)} bytes with artifact.read, artifact={spilt.artifact_id}"
    return Finished(outcome, fit(text, more=more), spilt)


def _too_slow(name: str, allowed_ms: int) -> str:
    return f"{name} was stopped: it took longer than {allowed_ms / 1000:g} s. Ask for less at once."
