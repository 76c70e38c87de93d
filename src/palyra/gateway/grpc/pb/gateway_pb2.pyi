import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    MODE_QUEUE: _ClassVar[Mode]
    MODE_STEER: _ClassVar[Mode]
    MODE_INTERRUPT: _ClassVar[Mode]
MODE_UNSPECIFIED: Mode
MODE_QUEUE: Mode
MODE_STEER: Mode
MODE_INTERRUPT: Mode

class TapeEntry(_message.Message):
    __slots__ = ("session_id", "run_id", "tape_seq", "run_seq", "kind", "event")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TAPE_SEQ_FIELD_NUMBER: _ClassVar[int]
    RUN_SEQ_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    run_id: str
    tape_seq: int
    run_seq: int
    kind: str
    event: bytes
    def __init__(self, session_id: _Optional[str] = ..., run_id: _Optional[str] = ..., tape_seq: _Optional[int] = ..., run_seq: _Optional[int] = ..., kind: _Optional[str] = ..., event: _Optional[bytes] = ...) -> None: ...

class TapeBatch(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[TapeEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[TapeEntry, _Mapping]]] = ...) -> None: ...

class SessionRef(_message.Message):
    __slots__ = ("session_id", "key", "label", "require_existing", "reset")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_EXISTING_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    key: str
    label: str
    require_existing: bool
    reset: bool
    def __init__(self, session_id: _Optional[str] = ..., key: _Optional[str] = ..., label: _Optional[str] = ..., require_existing: _Optional[bool] = ..., reset: _Optional[bool] = ...) -> None: ...

class InboundMessage(_message.Message):
    __slots__ = ("text", "session", "mode", "idempotency_key", "model", "task")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    text: str
    session: SessionRef
    mode: Mode
    idempotency_key: str
    model: str
    task: str
    def __init__(self, text: _Optional[str] = ..., session: _Optional[_Union[SessionRef, _Mapping]] = ..., mode: _Optional[_Union[Mode, str]] = ..., idempotency_key: _Optional[str] = ..., model: _Optional[str] = ..., task: _Optional[str] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("run_id", "session_id", "after_seq", "steered", "queued", "waiting_for", "repeated", "sealed", "removed")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQ_FIELD_NUMBER: _ClassVar[int]
    STEERED_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    session_id: str
    after_seq: int
    steered: bool
    queued: bool
    waiting_for: str
    repeated: bool
    sealed: int
    removed: int
    def __init__(self, run_id: _Optional[str] = ..., session_id: _Optional[str] = ..., after_seq: _Optional[int] = ..., steered: _Optional[bool] = ..., queued: _Optional[bool] = ..., waiting_for: _Optional[str] = ..., repeated: _Optional[bool] = ..., sealed: _Optional[int] = ..., removed: _Optional[int] = ...) -> None: ...

class GetHealthRequest(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: bool
    def __init__(self, parts: _Optional[bool] = ...) -> None: ...

class GetHealthResponse(_message.Message):
    __slots__ = ("status", "version", "protocol_version", "parts", "pid", "home", "started_at", "engine", "schema", "provider", "model", "workspace", "storage", "settings_hash", "grpc", "runs", "tasks", "counters", "connections")
    class RunsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class TasksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ConnectionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOME_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_HASH_FIELD_NUMBER: _ClassVar[int]
    GRPC_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    status: str
    version: str
    protocol_version: int
    parts: _containers.RepeatedCompositeFieldContainer[PartHealth]
    pid: int
    home: str
    started_at: _timestamp_pb2.Timestamp
    engine: str
    schema: int
    provider: str
    model: str
    workspace: str
    storage: str
    settings_hash: str
    grpc: str
    runs: _containers.ScalarMap[str, int]
    tasks: _containers.ScalarMap[str, int]
    counters: _containers.ScalarMap[str, int]
    connections: _containers.ScalarMap[str, int]
    def __init__(self, status: _Optional[str] = ..., version: _Optional[str] = ..., protocol_version: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[PartHealth, _Mapping]]] = ..., pid: _Optional[int] = ..., home: _Optional[str] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., engine: _Optional[str] = ..., schema: _Optional[int] = ..., provider: _Optional[str] = ..., model: _Optional[str] = ..., workspace: _Optional[str] = ..., storage: _Optional[str] = ..., settings_hash: _Optional[str] = ..., grpc: _Optional[str] = ..., runs: _Optional[_Mapping[str, int]] = ..., tasks: _Optional[_Mapping[str, int]] = ..., counters: _Optional[_Mapping[str, int]] = ..., connections: _Optional[_Mapping[str, int]] = ...) -> None: ...

