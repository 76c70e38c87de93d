"""Approval prompts: how an approval request is shown to a person, and how the answer is read."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from palyra.cli.terminal.output import date_time, fold, plural
from palyra.cli.terminal.printable import printable_line, printable_row
from palyra.core.policy.approval import Approval, ApprovalScope
from palyra.core.text.escaping import escape_line
from palyra.gateway.records.approvals import ApprovalAnswerRequest

CODE_CHARS = 6
MAX_ROWS = 40
MAX_COLUMNS = 2000
EDGE = "  │ "
"""The prefix of each row that others wrote."""
NOT_SHOWN = "  NOT SHOWN: "
ONCE = "yes · no · /deny WHY"
LONGER = "yes · no · /allow session · /allow 30m · /allow always · /deny WHY"

_TIME = re.compile(r"(\d{1,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_YES = frozenset({"y", "yes", "allow", "ok"})
_NO = frozenset({"n", "no", "deny"})


@dataclass(frozen=True, slots=True)
class ApprovalPrompt:
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
    """It is about the budget of the run, and not about a call."""

    @property
    def code(self) -> str:
        """The code that a person types to name it."""
        return self.approval_id[-CODE_CHARS:]


def prompt_of_approval(one: Approval) -> ApprovalPrompt:
    """Return the prompt for an approval."""
    return ApprovalPrompt(
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
class ApprovalAnswer:
    """The person's answer."""

    allow: bool
    scope: ApprovalScope = ApprovalScope.ONCE
    ttl_seconds: int | None = None
    reason: str = ""

    def request(self) -> ApprovalAnswerRequest:
        """Return the answer as the daemon takes it."""
        return ApprovalAnswerRequest(
            decision="allow" if self.allow else "deny",
            scope=self.scope,
            ttl_seconds=self.ttl_seconds,
            reason=self.reason,
        )


def prompt_lines(question: ApprovalPrompt, *, width: int = MAX_COLUMNS) -> list[str]:
    """Return the prompt as rows of a width: the full effect, the reason, and what each answer means.

    Only our own text is at the left edge. Each row that others wrote has a margin.
    """
    width = min(width, MAX_COLUMNS)
    lines = fold(printable_row(question.summary), width, first="? ", rest=EDGE)
    lines += [] if question.of_budget else [f"  ({question.risk} risk)"]
    displayed_lines, left_lines, left_chars = _visible_rows(question.detail.removesuffix("\n"), width)
    lines += displayed_lines
    if left_lines:
        left = f"{plural(left_lines, 'line')} with {plural(left_chars, 'character')}"
        lines += fold(
            f"{left}. See all of it with `palyra approvals show {question.code}`", width, first=NOT_SHOWN, rest="    "
        )
    policies = f" (policy {', '.join(question.policies)})" if question.policies else ""
    lines += fold(f"{printable_line(question.reason)}{policies}", width, first="  Reason: ", rest="    ")
    lasting = f", a longer approval covers {escape_line(question.lasting)}" if question.lasting else ""
    yes = "lets this run exceed the budget, no ends the run" if question.of_budget else f"allows this once{lasting}"
    until = f"Expires {date_time(question.expires_at)}. Code: {question.code}."
    return [*lines, *fold(f"{yes}.", width, first="  Yes ", rest="    "), *fold(until, width, first="  ", rest="    ")]


def detail_rows(detail: str, *, width: int) -> Iterator[str]:
    """Yield the full effect as rows of a width, each with a margin."""
    for line in detail.removesuffix("\n").split("\n"):
        yield from fold(printable_row(line), width, first=EDGE, rest=EDGE)


def _visible_rows(detail: str, width: int) -> tuple[list[str], int, int]:
    """Return as many rows as a person can be expected to read, and how many lines and characters are left."""
    rows, lines, chars = list[str](), 0, 0
    for line in detail.split("\n") if detail else ():
        room = MAX_ROWS - len(rows)
        row = printable_row(line) if room else line
        names = fold(row[: room * width], width, first=EDGE, rest=EDGE)[:room]
        left = len(row) - sum(len(part) - len(EDGE) for part in names)
        rows += names
        if left or not names:
            lines, chars = lines + 1, chars + left
    return rows, lines, chars


def answer_choices(question: ApprovalPrompt) -> str:
    """Return what can be typed in a chat: longer answers only where they are accepted."""
    return LONGER if question.lasting else ONCE


def read_answer(text: str) -> ApprovalAnswer | None:
    """Return the answer that a plain word means, None if it is something else."""
    word = text.strip().lower().rstrip(".!")
    if word in _YES:
        return ApprovalAnswer(allow=True)
    return ApprovalAnswer(allow=False) if word in _NO else None


def read_scope(text: str) -> ApprovalAnswer | None:
    """Return the scope after `allow`: once, session, always, or a time such as 30m."""
    word = text.strip().lower() or "once"
    if word in ("once", "session", "always"):
        return ApprovalAnswer(allow=True, scope=ApprovalScope(word))
    if match := _TIME.fullmatch(word):
        seconds = int(match[1]) * _SECONDS[match[2]]
        if seconds:
            return ApprovalAnswer(allow=True, scope=ApprovalScope.TIMEBOXED, ttl_seconds=seconds)
    return None
