"""A tape in readable lines."""

from typing import get_args

import pytest

from palyra.cli.run_view.tape_listing import tape_line
from palyra.core import events
from palyra.core.events import TapeEvent
from palyra.core.limits import LimitKind
from palyra.core.session_events import (
    EmbeddingsOutcome,
    FileCheckpointRestored,
    GrantRevoked,
    SessionAgentBound,
    SessionArchived,
    SessionCreated,
    SessionRenamed,
    SessionReset,
    SessionUnarchived,
)
from palyra.core.tool import CallOutcome
from palyra.gateway.client.tape_stream import read_entry
from palyra.runs.event_text import describe
from tests.support import builders as b
from tests.unit.cli.wire import line

AT = b.AT
CASES: list[tuple[TapeEvent, str]] = [
    (b.an_accepted(), "'Hello.' (api, queue)"),
    (b.a_given("Then?"), "user: 'Then?'"),
    (b.a_start(), ""),
    (b.a_resume(), "restart"),
    (b.a_steer("And?", origin="http"), "'And?' (http)"),
    (b.a_context(), "1 message, about 10 tokens"),
    (b.a_turn_start(2, last=True), "turn 2, scripted/small, final turn, no tools"),
    (b.a_text(text="a\nb"), "'a\\nb'"),
    (b.a_thought(text="Hm."), "'Hm.'"),
    (b.a_proposal(1, "c1", malformed="no JSON"), "shell, malformed: no JSON"),
    (b.a_turn_end(), "turn 1, end, 0 tokens in, 0 out"),
    (b.a_void(), "turn 1 discarded: the stream broke"),
    (b.a_verdict("c1"), "allow, low risk, so says the policy"),
    (b.a_question("c1"), "a1, until"),
    (b.a_warning(), "'daily' of everything per day"),
    (b.an_answer("c1"), "allowed"),
    (b.a_tool_start("c1", 2), "c1, attempt 2"),
    (b.a_result("c1", CallOutcome.ERROR), "error: 'so it went'"),
    (b.a_hand_over("c1"), "c1, handed to the caller"),
    (b.a_child("c1"), "run child: 'Do this for me.'"),
    (b.a_child_end("c1"), "run child, ok: 'Here it is.'"),
    (b.a_limit(), "model turns"),
    (b.a_cancel(), "asked to"),
    (b.a_completion(LimitKind.TOOL_CALLS), "limit reached: tool calls"),
    (b.a_failure(), "it broke [broken]"),
    (b.a_cancellation(), "asked to"),
    (SessionCreated(at=AT, principal=b.ANA, agent_id=b.AGENT, key="cli"), "by user:ana, key 'cli'"),
    (SessionReset(at=AT), "earlier entries are no longer in the context"),
    (SessionRenamed(at=AT, title="New"), "'New'"),
    (SessionAgentBound(at=AT), "the default agent"),
    (SessionArchived(at=AT, freed_key="cli"), "key 'cli' is released"),
    (SessionUnarchived(at=AT), ""),
    (FileCheckpointRestored(at=AT, checkpoint_id="c1", path="/ws/a", saved_as="c2"), "'/ws/a' as at c1"),
    (GrantRevoked(at=AT, grant_id="g1"), "g1"),
    (b.embeddings_started(), "2 texts, 90 bytes, acme/vectors-1, exceeds the budget daily"),
    (b.embeddings_ended(), "answered, 2 vectors, 20 tokens in"),
    (b.embeddings_ended(EmbeddingsOutcome.LOST), "lost, about 20 tokens in, the daemon ended"),
]


@pytest.mark.parametrize(("event", "words"), CASES, ids=lambda case: type(case).__name__)
def test_every_kind_has_its_words(event: TapeEvent, words: str) -> None:
    said = describe(event)
    assert said.startswith(words)
    assert bool(said) == bool(words)


def test_no_kind_is_forgotten() -> None:
    assert {type(event) for event, _ in CASES} == set(get_args(events.TapeEvent))


def test_a_line_has_number_time_and_kind() -> None:
    shown = tape_line(line(b.a_text(text="Hello"), seq=7))
    assert shown.split()[0] == "7"
    assert shown.endswith("model_text                'Hello'")


def test_a_line_stays_one_line() -> None:
    shown = tape_line(line(b.a_cancel("one\ntwo\x1b[31m" + "x" * 1000)))
    assert "\n" not in shown
    assert "\x1b" not in shown
    assert len(shown) < 400


def test_a_kind_of_a_newer_daemon_is_shown_by_name() -> None:
    raw = (
        b'{"session_id":"s","run_id":null,"tape_seq":1,"run_seq":0,"event":{"kind":"new","at":"2026-01-02T03:04:05Z"}}'
    )
    assert "new  " in tape_line(read_entry(raw))
