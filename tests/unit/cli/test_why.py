"""`palyra why`: the tree at a terminal."""

from datetime import UTC, datetime

import pytest

from palyra.cli import why
from palyra.cli.why import tree_lines
from palyra.core.trace.tree import TraceNode

REASON = "failed: The budget 'daily' allows 100 tokens per day for everything. It begins anew tomorrow."


def test_a_line_that_is_too_long_goes_on_below_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(why, "screen_width", lambda: 60)
    end = TraceNode(kind="end", what=REASON, at=datetime(2026, 1, 2, 3, 4, tzinfo=UTC))
    lines = list(tree_lines([end, end], currency="USD"))
    assert all(len(line) <= 60 for line in lines)
    assert lines[0].startswith("├─ end: failed")
    assert lines[1].startswith("│     ")
    said = " ".join(line.lstrip("├│└─ ") for line in lines)
    assert said.count(REASON) == 2
