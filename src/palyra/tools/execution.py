"""Executes one call of a tool, from its arguments to the text that the model gets."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from palyra.core.artifact import MAX_KEPT_BYTES
from palyra.core.attestation import FullResult
from palyra.core.errors import PalyraError
from palyra.core.message import repair_text
from palyra.core.tool import MAX_RESULT_BYTES, CallOutcome, ToolCall
from palyra.exhaustion import wait_out
from palyra.tools.arguments import CallProblem, check
from palyra.tools.base import CallOutcomeUnknown, Delegation, DiscoveredTools, ToolContext
from palyra.tools.catalog import ToolCatalog

Hide = Callable[[str], Awaitable[str]]
"""Returns a text without secrets."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The outcome of a call, with the text that the model gets."""

    outcome: CallOutcome
    text: str
    full: FullResult | None = None
    """The full result, if the text is only a part."""
    discovered_tools: tuple[str, ...] = ()
    """Tools that it discovered."""

    @property
    def artifact(self) -> str | None:
        """The id of the full result."""
        return self.full.artifact_id if self.full is not None else None


async def execute(
    call: ToolCall, *, catalog: ToolCatalog, context: ToolContext, timeout_ms: int, hide: Hide | None = None
) -> ToolResult | Delegation:
    """Run the call to its end, whatever the outcome; only a cancellation is raised.

    `timeout_ms` is what the run allows; a tool's own timeout replaces it. `hide` gets a result before it is
    cut or stored anywhere: half a secret would not be recognised any more.
    """
    result = await _run(call, catalog=catalog, context=context, timeout_ms=timeout_ms)
    if isinstance(result, Delegation):
        return result
    outcome, text = (CallOutcome.OK, result.text) if isinstance(result, DiscoveredTools) else result
    finished = await _finished(outcome, await hide(text) if hide is not None else text, context)
    return replace(finished, discovered_tools=result.tools) if isinstance(result, DiscoveredTools) else finished


async def _run(
    call: ToolCall, *, catalog: ToolCatalog, context: ToolContext, timeout_ms: int
) -> tuple[CallOutcome, str] | Delegation | DiscoveredTools:
    arguments = check(catalog, call)
    if isinstance(arguments, CallProblem):
        return CallOutcome.ERROR, arguments.reason
    tool = catalog.get(call.tool)
    assert tool is not None
    allowed_ms = timeout_ms if tool.timeout_ms is None else tool.timeout_ms
    try:
        # Waiting for a slot does not count: the principal's other calls must not use up this call's time.
        async with context.shares.hold(context.principal, tool.pool), asyncio.timeout(allowed_ms / 1000) as limit:
            if tool.spec.repeatable:
                result = await wait_out(lambda: tool.run(context, arguments), what=f"tool {call.tool}")
            else:
                result = await tool.run(context, arguments)
    except CallOutcomeUnknown as error:
        return CallOutcome.INTERRUPTED, error.detail
    except PalyraError as error:
        return CallOutcome.ERROR, error.detail
    except Exception as error:
        if isinstance(error, TimeoutError) and limit.expired():
            return CallOutcome.TIMEOUT, _too_slow(call.tool, allowed_ms)
        # A tool's fault must not end the run: the model gets an error, and the log shows where it happened.
        _log.exception("tool %s failed", call.tool, extra={"call_id": call.call_id})
        return CallOutcome.ERROR, f"{call.tool} failed: {type(error).__name__}: {error}"
    return (CallOutcome.OK, result) if isinstance(result, str) else result


def fit(text: str, *, limit: int = MAX_RESULT_BYTES, more: str = "") -> str:
    """Return the text in at most `limit` bytes: its head, its tail, and between them a line about the gap.

    `more` ends that line: how to read on.
    """
    data = repair_text(text).encode()
    if len(data) <= limit:
        return data.decode()
    room = limit - len(_gap(len(data), more))
    if room <= 0:
        return data[:limit].decode(errors="ignore")
    # The head says what it is, and the tail how it ended; the tail needs less room.
    tail_bytes = room // 4
    head = data[: room - tail_bytes].decode(errors="ignore")
    tail = data[len(data) - tail_bytes :].decode(errors="ignore")
    missing = len(data) - len(head.encode()) - len(tail.encode())
    return head + _gap(missing, more).decode() + tail


def _gap(missing: int, more: str) -> bytes:
    return f"\n[… {missing} bytes left out{more} …]\n".encode()


async def _finished(outcome: CallOutcome, text: str, context: ToolContext) -> ToolResult:
    if len(text) * 4 <= MAX_RESULT_BYTES or len(data := repair_text(text).encode()) <= MAX_RESULT_BYTES:
        return ToolResult(outcome, fit(text))
    try:
        spilt = await context.storage.spill(data[:MAX_KEPT_BYTES])
    except PalyraError as error:
        # The part that is returned is better than nothing.
        _log.warning("a long result is not stored: %s", error.detail)
        spilt = None
    if spilt is None:
        return ToolResult(outcome, fit(text))
    stored = "the whole" if len(data) <= MAX_KEPT_BYTES else f"the first {MAX_KEPT_BYTES >> 20} MiB"
    more = f"; read {stored} of {len(data)} bytes with artifact.read, artifact={spilt.artifact_id}"
    return ToolResult(outcome, fit(text, more=more), spilt)


def _too_slow(name: str, allowed_ms: int) -> str:
    return f"{name} was stopped: it took longer than {allowed_ms / 1000:g} s. Ask for less at once."
