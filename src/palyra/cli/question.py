"""A question about a call: how it is put to a person, and how the answer is read."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from palyra.cli.output import date_time, fold, plural
from palyra.cli.printable import printable_line, printable_row
from palyra.core.approval import Approval, Scope
from palyra.core.display import escape_line

CODE_CHARS = 6
MAX_ROWS = 40
MAX_COLUMNS = 2000
EDGE = "  │ "
"""What stands before each row that others wrote."""
NOT_SHOWN = "  NOT SHOWN: "
ONCE = "yes · no · /deny WHY"
LONGER = "yes · no · /allow session · /allow 30m · /allow always · /deny WHY"

_TIME = re.compile(r"(\d{1,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_YES = frozenset({"y", "yes", "allow", "ok"})
_NO = frozenset({"n", "no", "deny"})


@dataclass(frozen=True, slots=True)
class Question:
    """What the person must know to decide."""

    approval_id: str
    summary: str
    detail: str
    risk: str
    reason: str
    policies: tuple[str, ...]
    expires_at: datetime
    lasting: str
    """The class of calls that a longer answer would cover; empty if there is none."""
    of_budget: bool = False
    """It is about the run and what it may spend, and not about a call."""

    @property
    def code(self) -> str:
        """What a person types to name it."""
        return self.approval_id[-CODE_CHARS:]


def question_of(one: Approval) -> Question:
    """Return the question that an approval is."""
    return Question(
        approval_id=one.approval_id,
        summary=one.effect.summary,
        detail=one.effect.detail,
        risk=one.effect.risk.value,
        reason=one.reason,
        policies=one.policies,
        expires_at=one.expires_at,
        lasting=one.effect.kind,
        of_budget=not one.tool,
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """What the person said."""

    allow: bool
    scope: Scope = Scope.ONCE
    ttl_seconds: int | None = None
    reason: str = ""


def question_lines(question: Question, *, width: int = MAX_COLUMNS) -> list[str]:
    """Return the question as rows of a width: what would happen, all of it, why it is asked, what each answer means.

    Only what we say ourselves stands at the left edge. Of what others wrote, each row has a margin.
    """
    width = min(width, MAX_COLUMNS)
    lines = fold(printable_row(question.summary), width, first="? ", rest=EDGE)
    lines += [] if question.of_budget else [f"  ({question.risk} risk)"]
    shown, left_lines, left_chars = _shown(question.detail.removesuffix("\n"), width)
    lines += shown
    if left_lines:
        left = f"{plural(left_lines, 'line')} with {plural(left_chars, 'character')}"
        lines += fold(f"{left}. All of it: palyra approvals show {question.code}", width, first=NOT_SHOWN, rest="    ")
    policies = f" (policy {', '.join(question.policies)})" if question.policies else ""
    lines += fold(f"{printable_line(question.reason)}{policies}", width, first="  Asked because: ", rest="    ")
    lasting = f", a longer answer covers {escape_line(question.lasting)}" if question.lasting else ""
    yes = "lets this run go on beyond it, no ends the run" if question.of_budget else f"allows this once{lasting}"
    until = f"Open until {date_time(question.expires_at)}, code {question.code}."
    return [*lines, *fold(f"{yes}. {until}", width, first="  Yes ", rest="    ")]


def detail_rows(detail: str, *, width: int) -> Iterator[str]:
    """Yield all of what would happen as rows of a width, each with a margin."""
    for line in detail.removesuffix("\n").split("\n"):
        yield from fold(printable_row(line), width, first=EDGE, rest=EDGE)


def _shown(detail: str, width: int) -> tuple[list[str], int, int]:
    """Return as many rows as a person can be expected to read, and how many lines and characters are left."""
    rows, lines, chars = list[str](), 0, 0
    for line in detail.split("\n") if detail else ():
        room = MAX_ROWS - len(rows)
        row = printable_row(line) if room else line
        taken = fold(row[: room * width], width, first=EDGE, rest=EDGE)[:room]
        left = len(row) - sum(len(part) - len(EDGE) for part in taken)
        rows += taken
        if left or not taken:
            lines, chars = lines + 1, chars + left
    return rows, lines, chars


def answers(question: Question) -> str:
    """Return what can be typed in a chat: nothing that lasts longer where no longer answer is taken."""
    return LONGER if question.lasting else ONCE


def read_answer(text: str) -> Answer | None:
    """Return the answer that a plain word is, None if it is something else."""
    word = text.strip().lower().rstrip(".!")
    if word in _YES:
        return Answer(allow=True)
    return Answer(allow=False) if word in _NO else None


def read_scope(text: str) -> Answer | None:
    """Return an allowance for what stands behind `allow`: once, session, always, or a time such as 30m."""
    word = text.strip().lower() or "once"
    if word in ("once", "session", "always"):
        return Answer(allow=True, scope=Scope(word))
    if found := _TIME.fullmatch(word):
        seconds = int(found[1]) * _SECONDS[found[2]]
        if seconds:
            return Answer(allow=True, scope=Scope.TIMEBOXED, ttl_seconds=seconds)
    return None
