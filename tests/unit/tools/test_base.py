"""A tool is read off the signature of its function."""

from typing import Annotated, Literal

import pytest
from msgspec import Meta

from palyra.core.tool import Risk
from palyra.tools.base import ToolContext, tool
from tests.unit.tools.surroundings import a_context


@tool(name="test.echo", risk=Risk.MEDIUM, repeatable=True, timeout_ms=7)
async def echo(
    context: ToolContext,
    *,
    text: Annotated[str, Meta(description="what to say", max_length=9)],
    times: int = 1,
    tone: Literal["soft", "loud"] = "soft",
) -> str:
    """Say something
    more than once.

    This part is for people only.
    """
    return text * times + tone


def test_the_description_is_the_first_paragraph() -> None:
    assert echo.spec.description == "Say something more than once."


def test_the_schema_is_the_signature() -> None:
    assert echo.spec.parameters == {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "what to say", "maxLength": 9},
            "times": {"type": "integer", "default": 1},
            "tone": {"enum": ["loud", "soft"], "default": "soft"},
        },
        "required": ["text"],
        "additionalProperties": False,
    }


def test_what_the_loop_must_know_is_kept() -> None:
    assert (echo.spec.name, echo.spec.risk, echo.spec.repeatable, echo.spec.read_only) == (
        "test.echo",
        Risk.MEDIUM,
        True,
        False,
    )
    assert echo.timeout_ms == 7


async def test_a_tool_runs_with_its_arguments() -> None:
    assert isinstance(echo.arguments, type)
    assert await echo.run(a_context(), echo.arguments(text="a", times=3)) == "aaasoft"


def test_arguments_must_be_named() -> None:
    async def positional(context: ToolContext, text: str) -> str:
        """Never becomes a tool."""
        return text

    with pytest.raises(TypeError, match=r"test\.bad: text must be keyword-only"):
        tool(name="test.bad", risk=Risk.LOW)(positional)
