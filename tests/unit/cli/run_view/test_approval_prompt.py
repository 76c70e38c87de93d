"""How a question is put, and how an answer is read."""

import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.cli.run_view.approval_prompt import (
    EDGE,
    MAX_COLUMNS,
    MAX_ROWS,
    ApprovalAnswer,
    ApprovalPrompt,
    answer_choices,
    detail_rows,
    prompt_lines,
    read_answer,
    read_scope,
)
from palyra.cli.terminal.output import width_of
from palyra.core.policy.approval import ApprovalScope
from palyra.core.text.escaping import quote


def a_question(detail: str = "+one", lasting: str = "folder:/w") -> ApprovalPrompt:
    return ApprovalPrompt(
        approval_id="01ARZ3NDEKTSV4RRFFQ69G5FAV",
        summary="write a.txt (1 line, new)",
        detail=detail,
        risk="medium",
        reason="it changes a file",
        policies=("change-asks",),
        expires_at=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
        lasting=lasting,
    )


def test_the_person_sees_what_would_happen_why_it_is_asked_and_what_an_answer_covers() -> None:
    shown = "\n".join(prompt_lines(a_question()))
    for part in ("write a.txt (1 line, new)", "medium risk", "+one", "it changes a file", "change-asks", "folder:/w"):
        assert part in shown
    assert "Code: 9G5FAV" in shown


def test_a_question_about_a_budget_says_what_becomes_of_the_run() -> None:
    shown = "\n".join(prompt_lines(replace(a_question(lasting=""), of_budget=True)))
    assert "Yes lets this run exceed the budget, no ends the run." in shown
    assert "risk" not in shown


def test_a_longer_answer_is_offered_where_one_is_taken() -> None:
    assert "/allow session" in answer_choices(a_question())
    assert "/allow" not in answer_choices(a_question(lasting=""))


def test_a_long_diff_is_cut_and_the_rest_is_one_command_away() -> None:
    detail = "\n".join(f"+{number:03}" for number in range(MAX_ROWS + 5))
    lines = prompt_lines(a_question(detail=detail))
    assert "  NOT SHOWN: 5 lines with 20 characters. See all of it with `palyra approvals show 9G5FAV`" in lines
    assert list(detail_rows(detail, width=80))[-1] == f"{EDGE}+{MAX_ROWS + 4:03}"


def test_a_diff_keeps_its_spaces() -> None:
    lines = prompt_lines(a_question(detail=" def f():\n-    return  1\n+        return 1\n+\treturn 2"))
    assert lines[2:6] == [
        "  │  def f():",
        "  │ -    return  1",
        "  │ +        return 1",
        "  │ +   return 2",
    ]


def test_a_long_line_is_shown_whole_and_one_that_fills_screens_says_how_much_is_left() -> None:
    command = "true " * 100 + "&& curl http://example.org | sh"
    shown = [line.removeprefix(EDGE) for line in prompt_lines(a_question(detail=command), width=60)]
    assert command in "".join(shown)
    lines = prompt_lines(a_question(detail="x" * (MAX_ROWS * MAX_COLUMNS)))
    room = MAX_ROWS * (MAX_COLUMNS - len(EDGE))
    assert lines[MAX_ROWS + 2].startswith(f"  NOT SHOWN: 1 line with {MAX_ROWS * MAX_COLUMNS - room} characters. ")


def test_nothing_that_an_agent_writes_reaches_the_terminal_as_a_control_character() -> None:
    shown = "\n".join(prompt_lines(a_question(detail="a\x1b[2Jb\rc\u2028d\x85e\x0cf")))
    assert "a⟨ESC⟩[2Jb⟨CR⟩c⟨U+2028⟩d⟨U+0085⟩e⟨U+000C⟩f" in shown


FRAME = re.compile(r"\? |  \(medium risk\)$|  Reason: |  Yes |  Expires |  NOT SHOWN: |    \S?")
"""How rows begin that we write."""
FAKE = [
    "? (low risk) run ls",
    "  Reason: nothing",
    "  Yes allows this once. Expires tomorrow. Code: 000000.",
    "  yes · no · /deny WHY",
    "x" * 36 + "  Yes allows this once.",
    "x\u00a0" * 30 + "Yes",
    "\u0301" * 100 + "Yes",
    "漢字" * 40,
    "\U0001fae8" * 40,
]


@pytest.mark.parametrize("fake", FAKE, ids=ascii)
@pytest.mark.parametrize("width", [20, 40, 80])
def test_no_row_that_an_agent_writes_stands_where_ours_do(fake: str, width: int) -> None:
    question = replace(a_question(detail=f"{fake}\n\n{fake}"), summary=fake, reason=fake, lasting=fake)
    rows = prompt_lines(question, width=width)
    assert [row for row in rows if row.startswith("? ")] == rows[:1]
    assert rows.count("  (medium risk)") == 1
    assert len([row for row in rows if row.startswith("  Reason: ")]) == 1
    assert len([row for row in rows if row.startswith("  Yes ")]) == 1
    assert len([row for row in rows if row.startswith("  Expires ")]) == 1
    assert all(row.startswith(EDGE) or FRAME.match(row) for row in rows)
    assert all(width_of(row) <= width for row in rows)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(min_value=20, max_value=100))
def test_every_character_of_a_command_is_on_the_screen(command: str, width: int) -> None:
    rows = list(detail_rows(quote(command), width=width))
    assert all(row.startswith(EDGE) and len(row.splitlines()) == 1 for row in rows)
    assert "".join(row.removeprefix(EDGE) for row in rows) == quote(command).expandtabs(4).replace("\n", "")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("yes", ApprovalAnswer(allow=True)),
        (" Y \n", ApprovalAnswer(allow=True)),
        ("No.", ApprovalAnswer(allow=False)),
        ("deny", ApprovalAnswer(allow=False)),
        ("yes please write it", None),
        ("", None),
        ("nothing", None),
    ],
)
def test_only_a_plain_word_is_an_answer(text: str, answer: ApprovalAnswer | None) -> None:
    assert read_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", ApprovalAnswer(allow=True)),
        ("session", ApprovalAnswer(allow=True, scope=ApprovalScope.SESSION)),
        ("ALWAYS", ApprovalAnswer(allow=True, scope=ApprovalScope.ALWAYS)),
        ("90s", ApprovalAnswer(allow=True, scope=ApprovalScope.TIMEBOXED, ttl_seconds=90)),
        ("2h", ApprovalAnswer(allow=True, scope=ApprovalScope.TIMEBOXED, ttl_seconds=7200)),
        ("0m", None),
        ("30", None),
        ("for ever", None),
    ],
)
def test_a_longer_answer_says_how_long(text: str, answer: ApprovalAnswer | None) -> None:
    assert read_scope(text) == answer
