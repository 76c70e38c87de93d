"""Old names of stored events: whatever an earlier release wrote reads as the same event under its names of today."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palyra.core.events import Entry, TapeEvent, decode, encode, kind_of
from palyra.core.upcast import stored_tags, upcast
from tests.support.builders import RUN, SESSION
from tests.unit.core.test_events import KINDS, some
from tests.unit.core.test_tapes import TAPES, contents

OLD_TAGS = {
    "history_attached": "message_given",
    "model_turn_discarded": "model_turn_voided",
    "file_checkpoint_restored": "checkpoint_restored",
}
"""What these kinds of events were called. Add to it; never change it."""

_OVERRUN = {"requested": "wanted", "resets_at": "begins_anew"}
_LIMITS = {
    "last_turn_timeout_ms": "last_turn_ms",
    "tool_timeout_ms": "tool_ms",
    "max_depth": "depth",
    "max_children": "children",
}
_COST = {"cost_micros": "micros"}

OLD_FIELDS: dict[str, dict[str, Any]] = {
    "run_accepted": {
        "options": ("brief", {"generation": "options"}),
        "channel": "origin",
        "source_channels": "channels",
        "limits": ("limits", _LIMITS),
    },
    "input_steered": {"channel": "origin"},
    "model_turn_started": {"discovered_tools": "found", "reserved": ("reserved", _COST)},
    "model_turn_ended": _COST,
    "model_turn_discarded": _COST | {"retry_after_ms": "retry_ms"},
    "budget_warned": {"overrun": ("overdrawn", _OVERRUN)},
    "policy_decided": {"approver_reachable": "has_channel"},
    "approval_requested": {"budgets": ("budgets", _OVERRUN)},
    "tool_finished": {"discovered_tools": "found"},
    "child_started": {"limits": ("limits", _LIMITS)},
    "file_checkpoint_restored": {"saved_as": "kept_as"},
    "embeddings_started": {
        "reserved": ("reserved", _COST),
        "warned": ("warned", {"overrun": ("overdrawn", _OVERRUN)}),
    },
    "embeddings_ended": _COST | {"outcome": "came"},
}
"""What their fields were called. Add to it; never change it."""


def as_it_was(event: TapeEvent) -> str:
    """Return an event as an earlier release would have stored it."""
    kind = kind_of(event)
    fields = respelled(json.loads(encode(event)), OLD_FIELDS.get(kind, {}))
    assert isinstance(fields, dict)
    fields["kind"] = OLD_TAGS.get(kind, kind)
    return msgspec.json.encode(fields).decode()


def respelled(value: Any, names: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [respelled(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    old: dict[str, Any] = {}
    for name, inner in value.items():
        was: Any = names.get(name, name)
        if isinstance(was, tuple):
            old[was[0]] = respelled(inner, was[1])
        else:
            old[was] = inner
    return old


def names_in(content: str) -> set[str]:
    """Return the names that an event's own fields have, at any depth that we define."""
    kind = json.loads(content)["kind"]
    found: set[str] = {kind}

    def walk(value: Any, names: dict[str, Any]) -> None:
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                found.update(item)
                for name, inner in item.items():
                    if isinstance(names.get(name), tuple):
                        walk(inner, names[name][1])

    walk(json.loads(content), OLD_FIELDS.get(kind, {}))
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_an_old_entry_reads_to_the_same_event_as_its_new_spelling(
    kind: type[msgspec.Struct], data: st.DataObject
) -> None:
    event: TapeEvent = data.draw(some(kind))
    old = as_it_was(event)
    assert decode(old) == event
    assert upcast(json.loads(old)["kind"], old) == (kind_of(event), encode(event))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_an_entry_of_today_is_left_as_it_is(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    event: TapeEvent = data.draw(some(kind))
    assert upcast(kind_of(event), encode(event)) == (kind_of(event), encode(event))


@pytest.mark.parametrize(
    ("old", "now"),
    [
        ("no_answer", "model_answer_missing"),
        ("no_model", "model_missing"),
        ("turns_interrupted", "model_turns_interrupted"),
        ("provider_unavailable", "provider_unavailable"),
    ],
)
def test_codes_of_failed_runs_are_mapped(old: str, now: str) -> None:
    stored = f'{{"kind":"run_failed","at":"2026-01-02T03:04:05Z","code":"{old}","reason":"It said \\"no_answer\\"."}}'
    event = decode(stored)
    assert (event.code, event.reason) == (now, 'It said "no_answer".')  # type: ignore[union-attr]


@pytest.mark.parametrize(("old", "now"), [("api", "unknown"), ("trial", "test"), ("http", "http")])
def test_channels_are_mapped(old: str, now: str) -> None:
    stored = f'{{"kind":"input_steered","at":"2026-01-02T03:04:05Z","text":"trial","origin":"{old}"}}'
    event = decode(stored)
    assert (event.channel, event.text) == (now, "trial")  # type: ignore[union-attr]


def test_arguments_that_happen_to_have_an_old_name_keep_it() -> None:
    stored = (
        '{"kind":"approval_requested","at":"2026-01-02T03:04:05Z","call_id":"c","approval_id":"a",'
        '"expires_at":"2026-01-02T03:04:05Z","arguments":{"wanted":1.50,"begins_anew":true,"kind":"message_given"}}'
    )
    assert upcast("approval_requested", stored) == ("approval_requested", stored)


@pytest.mark.parametrize(
    "content", ["", "{", "null", '["message_given"]', '{"found":', "\ud800{", '{"kind":7,"found":1']
)
@pytest.mark.parametrize("kind", ["message_given", "tool_finished", "run_started"])
def test_what_cannot_be_read_is_left_as_it_is(kind: str, content: str) -> None:
    assert upcast(kind, content) == (kind, content)


def test_queries_ask_for_every_tag_under_which_a_kind_is_stored() -> None:
    assert stored_tags(["tool_finished", "history_attached"]) == ("tool_finished", "history_attached", "message_given")


# -- what earlier releases have recorded

OLD_NAMES = set(OLD_TAGS.values()) | {"brief", "found", "came", "has_channel", "micros", "overdrawn", "begins_anew"} | {
    "wanted", "kept_as", "origin", "channels", "retry_ms", "tool_ms", "last_turn_ms"
}  # fmt: skip
EARLIER = [tape for tape in TAPES if tape.stem < "0014"]


def test_the_earlier_tapes_have_the_old_names() -> None:
    assert {name for tape in EARLIER for content in contents(tape) for name in names_in(content)} >= OLD_NAMES


def test_the_latest_tape_has_the_names_of_today_only() -> None:
    names = {name for content in contents(TAPES[-1]) for name in names_in(content)}
    wanted = set(OLD_TAGS) | {name for fields in OLD_FIELDS.values() for name in fields}
    assert wanted <= names
    assert {"requested", "resets_at", "cost_micros", "tool_timeout_ms", "max_depth"} <= names
    assert not names & OLD_NAMES


@pytest.mark.parametrize("tape", EARLIER, ids=lambda tape: tape.stem)
def test_earlier_tapes_are_shown_in_the_names_of_today(tape: Any) -> None:
    for content in contents(tape):
        kind, text = upcast(json.loads(content)["kind"], content)
        assert decode(text) == decode(content)
        assert not names_in(text) & OLD_NAMES
        assert json.loads(text)["kind"] == kind == kind_of(decode(content))


def test_an_entry_in_the_old_spelling_gives_its_event() -> None:
    content = '{"kind":"model_turn_voided","at":"2026-01-02T03:04:05Z","turn":1,"reason":"It broke.","retry_ms":5}'
    event = Entry(SESSION, 7, RUN, 3, "model_turn_voided", 1, content).event
    assert (kind_of(event), event.retry_after_ms) == ("model_turn_discarded", 5)  # type: ignore[union-attr]
