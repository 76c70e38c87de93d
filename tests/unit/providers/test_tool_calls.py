"""The argument text of a call is read, or the reason is given why it can not be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.providers.tool_calls import read_arguments


@pytest.mark.parametrize("text", ["", "  ", "{}", "null", " null\n"])
def test_a_tool_without_arguments_may_be_called_with_nothing(text: str) -> None:
    assert read_arguments(text) == ({}, "")


@pytest.mark.parametrize("text", ['{"a": ', "[1]", '"a"', "nul", "{a: 1}", '{"a": 1} x', "[" * 5000])
def test_what_is_no_object_is_refused_and_shown(text: str) -> None:
    arguments, reason = read_arguments(text)
    assert arguments == {}
    assert text[:100] in reason
    assert len(reason) < 500


@given(st.text())
def test_any_text_is_either_read_or_explained(text: str) -> None:
    arguments, reason = read_arguments(text)
    assert isinstance(arguments, dict)
    assert not (arguments and reason)
