"""Reads entries of earlier releases: maps their tags, fields and values to the ones of today.

Stored entries are never rewritten: the hash chain covers their bytes. So a name that was changed is mapped when an
entry is read, and everything above the journal knows one name only. The tables here only grow.

It must cost nothing for entries that need no mapping. Most kinds were never changed: for those it is one lookup. For
the others, the old names are searched in the text, where a colon follows them, so they cannot be part of a string.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec import Raw, Struct


class Renamed(Struct, frozen=True):
    """The name of a field today, the renamed fields inside it, and its renamed values."""

    name: str
    fields: "dict[str, Renamed]" = {}
    values: dict[str, str] = {}


TAGS: Mapping[str, str] = {
    "message_given": "history_attached",
    "model_turn_voided": "model_turn_discarded",
    "checkpoint_restored": "file_checkpoint_restored",
}
"""The tags that were renamed, and what they are called today."""

_CHANNELS = {"api": "unknown", "trial": "test"}
_LIMITS = {
    "last_turn_ms": Renamed("last_turn_timeout_ms"),
    "tool_ms": Renamed("tool_timeout_ms"),
    "depth": Renamed("max_depth"),
    "children": Renamed("max_children"),
}
_COST = {"micros": Renamed("cost_micros")}
_OVERRUN = {"wanted": Renamed("requested"), "begins_anew": Renamed("resets_at")}

FIELDS: Mapping[str, Mapping[str, Renamed]] = {
    "run_accepted": {
        "brief": Renamed("options", {"options": Renamed("generation")}),
        "origin": Renamed("channel", values=_CHANNELS),
        "channels": Renamed("source_channels", values=_CHANNELS),
        "limits": Renamed("limits", _LIMITS),
    },
    "input_steered": {"origin": Renamed("channel", values=_CHANNELS)},
    "model_turn_started": {"found": Renamed("discovered_tools"), "reserved": Renamed("reserved", _COST)},
    "model_turn_ended": _COST,
    "model_turn_discarded": {**_COST, "retry_ms": Renamed("retry_after_ms")},
    "budget_warned": {"overdrawn": Renamed("overrun", _OVERRUN)},
    "policy_decided": {"has_channel": Renamed("approver_reachable")},
    "approval_requested": {"budgets": Renamed("budgets", _OVERRUN)},
    "tool_finished": {"found": Renamed("discovered_tools")},
    "child_started": {"limits": Renamed("limits", _LIMITS)},
    "run_failed": {
        "code": Renamed(
            "code",
            values={
                "no_answer": "model_answer_missing",
                "no_model": "model_missing",
                "turns_interrupted": "model_turns_interrupted",
            },
        )
    },
    "file_checkpoint_restored": {"kept_as": Renamed("saved_as")},
    "embeddings_started": {
        "reserved": Renamed("reserved", _COST),
        "warned": Renamed("warned", {"overdrawn": Renamed("overrun", _OVERRUN)}),
    },
    "embeddings_ended": {**_COST, "came": Renamed("outcome")},
}
"""By the tags of today: the fields that were renamed, or have renamed fields or values inside."""


def _marks(fields: Mapping[str, Renamed]) -> Iterator[str]:
    for old, renamed in fields.items():
        if renamed.name != old:
            yield f'"{old}":'
        else:
            yield from (f'"{value}"' for value in renamed.values)
            yield from _marks(renamed.fields)


_MARKS = {kind: tuple(dict.fromkeys(_marks(fields))) for kind, fields in FIELDS.items()}
"""What only a text with an old name contains, or one whose arguments happen to have a key of that name."""

CHANGED = frozenset(TAGS) | frozenset(FIELDS)
"""The stored tags of entries that may have old names."""

_object: msgspec.json.Decoder[dict[str, Raw]] = msgspec.json.Decoder(dict[str, Raw])
_list: msgspec.json.Decoder[list[Raw]] = msgspec.json.Decoder(list[Raw])
_encode = msgspec.json.Encoder().encode


def upcast(kind: str, content: str) -> tuple[str, str]:
    """Return the tag and the text of a stored event with the names of today; the same, if it has no old ones.

    A text that cannot be read is returned as it is: whoever decodes it reports that.
    """
    if kind not in CHANGED:
        return kind, content
    tag = TAGS.get(kind, kind)
    try:
        if tag == kind and not _is_old(content, _MARKS[kind]):
            return kind, content
        parts = _object.decode(content)
        if tag != kind and parts.get("kind") == Raw(_encode(kind)):
            parts["kind"] = Raw(_encode(tag))
        return tag, _encode(_today(parts, FIELDS.get(tag, {}))).decode()
    except (msgspec.DecodeError, UnicodeError, TypeError):
        return kind, content


def _is_old(content: str, marks: tuple[str, ...]) -> bool:
    for mark in marks:  # a loop, since `any` with a generator takes twice as long
        if mark in content:
            return True
    return False


def stored_tags(kinds: Iterable[str]) -> tuple[str, ...]:
    """Return all tags under which events of some kinds are stored, for queries of the tape."""
    wanted = tuple(kinds)
    return (*wanted, *(old for old, tag in TAGS.items() if tag in wanted))


def _today(parts: Mapping[str, Raw], fields: Mapping[str, Renamed]) -> dict[str, Raw]:
    """Return the fields of an object under their names of today; values that were not renamed keep their bytes."""
    named = {}
    for name, value in parts.items():
        renamed = fields.get(name)
        named[renamed.name if renamed else name] = _value(value, renamed) if renamed else value
    return named


def _value(raw: Raw, renamed: Renamed) -> Raw:
    match bytes(raw)[:1]:
        case b"{" if renamed.fields:
            return Raw(_encode(_today(_object.decode(raw), renamed.fields)))
        case b"[" if renamed.fields or renamed.values:
            return Raw(_encode([_value(item, renamed) for item in _list.decode(raw)]))
        case b'"' if renamed.values:
            value = msgspec.json.decode(raw, type=str)
            return Raw(_encode(renamed.values.get(value, value)))
        case _:
            return raw
