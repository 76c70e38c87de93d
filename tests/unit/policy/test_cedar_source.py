"""Policy texts as people and their editors write them."""

from pathlib import Path

import pytest

from palyra.home import Home
from palyra.policy.gate import Gate
from palyra.policy.loader import PolicyInvalid, load, load_texts
from tests.unit.policy.asking import a_question, write_policy

ALL = '@id("all") permit (principal, action, resource)'


@pytest.mark.parametrize("body", ["(" * 5000 + "true" + ")" * 5000, "[" * 2000 + "]" * 2000 + ".isEmpty()", "(" * 5000])
def test_brackets_in_one_another_are_refused_before_they_take_the_process_down(body: str) -> None:
    with pytest.raises(PolicyInvalid, match=r"a.cedar:2:\d+: .* more than 100 nested brackets"):
        load_texts([("a.cedar", f"{ALL}\nwhen {{ {body} }};")])


def test_as_many_brackets_as_anybody_needs_are_taken() -> None:
    gate = Gate(load_texts([("a.cedar", f'{ALL} when {{ {"(" * 90}true{")" * 90} && context.command != "((" }};')]))
    assert "all" in gate.judge(a_question(), ()).policies


def test_a_file_may_begin_with_the_mark_of_its_encoding(tmp_path: Path) -> None:
    home = Home(tmp_path)
    write_policy(home, "").write_bytes(b"\xef\xbb\xbf" + f"{ALL};\r\n".encode())
    assert "all" in [policy.id for policy in load(home).items]


@pytest.mark.parametrize(
    "text", [f"@audit {ALL};", f'@audit @why("x") {ALL};', '@id("all") @audit forbid (principal, action, resource);']
)
def test_an_annotation_needs_no_text(text: str) -> None:
    found = next(policy for policy in load_texts([("a.cedar", text)]).items if policy.id == "all")
    assert found.permits is ("permit" in text)
