"""A bad call is answered with words that a model can act on."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.core.tool import JsonObject
from palyra.tools.arguments import CallProblem, check
from palyra.tools.catalog import ToolCatalog
from palyra.tools.toolbox import BUILTIN_ONLY
from tests.unit.tools.surroundings import a_call

CATALOG = BUILTIN_ONLY.catalog(None)


def reason(tool: str, arguments: JsonObject | None = None, *, malformed: str = "") -> str:
    bad = check(CATALOG, a_call(tool, arguments, malformed=malformed))
    assert isinstance(bad, CallProblem)
    return bad.reason


def test_a_good_call_gives_the_tools_own_arguments() -> None:
    arguments = check(CATALOG, a_call("files.read", {"path": "a", "line": 3}))
    assert isinstance(arguments, msgspec.Struct)
    assert msgspec.structs.asdict(arguments) == {"path": "a", "line": 3, "lines": 500, "byte": 0}


def test_a_number_written_as_text_is_taken_for_a_number() -> None:
    assert not isinstance(check(CATALOG, a_call("files.read", {"path": "a", "line": "3"})), CallProblem)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "missing required field `path`"),
        ({"path": 3}, "Expected `str`, got `int` - at `$.path`"),
        ({"path": "a", "line": "x"}, "at `$.line`"),
        ({"path": "a", "line": 0}, "`int` >= 1 - at `$.line`"),
        ({"path": "a", "mode": "r"}, "unknown field `mode`"),
        ({"path": None}, "at `$.path`"),
    ],
)
def test_a_wrong_argument_is_named_and_the_right_ones_too(arguments: JsonObject, words: str) -> None:
    assert words in reason("files.read", arguments)
    assert reason("files.read", arguments).endswith(
        "Send one JSON object with: path, line (optional), lines (optional), byte (optional)."
    )


def test_an_unknown_tool_is_answered_with_the_nearest() -> None:
    assert reason("file.read").startswith("Unknown tool 'file.read'. Did you mean files.read")
    assert reason("time_now") == "Unknown tool 'time_now'. Did you mean time.now?"


def test_a_name_like_no_other_is_answered_with_all() -> None:
    names = ", ".join(BUILTIN_ONLY.catalog(None).names())
    assert reason("qqq") == f"Unknown tool 'qqq'. Available tools: {names}."
    assert len(reason("q" * 10_000)) < 200 + len(names)


def test_without_any_tools_the_model_is_told_to_answer() -> None:
    bad = check(ToolCatalog(()), a_call("files.read"))
    assert isinstance(bad, CallProblem)
    assert "Answer without one" in bad.reason


def test_malformed_arguments_are_answered_with_the_reason() -> None:
    text = reason("files.list", malformed="the arguments are not a JSON object (truncated): {")
    assert "files.list was not called: the arguments are not a JSON object (truncated): {" in text
    assert "folder (optional)" in text


@given(
    st.sampled_from(CATALOG.names()),
    st.dictionaries(
        st.sampled_from(["path", "line", "folder", "text", "limit", "zone", "task", "other"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
            max_leaves=4,
        ),
        max_size=4,
    ),
)
def test_any_arguments_are_either_taken_or_explained(tool: str, arguments: JsonObject) -> None:
    result = check(CATALOG, a_call(tool, arguments))
    assert isinstance(result, msgspec.Struct) or result.reason