class PartHealth(_message.Message):
    __slots__ = ("name", "status", "detail")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    name: str
    status: str
    detail: str
    def __init__(self, name: _Optional[str] = ..., status: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class RunStreamRequest(_message.Message):
    __slots__ = ("start", "steer", "cancel", "detach")
    START_FIELD_NUMBER: _ClassVar[int]
    STEER_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    DETACH_FIELD_NUMBER: _ClassVar[int]
    start: StartRun
    steer: SteerRun
    cancel: CancelRun
    detach: Detach
    def __init__(self, start: _Optional[_Union[StartRun, _Mapping]] = ..., steer: _Optional[_Union[SteerRun, _Mapping]] = ..., cancel: _Optional[_Union[CancelRun, _Mapping]] = ..., detach: _Optional[_Union[Detach, _Mapping]] = ...) -> None: ...

class StartRun(_message.Message):
    __slots__ = ("protocol_version", "message")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    message: InboundMessage
    def __init__(self, protocol_version: _Optional[int] = ..., message: _Optional[_Union[InboundMessage, _Mapping]] = ...) -> None: ...

class SteerRun(_message.Message):
    __slots__ = ("text", "idempotency_key")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    text: str
    idempotency_key: str
    def __init__(self, text: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class CancelRun(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Detach(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RunStreamResponse(_message.Message):
    __slots__ = ("accepted", "entries")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    accepted: Accepted
    entries: _containers.RepeatedCompositeFieldContainer[TapeEntry]
    def __init__(self, accepted: _Optional[_Union[Accepted, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[TapeEntry, _Mapping]]] = ...) -> None: ...

class AttachRunRequest(_message.Message):
    __slots__ = ("run_id", "after_seq")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQ_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    after_seq: int
    def __init__(self, run_id: _Optional[str] = ..., after_seq: _Optional[int] = ...) -> None: ...

class AttachSessionRequest(_message.Message):
    __slots__ = ("session_id", "after_seq")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQ_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    after_seq: int
    def __init__(self, session_id: _Optional[str] = ..., after_seq: _Optional[int] = ...) -> None: ...

class AbortRunRequest(_message.Message):
    __slots__ = ("run_id", "reason")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    reason: str
    def __init__(self, run_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class AbortRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("run_id", "session_id", "agent_id", "status", "reason", "cancel_requested", "accepted_at", "ended_at", "input", "limit_reached", "parent_run_id", "accepted_seq", "last_seq", "turns", "tool_calls", "usage")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CANCEL_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_REACHED_FIELD_NUMBER: _ClassVar[int]
    PARENT_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_SEQ_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQ_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    session_id: str
    agent_id: str
    status: str
    reason: str
    cancel_requested: bool
    accepted_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    input: str
    limit_reached: str
    parent_run_id: str
    accepted_seq: int
    last_seq: int
    turns: int
    tool_calls: int
    usage: Usage
    def __init__(self, run_id: _Optional[str] = ..., session_id: _Optional[str] = ..., agent_id: _Optional[str] = ..., status: _Optional[str] = ..., reason: _Optional[str] = ..., cancel_requested: _Optional[bool] = ..., accepted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., input: _Optional[str] = ..., limit_reached: _Optional[str] = ..., parent_run_id: _Optional[str] = ..., accepted_seq: _Optional[int] = ..., last_seq: _Optional[int] = ..., turns: _Optional[int] = ..., tool_calls: _Optional[int] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("input_tokens", "output_tokens")
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    output_tokens: int
    def __init__(self, input_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("session_id", "principal", "agent_id", "key", "label", "title", "created_at", "updated_at", "archived_at", "reset_seq", "active_run_id", "parent_session_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_AT_FIELD_NUMBER: _ClassVar[int]
    RESET_SEQ_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    principal: str
    agent_id: str
    key: str
    label: str
    title: str
    created_at: _timestamp_pb2.Timestamp
    updated_at: _timestamp_pb2.Timestamp
    archived_at: _timestamp_pb2.Timestamp
    reset_seq: int
    active_run_id: str
    parent_session_id: str
    def __init__(self, session_id: _Optional[str] = ..., principal: _Optional[str] = ..., agent_id: _Optional[str] = ..., key: _Optional[str] = ..., label: _Optional[str] = ..., title: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., archived_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reset_seq: _Optional[int] = ..., active_run_id: _Optional[str] = ..., parent_session_id: _Optional[str] = ...) -> None: ...

class ListSessionsRequest(_message.Message):
    __slots__ = ("archived", "limit", "cursor")
    ARCHIVED_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    archived: bool
    limit: int
    cursor: str
    def __init__(self, archived: _Optional[bool] = ..., limit: _Optional[int] = ..., cursor: _Optional[str] = ...) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("sessions", "next_cursor")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[Session]
    next_cursor: str
    def __init__(self, sessions: _Optional[_Iterable[_Union[Session, _Mapping]]] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class ResolveSessionRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: SessionRef
    def __init__(self, session: _Optional[_Union[SessionRef, _Mapping]] = ...) -> None: ...

class ResolveSessionResponse(_message.Message):
    __slots__ = ("session", "created")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    session: Session
    created: bool
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., created: _Optional[bool] = ...) -> None: ...

class CleanupSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class CleanupSessionResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class RouteMessageRequest(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: InboundMessage
    def __init__(self, message: _Optional[_Union[InboundMessage, _Mapping]] = ...) -> None: ...

class RouteMessageResponse(_message.Message):
    __slots__ = ("accepted",)
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    accepted: Accepted
    def __init__(self, accepted: _Optional[_Union[Accepted, _Mapping]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("model_turns", "tool_calls", "wall_clock_ms", "last_turn_timeout_ms", "tool_timeout_ms", "max_depth", "max_children")
    MODEL_TURNS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    WALL_CLOCK_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_TURN_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TOOL_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    MAX_CHILDREN_FIELD_NUMBER: _ClassVar[int]
    model_turns: int
    tool_calls: int
    wall_clock_ms: int
    last_turn_timeout_ms: int
    tool_timeout_ms: int
    max_depth: int
    max_children: int
    def __init__(self, model_turns: _Optional[int] = ..., tool_calls: _Optional[int] = ..., wall_clock_ms: _Optional[int] = ..., last_turn_timeout_ms: _Optional[int] = ..., tool_timeout_ms: _Optional[int] = ..., max_depth: _Optional[int] = ..., max_children: _Optional[int] = ...) -> None: ...

class ToolNames(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class Agent(_message.Message):
    __slots__ = ("agent_id", "name", "instructions", "tools", "workspace_roots", "limits", "is_default", "principal")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_ROOTS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    name: str
    instructions: str
    tools: ToolNames
    workspace_roots: _containers.RepeatedScalarFieldContainer[str]
    limits: Limits
    is_default: bool
    principal: str
    def __init__(self, agent_id: _Optional[str] = ..., name: _Optional[str] = ..., instructions: _Optional[str] = ..., tools: _Optional[_Union[ToolNames, _Mapping]] = ..., workspace_roots: _Optional[_Iterable[str]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., is_default: _Optional[bool] = ..., principal: _Optional[str] = ...) -> None: ...

class ListAgentsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAgentsResponse(_message.Message):
    __slots__ = ("agents",)
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    agents: _containers.RepeatedCompositeFieldContainer[Agent]
    def __init__(self, agents: _Optional[_Iterable[_Union[Agent, _Mapping]]] = ...) -> None: ...

class GetAgentRequest(_message.Message):
    __slots__ = ("agent_id",)
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    def __init__(self, agent_id: _Optional[str] = ...) -> None: ...

class GetAgentResponse(_message.Message):
    __slots__ = ("agent",)
    AGENT_FIELD_NUMBER: _ClassVar[int]
    agent: Agent
    def __init__(self, agent: _Optional[_Union[Agent, _Mapping]] = ...) -> None: ...

class CreateAgentRequest(_message.Message):
    __slots__ = ("agent",)
    AGENT_FIELD_NUMBER: _ClassVar[int]
    agent: Agent
    def __init__(self, agent: _Optional[_Union[Agent, _Mapping]] = ...) -> None: ...

class CreateAgentResponse(_message.Message):
    __slots__ = ("agent",)
    AGENT_FIELD_NUMBER: _ClassVar[int]
    agent: Agent
    def __init__(self, agent: _Optional[_Union[Agent, _Mapping]] = ...) -> None: ...

class UpdateAgentRequest(_message.Message):
    __slots__ = ("agent",)
    AGENT_FIELD_NUMBER: _ClassVar[int]
    agent: Agent
    def __init__(self, agent: _Optional[_Union[Agent, _Mapping]] = ...) -> None: ...

class UpdateAgentResponse(_message.Message):
    __slots__ = ("agent",)
    AGENT_FIELD_NUMBER: _ClassVar[int]
    agent: Agent
    def __init__(self, agent: _Optional[_Union[Agent, _Mapping]] = ...) -> None: ...

class DeleteAgentRequest(_message.Message):
    __slots__ = ("agent_id",)
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    def __init__(self, agent_id: _Optional[str] = ...) -> None: ...

class DeleteAgentResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetDefaultAgentRequest(_message.Message):
    __slots__ = ("agent_id",)
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    def __init__(self, agent_id: _Optional[str] = ...) -> None: ...

class SetDefaultAgentResponse(_message.Message):
    __slots__ = ("agent",)
    AGENT_FIELD_NUMBER: _ClassVar[int]
    agent: Agent
    def __init__(self, agent: _Optional[_Union[Agent, _Mapping]] = ...) -> None: ...

class BindAgentRequest(_message.Message):
    __slots__ = ("agent_id", "session_id")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    session_id: str
    def __init__(self, agent_id: _Optional[str] = ..., session_id: _Optional[str] = ...) -> None: ...

class BindAgentResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class UnbindAgentRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class UnbindAgentResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class ResolveAgentRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class ResolveAgentResponse(_message.Message):
    __slots__ = ("agent", "reason")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    agent: Agent
    reason: str
    def __init__(self, agent: _Optional[_Union[Agent, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...
