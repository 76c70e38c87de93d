"""The invariants of the campaigns can fail: each kind of violation is reported, and a clean history is not."""

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from palyra.home import Home
from tests.campaign import invariants
from tests.campaign.clients import Memory, Sent
from tests.campaign.effects import COUNT, Counting, counting, prepare
from tests.campaign.effects import count as count_effects
from tests.campaign.invariants import Call, Tapes
from tests.support.daemon import Line, line_of

APPEND = {"path": "free/shared.txt", "text": "append a\n", "mode": "append"}


def tape(*events: dict[str, Any], run_id: str = "r1", session_id: str = "s1") -> list[Line]:
    return [
        line_of(
            json.dumps({"session_id": session_id, "run_id": run_id, "tape_seq": seq, "run_seq": seq, "event": event})
        )
        for seq, event in enumerate(events, 1)
    ]


ACCEPTED = {"kind": "run_accepted", "text": "a", "idempotency_key": "a"}
COMPLETED = {"kind": "run_completed"}
CLEAN = tape(ACCEPTED, {"kind": "run_started"}, COMPLETED)


def known(**changes: Any) -> Memory:
    memory = Memory(tried={"a": "a"}, accepted={"a": Sent("a", "k", "r1", "s1")}, seen={"s1 http": CLEAN[:2]})
    for name, value in changes.items():
        setattr(memory, name, value)
    return memory


def found(lines: list[Line], memory: Memory) -> list[str]:
    tapes = Tapes({"s1": lines})
    return [
        *invariants.messages(tapes, memory),
        *invariants.runs(tapes),
        *invariants.streams(tapes, memory),
        *invariants.approvals(tapes, memory),
        *invariants.children(tapes),
    ]


def test_a_clean_history_has_no_violation() -> None:
    assert found(CLEAN, known()) == []


@pytest.mark.parametrize(
    ("lines", "memory", "what"),
    [
        ([], known(seen={}), "is on no tape"),
        (tape(ACCEPTED, ACCEPTED, COMPLETED), known(seen={}), "on the tapes 2 times"),
        (tape(ACCEPTED, COMPLETED, run_id="r2"), known(seen={}), "is in run r2"),
        (CLEAN, known(tried={}), "nobody sent it"),
        (tape(ACCEPTED), known(seen={}), "0 final entries"),
        (tape(ACCEPTED, COMPLETED, COMPLETED), known(seen={}), "2 final entries"),
        ([CLEAN[0], CLEAN[2]], known(seen={}), "without gaps"),
        (CLEAN, known(seen={"s1 grpc": [CLEAN[0], CLEAN[2]]}), "not those of the tape"),
        (CLEAN, known(shown={"a": CLEAN[:2]}), "was not shown run r1"),
        (CLEAN, known(decided={"p": "deny"}, answered={"p"}), "denied was acknowledged"),
        (
            tape(
                ACCEPTED,
                {"kind": "approval_resolved", "approval_id": "p", "call_id": "c", "decision": "allowed"},
                COMPLETED,
            ),
            known(seen={}, decided={"p": "deny"}),
            "denied was sent",
        ),
        (
            tape(ACCEPTED, {"kind": "child_started", "call_id": "c", "child_run_id": "r9"}, COMPLETED),
            known(seen={}),
            "child r9 of run r1 has not ended",
        ),
    ],
)
def test_each_violation_is_reported(lines: list[Line], memory: Memory, what: str) -> None:
    assert any(what in one for one in found(lines, memory)), found(lines, memory)


@pytest.mark.parametrize(
    ("outcome", "times", "holds"),
    [
        ("ok", 1, True),
        ("ok", 0, False),
        ("ok", 2, False),
        ("interrupted", 0, True),
        ("interrupted", 1, True),
        ("interrupted", 2, False),
        ("error", 1, False),
        ("denied", 1, False),
        ("denied", 0, True),
        ("open", 1, True),
        ("open", 2, False),
    ],
)
def test_effects_must_fit_what_the_tape_says(outcome: str, times: int, holds: bool) -> None:
    call = Call("r1", "c1", "files.write", APPEND, starts=1, outcome=outcome)
    violations = list(invariants.effects([call], Counter({"append a": times})))
    assert (violations == []) is holds


def test_a_call_that_never_started_or_was_denied_has_no_effect() -> None:
    for call in (Call("r", "c", "files.write", APPEND), Call("r", "c", "files.write", APPEND, starts=1, denied=True)):
        assert list(invariants.effects([call], Counter({"append a": 1})))


def test_an_effect_without_a_call_is_reported() -> None:
    assert list(invariants.effects([], Counter({"append b": 1})))


def test_effects_are_counted_in_files_and_by_the_server(tmp_path: Path) -> None:
    prepare(tmp_path)
    with (tmp_path / "free" / "shared.txt").open("a") as file:
        file.write("append a\nappend a\npair b\n")
    with counting(Random(1)) as served:
        assert isinstance(served, Counting)
        served.answer({"method": "tools/call", "params": {"arguments": {"token": "count c"}}})
        counted = count_effects(tmp_path, served)
    assert (counted["append a"], counted["pair b 0"], counted["pair b 1"], counted["count c"]) == (2, 1, 0, 1)
    call = Call("r1", "c1", COUNT, {"token": "count c"}, starts=1, outcome="ok")
    assert not [one for one in invariants.effects([call], Counter({"count c": 1}))]


def test_files_that_belong_to_nothing_are_left_over(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.workspace.mkdir()
    home.key.touch()
    (tmp_path / ".restore.1").mkdir()
    (home.workspace / ".palyra-1.new").touch()
    assert len(invariants.leftovers(home)) == 2
