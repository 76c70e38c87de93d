"""Stored events: what is written can be read again, now and after any number of releases."""

import json
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palyra.core.events import Entry, RunEvent, TapeEvent, decode, encode, kind_of
from palyra.core.model.request_options import RequestOptions
from palyra.core.policy.approval import ApprovalScope
from palyra.core.session_events import SessionEvent
from palyra.core.spending.usage import Usage
from palyra.core.tool import JsonObject
from tests.support.builders import AT, RUN, SESSION, a_text

KINDS: tuple[type[msgspec.Struct], ...] = get_args(TapeEvent)

TAGS = {
    "ApprovalRequested": "approval_requested",
    "ApprovalResolved": "approval_resolved",
    "BudgetWarned": "budget_warned",
    "CallHandedOver": "call_handed_over",
    "CancelRequested": "cancel_requested",
    "FileCheckpointRestored": "file_checkpoint_restored",
    "GrantRevoked": "grant_revoked",
    "ChildEnded": "child_ended",
    "ChildStarted": "child_started",
    "ContextAssembled": "context_assembled",
    "EmbeddingsEnded": "embeddings_ended",
    "EmbeddingsStarted": "embeddings_started",
    "InputSteered": "input_steered",
    "LimitReached": "limit_reached",
    "HistoryAttached": "history_attached",
    "ModelReasoning": "model_reasoning",
    "ModelText": "model_text",
    "ModelTurnEnded": "model_turn_ended",
    "ModelTurnStarted": "model_turn_started",
    "ModelTurnDiscarded": "model_turn_discarded",
    "PolicyDecided": "policy_decided",
    "RunAccepted": "run_accepted",
    "RunCancelled": "run_cancelled",
    "RunCompleted": "run_completed",
    "RunFailed": "run_failed",
    "RunResumed": "run_resumed",
    "RunStarted": "run_started",
    "SessionArchived": "session_archived",
    "SessionAgentBound": "session_agent_bound",
    "SessionCreated": "session_created",
    "SessionRenamed": "session_renamed",
    "SessionReset": "session_reset",
    "SessionUnarchived": "session_unarchived",
    "ToolFinished": "tool_finished",
    "ToolProposed": "tool_proposed",
    "ToolStarted": "tool_started",
}
"""The stored names. A new one needs the old one in `core/upcast.py`; never take one away."""

DEFAULTS: dict[str, dict[str, object]] = {
    "RunAccepted": {
        "agent_reason": "",
        "channel": "unknown",
        "mode": "queue",
        "idempotency_key": None,
        "parent": None,
        "reissue": None,
        "images": (),
        "options": RequestOptions(),
        "source_channels": (),
        "sealed": 0,
        "removed": 0,
    },
    "HistoryAttached": {"text": "", "calls": (), "call_id": None, "images": (), "signals": ()},
    "RunResumed": {"reason": "restart"},
    "InputSteered": {"idempotency_key": None, "channel": "unknown", "sealed": 0, "removed": 0},
    "ContextAssembled": {"narrowed": ""},
    "ModelTurnStarted": {
        "reason": "",
        "last": False,
        "settings_hash": "",
        "discovered_tools": (),
        "plan": None,
        "reserved": None,
    },
    "ModelReasoning": {"text": "", "dialect": "", "data": {}},
    "ModelTurnEnded": {"cost_micros": None},
    "ModelTurnDiscarded": {"failure": "", "retry_after_ms": 0, "refused": False, "usage": Usage(), "cost_micros": None},
    "ToolProposed": {"malformed": ""},
    "PolicyDecided": {
        "policies": (),
        "policy_hash": "",
        "effect": None,
        "approver_reachable": False,
        "grant_id": None,
        "manifest_hash": None,
        "signals": (),
    },
    "ApprovalRequested": {
        "tool": "",
        "arguments": {},
        "effect": None,
        "reason": "",
        "policies": (),
        "policy_hash": "",
        "budgets": (),
    },
    "ApprovalResolved": {
        "reason": "",
        "scope": ApprovalScope.ONCE,
        "arguments": None,
        "grant_id": None,
        "until": None,
        "sealed": 0,
        "removed": 0,
        "pattern": "",
    },
    "ToolStarted": {"attempt": 1, "runtime": None, "spec": ""},
    "RunCompleted": {"limit_reached": None},
    "SessionAgentBound": {"agent_id": None},
    "SessionCreated": {"agent_id": None, "key": None, "label": None, "parent": None},
    "SessionArchived": {"freed_key": None},
    "FileCheckpointRestored": {"digest": None},
    "EmbeddingsStarted": {"warned": (), "settings_hash": ""},
    "EmbeddingsEnded": {"cost_micros": None, "vectors": 0, "reason": "", "failure": ""},
    "ToolFinished": {
        "artifact": None,
        "attestation": None,
        "discovered_tools": (),
        "signals": (),
        "sealed": 0,
        "removed": 0,
    },
    "ChildEnded": {"attestation": None, "signals": ()},
    "RunFailed": {"in_conversation": False},
    "RunCancelled": {"in_conversation": False},
}
"""What a stored event means by leaving a field out. A default that changes would change the past."""

