"""A question about a call: how it is put to a person, and how the answer is read."""

import re
from dataclasses import dataclass
from datetime import datetime

from palyra.cli.output import date_time
from palyra.cli.printable import printable_line, printable_row
from palyra.core.approval import Scope

CODE_CHARS = 6
MOST_LINES = 40
WIDTH = 200
LINE_CHARS = 2000
"""More of one line is not shown: it would fill the screen. That it goes on is said."""
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


@dataclass(frozen=True, slots=True)
class Answer:
    """What the person said."""

    allow: bool
    scope: Scope = Scope.ONCE
    ttl_seconds: int | None = None
    reason: str = ""


def question_lines(question: Question) -> list[str]:
    """Return the question as lines: what would happen, all of it, why it is asked, and what each answer means."""
    risk = "" if question.of_budget else f"   ({question.risk} risk)"
    lines = [f"? {printable_line(question.summary, width=WIDTH)}{risk}"]
    shown = [_row(line, question.code) for line in question.detail.splitlines()]
    lines += [f"    {line}" for line in shown[:MOST_LINES]]
    if len(shown) > MOST_LINES:
        lines.append(f"    … {len(shown) - MOST_LINES} more lines: palyra approvals show {question.code}")
    policies = f" (policy {', '.join(question.policies)})" if question.policies else ""
    lines.append(f"  Asked because: {printable_line(question.reason)}{policies}")
    lasting = f", a longer answer covers {printable_line(question.lasting)}" if question.lasting else ""
    yes = "lets this run go on beyond it, no ends the run" if question.of_budget else f"allows this once{lasting}"
    lines.append(f"  Yes {yes}. Open until {date_time(question.expires_at)}, code {question.code}.")
    return lines


def _row(line: str, code: str) -> str:
    """Return a line of what would happen, whole: what is cut off unseen could be what matters."""
    row = printable_row(line)
    more = len(row) - LINE_CHARS
    return row if more <= 0 else f"{row[:LINE_CHARS]}… {more} more characters: palyra approvals show {code}"


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
