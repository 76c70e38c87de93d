"""The tape of a run as a tree of causes."""

import pytest
from msgspec.structs import replace

from palyra.core.artifact import FileCheckpoint
from palyra.core.events import ApprovalDecision, ApprovalResolved, Entry, RunEvent, TapeEvent, encode, kind_of
from palyra.core.ids import CallId
from palyra.core.run.state import RunStatus
from palyra.core.session_events import SessionRenamed
from palyra.core.tool import CallOutcome, Verdict
from palyra.core.trace.tree import TraceNode, walk_nodes
from palyra.runs.trace.builder import TraceFocus, focus_on, proposes, run_tree
from palyra.runs.trace.nodes import file_node, session_node
from tests.support.builders import (
    ANA,
    AT,
    RUN,
    SESSION,
    a_budget_question,
    a_cancellation,
    a_child,
    a_child_end,
    a_completion,
    a_history,
    a_proposal,
    a_question,
    a_reissue,
    a_result,
    a_start,
    a_steer,
    a_tool_start,
    a_turn,
    a_verdict,
    a_void,
    an_accepted,
    an_answer,
)

C1, C2 = CallId("c1"), CallId("c2")


def on_tape(*events: TapeEvent, first: int = 1) -> list[Entry]:
    return [
        Entry(SESSION, seq, RUN, seq, kind_of(event), 0, encode(event)) for seq, event in enumerate(events, start=first)
    ]


def life(*events: RunEvent) -> list[Entry]:
    return on_tape(an_accepted(), a_start(), *events)


def kinds(tree: TraceNode) -> object:
    """Return the shape of a tree."""
    return (tree.kind, [kinds(link) for link in tree.then]) if tree.then else tree.kind


def of_kind(tree: TraceNode, kind: str) -> list[TraceNode]:
    return [link for link in walk_nodes(tree) if link.kind == kind]


def marked(tree: TraceNode) -> list[str]:
    return [link.kind for link in walk_nodes(tree) if link.subject]


TWO_CALLS = life(
    *a_turn(1, "c1", "c2"),
    a_verdict("c1"),
    a_verdict("c2", Verdict.DENY),
    a_tool_start("c1"),
    a_result("c1"),
    *a_turn(2, text="All done."),
    a_completion(),
)


def test_a_run_begins_with_its_input_and_ends_with_its_end() -> None:
    tree = run_tree(TWO_CALLS)
    assert kinds(tree) == (
        "input",
        [("turn", [("call", ["policy", "execution"]), ("call", ["policy"])]), "turn", "end"],
    )
    assert (tree.what, tree.facts["principal"], tree.tape_seq) == ("“Hello.”", ANA, 1)
    assert marked(tree) == ["input"]
    assert of_kind(tree, "turn")[1].facts["text"] == "All done."


def test_a_turn_knows_which_results_it_had_before_it() -> None:
    first, second = of_kind(run_tree(TWO_CALLS), "turn")
    assert "results" not in first.facts
    assert [(one["call_id"], one["outcome"]) for one in second.facts["results"]] == [("c1", "ok")]


def test_of_a_call_only_what_led_to_it_is_shown() -> None:
    tree = run_tree(TWO_CALLS, focus=TraceFocus(call_id=C2))
    assert kinds(tree) == ("input", [("turn", [("call", ["policy"])])])
    assert marked(tree) == ["call"]
    assert of_kind(tree, "policy")[0].facts["verdict"] == "deny"


@pytest.mark.parametrize(
    ("kind", "shape", "mark"),
    [
        ("run_accepted", None, ["input"]),
        ("run_started", None, ["input"]),
        ("context_assembled", ("input", ["turn"]), ["turn"]),
        ("model_text", ("input", ["turn"]), ["turn"]),
        ("model_turn_ended", ("input", ["turn"]), ["turn"]),
        ("tool_proposed", ("input", [("turn", [("call", ["policy", "execution"])])]), ["call"]),
        ("policy_decided", ("input", [("turn", [("call", ["policy", "execution"])])]), ["policy"]),
        ("tool_started", ("input", [("turn", [("call", ["policy", "execution"])])]), ["call"]),
        ("tool_finished", ("input", [("turn", [("call", ["policy", "execution"])])]), ["execution"]),
        ("run_completed", None, ["end"]),
    ],
)
def test_every_entry_has_its_place_in_the_tree(kind: str, shape: object, mark: list[str]) -> None:
    seq = next(entry.tape_seq for entry in TWO_CALLS if entry.kind == kind)
    tree = run_tree(TWO_CALLS, focus=focus_on(TWO_CALLS, seq))
    assert kinds(tree) == (shape or kinds(run_tree(TWO_CALLS)))
    assert marked(tree) == mark


def test_an_answer_says_who_for_how_long_and_what_was_changed() -> None:
    edited = ApprovalResolved(
        at=AT, actor=ANA, call_id=C1, approval_id="a1", decision=ApprovalDecision.ALLOWED, arguments={"path": "b.txt"}
    )
    entries = life(*a_turn(1, "c1"), a_verdict("c1", Verdict.ASK), a_question("c1"), edited, a_verdict("c1"))
    tree = run_tree(entries)
    assert kinds(tree) == ("input", [("turn", [("call", ["policy", "approval", "policy"])])])
    (answer,) = of_kind(tree, "approval")
    assert answer.what == "allowed by user:ana, once, with edited arguments"
    assert (answer.facts["edited"], answer.facts["arguments"]) == (True, {"path": "b.txt"})


