"""`agent.delegate`: pass a task to a child run."""

from typing import Annotated

from msgspec import Meta

from palyra.core.tool import MarkerHandling, Risk
from palyra.tools.base import Delegation, ToolContext, tool


@tool(name="agent.delegate", risk=Risk.LOW, repeatable=True, markers=MarkerHandling.TEXT)
async def delegate(
    context: ToolContext,
    *,
    task: Annotated[str, Meta(min_length=1, description="All it must know: it does not see this conversation")],
) -> Delegation:
    """Have another agent do a task, and get its answer."""
    return Delegation(task)
