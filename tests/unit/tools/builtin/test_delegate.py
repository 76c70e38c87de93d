"""A task is handed on as it is."""

from palyra.core.tool import CallOutcome
from palyra.tools.base import Delegation
from tests.unit.tools.surroundings import a_call, outcome, run


async def test_the_task_is_what_the_other_agent_gets() -> None:
    assert await run(a_call("agent.delegate", {"task": "Count\nthe files."})) == Delegation("Count\nthe files.")


async def test_an_empty_task_is_refused() -> None:
    finished = await outcome(a_call("agent.delegate", {"task": ""}))
    assert finished.outcome is CallOutcome.ERROR
    assert "$.task" in finished.text