def test_a_question_that_nobody_answered_is_open() -> None:
    entries = on_tape(*a_history(RunStatus.WAITING))
    (question,) = of_kind(run_tree(entries), "approval")
    assert (question.what, question.facts["approval_id"]) == ("requested, not answered yet", "a1")
    (gone,) = of_kind(run_tree([*entries, *on_tape(a_cancellation("stopped by x"), first=len(entries) + 1)]), "end")
    assert gone.what == "was cancelled: stopped by x"


def test_a_call_without_an_end_and_one_that_never_began_say_so() -> None:
    begun = run_tree(life(*a_turn(1, "c1"), a_verdict("c1"), a_tool_start("c1")))
    assert of_kind(begun, "execution")[0].what == "started, with no end on the tape"
    skipped = run_tree(life(*a_turn(1, "c1"), a_verdict("c1"), a_result("c1", CallOutcome.SKIPPED)))
    assert of_kind(skipped, "execution")[0].what == "skipped, never started"


def test_a_question_about_a_budget_stands_beside_the_turns() -> None:
    asked = a_budget_question("q", "daily")
    tree = run_tree(life(asked))
    assert kinds(tree) == ("input", ["approval"])
    assert tree.then[0].what == "requested to exceed the budget daily, not answered yet"
    tree = run_tree(life(asked, an_answer("", ApprovalDecision.ALLOWED, "q"), *a_turn(1)))
    assert kinds(tree) == ("input", ["approval", "turn"])
    assert "requested to exceed the budget daily" in tree.then[0].what


def test_a_void_turn_says_why_it_does_not_count() -> None:
    entries = life(*a_turn(1)[:2], a_void(1), *a_turn(2), a_steer("And then?", origin="http"))
    tree = run_tree(entries)
    assert kinds(tree) == ("input", ["turn", "turn", "input"])
    assert tree.then[-1].facts == {"text": "And then?", "channel": "http"}
    assert tree.then[0].facts["discarded"] == "the stream broke"


def test_the_tree_of_a_child_hangs_below_the_call_of_its_parent() -> None:
    parent = life(*a_turn(1, "c1"), a_verdict("c1"), a_tool_start("c1"), a_child("c1"), a_child_end("c1"))
    child = run_tree(life(*a_turn(1), a_completion()))
    tree = run_tree(parent, focus=TraceFocus(call_id=C1), below={C1: child})
    assert kinds(tree) == (
        "input",
        [("turn", [("call", ["policy", ("child", [("input", ["turn", "end"])]), "execution"])])],
    )


def test_files_that_a_call_left_behind_follow_from_it() -> None:
    left = FileCheckpoint(
        checkpoint_id="k1",
        principal=ANA,
        session_id=SESSION,
        run_id=RUN,
        call_id=C1,
        what="files.write",
        root="/w",
        path="/w/a.txt",
        before_digest=None,
        before_mode=None,
        after_digest="ff",
        at=AT,
    )
    tree = run_tree(TWO_CALLS, focus=TraceFocus(call_id=C1), left={C1: [file_node(left, subject=True)]})
    assert marked(tree) == ["file"]
    assert of_kind(tree, "file")[0].what == "made /w/a.txt"
    assert file_node(replace(left, before_digest="00")).what == "changed /w/a.txt"
    assert file_node(replace(left, before_digest="00", after_digest=None)).what == "deleted /w/a.txt"
    restored = file_node(replace(left, run_id=None, call_id=None, what="restore", restores="k0"))
    assert (restored.kind, restored.by, restored.facts["restores"]) == ("restore", ANA, "k0")


def test_long_texts_are_cut_and_lines_are_lines() -> None:
    long = an_accepted()
    tree = run_tree(on_tape(replace(long, text="word \n" * 1000)))
    assert len(tree.what) <= 164
    assert "\n" not in tree.what
    assert len(tree.facts["text"]) == 1000


def test_an_event_of_a_session_stands_for_itself() -> None:
    (entry,) = on_tape(SessionRenamed(at=AT, actor=ANA, title="Milk"))
    link = session_node(entry, subject=True)
    assert (link.kind, link.what, link.by, link.facts) == ("session", "session renamed", ANA, {"title": "Milk"})


@pytest.mark.parametrize("status", RunStatus)
def test_every_history_has_a_tree(status: RunStatus) -> None:
    entries = on_tape(*a_history(status))
    for focus in (*(focus_on(entries, entry.tape_seq) for entry in entries), TraceFocus()):
        assert marked(run_tree(entries, focus=focus))


def test_a_call_of_then_stands_below_the_input_that_names_its_question() -> None:
    events = [
        a_proposal(0, C1),
        a_verdict(C1, Verdict.ASK),
        a_question(C1),
        an_answer(C1, ApprovalDecision.DENIED),
        *a_turn(1),
    ]
    entries = on_tape(an_accepted(reissue=a_reissue()), a_start(), *events, a_completion())
    tree = run_tree(entries)
    assert tree.facts["reissues"] == a_reissue().approval_id
    assert [link.kind for link in tree.then] == ["call", "turn", "end"]
    assert [link.kind for link in tree.then[0].then] == ["policy", "approval"]
    assert marked(run_tree(entries, focus=TraceFocus(call_id=C1))) == ["call"]
    for entry in entries:
        assert marked(run_tree(entries, focus=focus_on(entries, entry.tape_seq)))


def test_whether_a_call_was_proposed_is_told() -> None:
    assert proposes(TWO_CALLS, C1)
    assert not proposes(TWO_CALLS, CallId("c3"))
    assert not proposes(on_tape(a_proposal(1, "c9")), C1)
