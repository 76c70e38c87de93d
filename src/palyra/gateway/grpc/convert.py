"""Conversion between our records and gRPC messages, for server and client.

The client pays for each import at every start, so nothing of the server is imported here.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC
from functools import cache
from typing import Any, TypeVar, cast, get_args

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from msgspec import Struct
from msgspec.structs import fields

from palyra.core.agent import Agent
from palyra.core.events import Entry, InputMode
from palyra.core.ids import AgentId, PrincipalId, RunId, SessionId
from palyra.core.limits import Limits
from palyra.core.message import clean_text
from palyra.core.session import SessionNameInvalid, SessionRef
from palyra.gateway.grpc.pb import gateway_pb2 as pb

MODES = {
    pb.MODE_UNSPECIFIED: InputMode.QUEUE,
    pb.MODE_QUEUE: InputMode.QUEUE,
    pb.MODE_STEER: InputMode.STEER,
    pb.MODE_INTERRUPT: InputMode.INTERRUPT,
}

M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Struct)

_encode = msgspec.json.Encoder().encode
_NUMBERS = {mode: number for number, mode in MODES.items()}


def from_message(
    text: str, session: SessionRef, *, mode: InputMode, key: str, model: str = "", task: str = ""
) -> pb.InboundMessage:
    return pb.InboundMessage(
        text=text,
        session=from_session_ref(session),
        mode=_NUMBERS[mode],
        idempotency_key=clean_text(key, what="idempotency key"),
        model=clean_text(model, what="model"),
        task=task,
    )


def to_session_ref(ref: pb.SessionRef) -> SessionRef:
    """Read a session reference; an empty name counts as not set."""
    return to_record(SessionRef, ref)


def from_session_ref(ref: SessionRef) -> pb.SessionRef:
    """Write a session reference. An empty name is refused: on the wire it would mean none, and create a session."""
    for name in ("session_id", "key", "label"):
        value = getattr(ref, name)
        if value is not None and not clean_text(value, what=name):
            raise SessionNameInvalid
    return to_message(pb.SessionRef, ref)


def from_entries(entries: Iterable[Entry]) -> list[pb.TapeEntry]:
    return [
        pb.TapeEntry(
            session_id=entry.session_id,
            run_id=entry.run_id or "",
            tape_seq=entry.tape_seq,
            run_seq=entry.run_seq,
            kind=entry.kind,
            event=entry.content.encode(),
        )
        for entry in entries
    ]


def to_entry_json(entry: pb.TapeEntry) -> str:
    """Return an entry as every API shows it. Its time is in the event."""
    return Entry(
        session_id=SessionId(entry.session_id),
        tape_seq=entry.tape_seq,
        run_id=RunId(entry.run_id) if entry.run_id else None,
        run_seq=entry.run_seq,
        kind=entry.kind,
        at_ms=0,
        content=entry.event.decode(),
    ).to_json()


def from_agent(agent: Agent) -> pb.Agent:
    # A list cannot be missing on the wire, and no list means all tools.
    tools = None if agent.tools is None else pb.ToolNames(names=agent.tools)
    return pb.Agent(**{**_fields(cast(Descriptor, pb.Agent.DESCRIPTOR), agent), "tools": tools})


def to_agent(agent: pb.Agent, principal: PrincipalId, *, is_default: bool = False) -> Agent:
    """Read an agent of the principal. A client cannot set the default flag here, so it is left out."""
    return Agent(
        agent_id=AgentId(agent.agent_id),
        principal=principal,
        name=agent.name,
        instructions=agent.instructions,
        tools=tuple(agent.tools.names) if agent.HasField("tools") else None,
        workspace_roots=tuple(agent.workspace_roots),
        limits=to_record(Limits, agent.limits) if agent.HasField("limits") else None,
        is_default=is_default,
    )


def to_message(kind: type[M], record: Struct) -> M:
    """Return a record as a message with fields of the same names. None is left out, and an object of JSON is text."""
    return kind(**_fields(cast(Descriptor, kind.DESCRIPTOR), record))


def to_messages(kind: type[M], records: Iterable[Struct]) -> list[M]:
    """Return records as messages."""
    return [to_message(kind, record) for record in records]


def _fields(message: Descriptor, record: Struct) -> dict[str, Any]:
    values = ((name, part, getattr(record, name, None)) for name, part in _parts(message))
    return {name: value if part is None else _field(part, value) for name, part, value in values if value is not None}


@cache
def _parts(message: Descriptor) -> list[tuple[str, Any]]:
    """Return the fields of a message by name: those of bytes or of other messages with their type, others with None."""
    return [
        (field.name, bytes if field.type == FieldDescriptor.TYPE_BYTES else field.message_type)
        for field in message.fields
    ]


def _field(part: Any, value: Any) -> Any:
    match value:
        case Struct():
            return _fields(part, value)
        case list() | tuple():
            return [_fields(part, item) for item in value]
        case dict() if part is bytes:
            return _encode(value)
        case _:
            return value


def to_record(kind: type[R], message: Message) -> R:
    """Read a message as a record with fields of the same names; raise `ValidationError` if a value is unknown.

    What is empty is None if the record allows it.
    """
    values = _values(message)
    missing = {name: None for name in _optional(kind) if not values[name]}
    return msgspec.convert({**values, **missing}, kind)


@cache
def _optional(kind: type[Struct]) -> list[str]:
    """Return the fields of a record that may be None."""
    return [field.name for field in fields(kind) if type(None) in get_args(field.type)]


def _values(message: Message) -> dict[str, Any]:
    return {field.name: _value(message, field.name) for field in message.DESCRIPTOR.fields}


def _value(message: Message, name: str) -> Any:
    match getattr(message, name):
        case Timestamp() as stamp:
            return stamp.ToDatetime(tzinfo=UTC) if message.HasField(name) else None
        case Message() as part:
            return _values(part)
        case Mapping() as items:
            return dict(sorted(items.items()))
        case str() | bytes() | int() | float() as value:
            return value
        case items:
            return [_values(item) if isinstance(item, Message) else item for item in items]