COMMON_DEFAULTS: dict[str, object] = {"actor": "system", "labels": (), "active_ms": 0}


def test_tags_are_the_stored_names() -> None:
    assert {kind.__name__: kind.__struct_config__.tag for kind in KINDS} == TAGS


def test_every_event_is_of_a_run_or_of_a_session_and_never_of_both() -> None:
    assert set(KINDS) == set(get_args(RunEvent)) | set(get_args(SessionEvent))
    assert not set(get_args(RunEvent)) & set(get_args(SessionEvent))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_an_event_leaves_out_never_changes_its_meaning(kind: type[msgspec.Struct]) -> None:
    fields = msgspec.structs.fields(kind)
    made = {field.name: field.default for field in fields if field.default is not msgspec.NODEFAULT}
    made |= {field.name: field.default_factory() for field in fields if field.default_factory is not msgspec.NODEFAULT}
    assert made == (COMMON_DEFAULTS | DEFAULTS.get(kind.__name__, {}))


# -- there and back


def some(wanted: Any) -> st.SearchStrategy[Any]:
    """Return values of a type that events are made of."""
    if hasattr(wanted, "__supertype__"):  # an id
        return some(wanted.__supertype__)
    if wanted == JsonObject:
        return st.dictionaries(st.text(), _JSON, max_size=3)
    if get_origin(wanted) is tuple:
        return st.lists(some(get_args(wanted)[0]), max_size=3).map(tuple)
    if get_args(wanted):
        return st.one_of([some(option) for option in get_args(wanted)])
    if issubclass(wanted, StrEnum):
        return st.sampled_from(wanted)
    if issubclass(wanted, msgspec.Struct):
        return st.builds(wanted, **{field.name: some(field.type) for field in msgspec.structs.fields(wanted)})
    return _PLAIN[wanted]


_WHOLE = st.integers(-(2**63), 2**63 - 1)
_JSON = st.recursive(
    st.none() | st.booleans() | _WHOLE | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=5,
)
_PLAIN: dict[type, st.SearchStrategy[Any]] = {
    str: st.text(max_size=20),
    int: _WHOLE,
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    type(None): st.none(),
    datetime: st.datetimes(timezones=st.just(UTC)),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_an_event_is_the_same_after_it_was_stored(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    event: TapeEvent = data.draw(some(kind))
    assert decode(encode(event)) == event
    assert kind_of(event) == TAGS[kind.__name__]


def test_the_kind_comes_first_and_defaults_are_left_out() -> None:
    assert encode(a_text(2, "Grüße")) == (
        '{"kind":"model_text","at":"2026-01-02T03:04:05.678000Z","turn":2,"text":"Grüße"}'
    )


def test_a_field_that_a_later_release_added_is_passed_over() -> None:
    content = encode(a_text())
    assert decode(content[:-1] + ',"mood":"fine"}') == a_text()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"kind":"no_such_kind","at":"2026-01-02T03:04:05Z"}',
        '{"kind":"run_started"}',
        '{"kind":"run_started","at":5}',
        '{"kind":"model_text","at":"2026-01-02T03:04:05Z","turn":"1","text":""}',
        '{"kind":"limit_reached","at":"2026-01-02T03:04:05Z","limit":"patience"}',
    ],
)
def test_what_is_no_event_is_not_taken_for_one(content: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(content)


# -- entries


def an_entry(event: TapeEvent, *, of_a_run: bool = True) -> Entry:
    return Entry(
        session_id=SESSION,
        tape_seq=7,
        run_id=RUN if of_a_run else None,
        run_seq=3 if of_a_run else 0,
        kind=kind_of(event),
        at_ms=1_767_323_045_678,
        content=encode(event),
    )


def test_an_entry_gives_its_event() -> None:
    assert an_entry(a_text()).event == a_text()


@pytest.mark.parametrize("text", ["plain", 'quotes " and \\ slashes', "lines\r\n\t\u2028", "\x00\x1f", "Grüße 🙂"])
def test_an_entry_is_shown_as_json_of_its_parts(text: str) -> None:
    entry = an_entry(a_text(1, text))
    assert json.loads(entry.to_json()) == {
        "session_id": SESSION,
        "run_id": RUN,
        "tape_seq": 7,
        "run_seq": 3,
        "event": json.loads(entry.content),
    }


def test_an_entry_shows_its_event_byte_for_byte() -> None:
    entry = an_entry(a_text())
    assert entry.to_json().endswith(f',"event":{entry.content}}}')


def test_an_entry_of_the_session_itself_has_no_run() -> None:
    event = decode('{"kind":"session_reset","at":"2026-01-02T03:04:05.678Z"}')
    assert event.at == AT
    assert json.loads(an_entry(event, of_a_run=False).to_json())["run_id"] is None
