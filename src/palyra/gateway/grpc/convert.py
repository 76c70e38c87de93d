"""Conversion between our records and gRPC messages, for server and client.

The client pays for each import at every start, so nothing of the server is imported here.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from palyra.core.agent import Agent
from palyra.core.events import Entry, InputMode
from palyra.core.ids import AgentId, PrincipalId, RunId, SessionId
from palyra.core.limits import LimitKind, Limits
from palyra.core.message import AcceptedMessage, clean_text
from palyra.core.run.record import RunRecord
from palyra.core.run.state import RunStatus
from palyra.core.session import Session, SessionNameInvalid, SessionRef
from palyra.core.spending.usage import Usage
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.gateway.records.daemon import DaemonPart, DaemonStatus

MODES = {
    pb.MODE_UNSPECIFIED: InputMode.QUEUE,
    pb.MODE_QUEUE: InputMode.QUEUE,
    pb.MODE_STEER: InputMode.STEER,
    pb.MODE_INTERRUPT: InputMode.INTERRUPT,
}

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
    return SessionRef(
        session_id=ref.session_id or None,
        key=ref.key or None,
        label=ref.label or None,
        require_existing=ref.require_existing,
        reset=ref.reset,
    )


def from_session_ref(ref: SessionRef) -> pb.SessionRef:
    """Write a session reference. An empty name is refused: on the wire it would mean none, and create a session."""
    for name in ("session_id", "key", "label"):
        value = getattr(ref, name)
        if value is not None and not clean_text(value, what=name):
            raise SessionNameInvalid
    return pb.SessionRef(
        session_id=ref.session_id,
        key=ref.key,
        label=ref.label,
        require_existing=ref.require_existing,
        reset=ref.reset,
    )


def from_accepted(accepted: AcceptedMessage) -> pb.Accepted:
    return pb.Accepted(
        run_id=accepted.run_id,
        session_id=accepted.session_id,
        after_seq=accepted.after_seq,
        steered=accepted.steered,
        queued=accepted.queued,
        waiting_for=accepted.waiting_for or "",
        repeated=accepted.repeated,
        sealed=accepted.sealed,
        removed=accepted.removed,
    )


def to_accepted(accepted: pb.Accepted) -> AcceptedMessage:
    return AcceptedMessage(
        run_id=RunId(accepted.run_id),
        session_id=SessionId(accepted.session_id),
        after_seq=accepted.after_seq,
        steered=accepted.steered,
        queued=accepted.queued,
        waiting_for=accepted.waiting_for or None,
        repeated=accepted.repeated,
        sealed=accepted.sealed,
        removed=accepted.removed,
    )


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


def from_run(run: RunRecord) -> pb.Run:
    return pb.Run(
        run_id=run.run_id,
        session_id=run.session_id,
        agent_id=run.agent_id,
        status=run.status.value,
        reason=run.reason or "",
        cancel_requested=run.cancel_requested,
        accepted_at=_timestamp(run.accepted_at),
        ended_at=_timestamp(run.ended_at),
        input=run.input,
        limit_reached=run.limit_reached.value if run.limit_reached is not None else "",
        parent_run_id=run.parent_run_id or "",
        accepted_seq=run.accepted_seq,
        last_seq=run.last_seq,
        turns=run.turns,
        tool_calls=run.tool_calls,
        usage=pb.Usage(input_tokens=run.usage.input_tokens, output_tokens=run.usage.output_tokens),
    )


def to_run(run: pb.Run) -> RunRecord:
    """Read a run; raise `ValueError` if its status or limit is unknown."""
    return RunRecord(
        run_id=RunId(run.run_id),
        session_id=SessionId(run.session_id),
        agent_id=AgentId(run.agent_id),
        status=RunStatus(run.status),
        input=run.input,
        accepted_seq=run.accepted_seq,
        last_seq=run.last_seq,
        accepted_at=_moment(run.accepted_at),
        reason=run.reason or None,
        limit_reached=LimitKind(run.limit_reached) if run.limit_reached else None,
        parent_run_id=RunId(run.parent_run_id) if run.parent_run_id else None,
        ended_at=_moment(run.ended_at) if run.HasField("ended_at") else None,
        turns=run.turns,
        tool_calls=run.tool_calls,
        usage=Usage(input_tokens=run.usage.input_tokens, output_tokens=run.usage.output_tokens),
        cancel_requested=run.cancel_requested,
    )


def from_session(session: Session) -> pb.Session:
    return pb.Session(
        session_id=session.session_id,
        principal=session.principal,
        agent_id=session.agent_id or "",
        key=session.key or "",
        label=session.label or "",
        title=session.title or "",
        created_at=_timestamp(session.created_at),
        updated_at=_timestamp(session.updated_at),
        archived_at=_timestamp(session.archived_at),
        reset_seq=session.reset_seq,
        active_run_id=session.active_run_id or "",
        parent_session_id=session.parent_session_id or "",
    )


def to_session(session: pb.Session) -> Session:
    return Session(
        session_id=SessionId(session.session_id),
        principal=PrincipalId(session.principal),
        agent_id=AgentId(session.agent_id) if session.agent_id else None,
        key=session.key or None,
        label=session.label or None,
        title=session.title or None,
        created_at=_moment(session.created_at),
        updated_at=_moment(session.updated_at),
        archived_at=_moment(session.archived_at) if session.HasField("archived_at") else None,
        reset_seq=session.reset_seq,
        active_run_id=RunId(session.active_run_id) if session.active_run_id else None,
        parent_session_id=SessionId(session.parent_session_id) if session.parent_session_id else None,
    )


def from_agent(agent: Agent) -> pb.Agent:
    limits = agent.limits
    return pb.Agent(
        agent_id=agent.agent_id,
        name=agent.name,
        instructions=agent.instructions,
        tools=None if agent.tools is None else pb.ToolNames(names=agent.tools),
        workspace_roots=agent.workspace_roots,
        limits=None
        if limits is None
        else pb.Limits(**{name: getattr(limits, name) for name in limits.__struct_fields__}),
        is_default=agent.is_default,
        principal=agent.principal,
    )


def to_agent(agent: pb.Agent, principal: PrincipalId, *, is_default: bool = False) -> Agent:
    """Read an agent of the principal. A client cannot set the default flag here, so it is left out."""
    limits = None
    if agent.HasField("limits"):
        limits = Limits(**{name: getattr(agent.limits, name) for name in Limits.__struct_fields__})
    return Agent(
        agent_id=AgentId(agent.agent_id),
        principal=principal,
        name=agent.name,
        instructions=agent.instructions,
        tools=tuple(agent.tools.names) if agent.HasField("tools") else None,
        workspace_roots=tuple(agent.workspace_roots),
        limits=limits,
        is_default=is_default,
    )


def from_status(status: DaemonStatus) -> pb.GetHealthResponse:
    return pb.GetHealthResponse(
        version=status.version,
        pid=status.pid,
        home=status.home,
        started_at=_timestamp(status.started_at),
        engine=status.engine,
        schema=status.schema,
        provider=status.provider,
        model=status.model,
        workspace=status.workspace,
        storage=status.storage,
        settings_hash=status.settings_hash,
        grpc=status.grpc,
        runs=status.runs,
        tasks=status.tasks,
        counters=status.counters,
        connections=status.connections,
        parts=[pb.PartHealth(name=part.name, status=part.status, detail=part.detail) for part in status.parts],
    )


def to_status(health: pb.GetHealthResponse) -> DaemonStatus:
    return DaemonStatus(
        version=health.version,
        pid=health.pid or None,
        home=health.home or None,
        started_at=_moment(health.started_at) if health.HasField("started_at") else None,
        engine=health.engine or None,
        schema=health.schema or None,
        provider=health.provider,
        model=health.model,
        workspace=health.workspace or None,
        storage=health.storage,
        settings_hash=health.settings_hash or None,
        grpc=health.grpc or None,
        runs=dict(sorted(health.runs.items())),
        tasks=dict(sorted(health.tasks.items())),
        counters=dict(sorted(health.counters.items())),
        connections=dict(sorted(health.connections.items())),
        parts=[DaemonPart(name=part.name, status=part.status, detail=part.detail) for part in health.parts],
    )


def _timestamp(moment: datetime | None) -> Timestamp | None:
    if moment is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def _moment(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(tzinfo=UTC)
