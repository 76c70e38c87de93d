"""Whatever a tool does, the model gets a text of bounded size that says how it went."""

import asyncio
import logging
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from palyra.core.errors import Invalid
from palyra.core.tool import MAX_RESULT_BYTES, CallOutcome, JsonObject, Risk
from palyra.tools.base import Delegation, ToolContext, tool
from palyra.tools.execution import ToolResult, fit
from palyra.tools.toolbox import BUILTIN_ONLY
from tests.unit.tools.surroundings import a_call, outcome, run


class NoSuchMoon(Invalid):
    """There is no such moon. Name another."""


@tool(name="test.act", risk=Risk.LOW)
async def act(context: ToolContext, *, how: str = "well") -> str:
    """Act in one of several ways."""
    match how:
        case "refused":
            raise NoSuchMoon
        case "broken":
            raise ZeroDivisionError("oops")
        case "own timeout":
            raise TimeoutError("the other side is slow")
        case "slow":
            await asyncio.sleep(60)
        case "large":
            return "h" * 50_000 + "end"
        case "unclean":
            return "a\0b\ud800c"
        case "group":
            raise ExceptionGroup("both", [ValueError("one"), ValueError("two")])
        case _:
            pass
    return "done"


@tool(name="test.patient", risk=Risk.LOW, timeout_ms=30)
async def patient(context: ToolContext) -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return ""


TOOLS = (act, patient)


async def acted(how: str, *, timeout_ms: int = 60_000) -> ToolResult:
    return await outcome(a_call("test.act", {"how": how}), tools=TOOLS, timeout_ms=timeout_ms)


async def test_a_result_is_passed_on() -> None:
    assert await acted("well") == ToolResult(CallOutcome.OK, "done")


async def test_a_bad_call_is_an_error_with_its_reason() -> None:
    finished = await outcome(a_call("test.act", {"why": 1}), tools=TOOLS)
    assert finished.outcome is CallOutcome.ERROR
    assert "unknown field `why`" in finished.text


async def test_an_expected_fault_is_told_in_its_own_words() -> None:
    assert await acted("refused") == ToolResult(CallOutcome.ERROR, "There is no such moon. Name another.")


async def test_an_unexpected_fault_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        finished = await acted("broken")
    assert finished == ToolResult(CallOutcome.ERROR, "test.act failed: ZeroDivisionError: oops")
    assert "test.act" in caplog.text


async def test_several_faults_at_once_do_not_get_out() -> None:
    assert (await acted("group")).outcome is CallOutcome.ERROR


async def test_a_tool_that_takes_too_long_is_stopped() -> None:
    finished = await acted("slow", timeout_ms=20)
    assert finished == ToolResult(
        CallOutcome.TIMEOUT, "test.act was stopped: it took longer than 0.02 s. Ask for less at once."
    )


async def test_a_tools_own_time_counts() -> None:
    finished = await outcome(a_call("test.patient"), tools=TOOLS, timeout_ms=60_000)
    assert finished.outcome is CallOutcome.TIMEOUT
    assert "0.03 s" in finished.text


async def test_a_timeout_inside_the_tool_is_an_ordinary_fault() -> None:
    finished = await acted("own timeout")
    assert finished == ToolResult(CallOutcome.ERROR, "test.act failed: TimeoutError: the other side is slow")


async def test_a_cancellation_gets_out() -> None:
    task = asyncio.create_task(run(a_call("test.act", {"how": "slow"}), tools=TOOLS))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_large_result_keeps_its_head_and_its_tail() -> None:
    text = (await acted("large")).text
    assert len(text.encode()) <= MAX_RESULT_BYTES
    assert text.startswith("hhh")
    assert text.endswith("hhhend")
    assert "bytes left out" in text


async def test_a_result_is_valid_text() -> None:
    assert (await acted("unclean")).text == "a�b?c"


async def test_a_delegation_is_handed_to_the_run() -> None:
    assert await run(a_call("agent.delegate", {"task": "sing"})) == Delegation("sing")


odd = st.sampled_from(["", ".", "a.txt", "../x", "/", "\0", "*", "[", "(a+)+$", "UTC", "ü" * 300, "\ud800"]) | st.text()
anything = odd | st.integers(-(2**70), 2**70) | st.booleans()
argument = st.sampled_from(["path", "line", "lines", "byte", "folder", "text", "glob", "limit", "zone", "task"])


@given(st.sampled_from(BUILTIN_ONLY.catalog(None).names()), st.dictionaries(argument, anything, max_size=4))
@example("files.read", {"path": "a.txt", "line": "\ud800"})
def test_no_arguments_make_a_built_in_tool_break(name: str, arguments: JsonObject) -> None:
    with TemporaryDirectory() as folder:
        (Path(folder) / "a.txt").write_text("one\ntwo\n")
        finished = asyncio.run(run(a_call(name, arguments), root=Path(folder)))
    assert isinstance(finished, Delegation) or f"{name} failed" not in finished.text


any_text = st.text(alphabet=st.characters(), max_size=300) | st.text(alphabet="aü€😀", min_size=200, max_size=2000)


@given(any_text, st.integers(0, 400))
@example("😀" * 100, 50)
def test_a_cut_text_fits_and_is_valid(text: str, limit: int) -> None:
    cut = fit(text, limit=limit)
    assert len(cut.encode()) <= limit
    assert "\0" not in cut


@given(st.text(alphabet="aü€😀\n", min_size=100, max_size=600))
def test_what_was_left_out_is_counted(text: str) -> None:
    cut = fit(text, limit=90)
    if cut == text:
        return
    head, _, rest = cut.partition("\n[… ")
    missing, _, tail = rest.partition(" bytes left out …]\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(text.encode()) == len(head.encode()) + int(missing) + len(tail.encode())
