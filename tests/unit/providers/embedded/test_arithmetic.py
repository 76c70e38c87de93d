"""Sums are worked out, and nothing else is."""

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.providers.embedded.arithmetic import CannotCalculate, read_sum, work_out


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12*7", "84"),
        ("7/2", "3.5"),
        ("6/2", "3"),
        ("7//2", "3"),
        ("7%4", "3"),
        ("-(3+4)", "-7"),
        ("2**10", "1024"),
        ("2**-1", "0.5"),
        ("2**0.5", "1.41421356237"),
        ("0.1+0.2", "0.3"),
        ("2**1000", str(2**1000)),
    ],
)
def test_a_sum_has_its_value(expression: str, value: str) -> None:
    assert work_out(expression) == value


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("5/0", "zero"),
        ("5%0", "zero"),
        ("9**9**9", "too large"),
        ("10.0**400", "too large"),
        ("(2**4000)*(2**4000)", "too large"),
        ("(-1)**0.5", "can not read"),
        ("1 2", "can not read"),
        ("2+", "can not read"),
        ("()", "can not read"),
        ("(" * 150, "can not read"),
    ],
)
def test_a_sum_without_an_answer_says_why(expression: str, why: str) -> None:
    with pytest.raises(CannotCalculate, match=why):
        work_out(expression)


@pytest.mark.parametrize("expression", ["__import__('os')", "a+b", "[1]*9", "1 if 1 else 2", "True+1", "f'{1}'", "1<2"])
def test_what_is_no_sum_is_not_run(expression: str) -> None:
    with pytest.raises(CannotCalculate):
        work_out(expression)


@pytest.mark.parametrize(
    "text", ["what is 2024", "2024-01-05", "01/02/2026", "42", "hello", "a*b", "1+1 and rm -rf /", "-5"]
)
def test_what_asks_for_no_sum_is_left_alone(text: str) -> None:
    assert read_sum(text) is None


@given(st.text(alphabet="0123456789+-*/%(). ", max_size=200))
def test_any_sum_comes_to_an_end(expression: str) -> None:
    begun = time.thread_time()
    with suppress(CannotCalculate):
        assert work_out(expression)
    assert time.thread_time() - begun < 0.5
