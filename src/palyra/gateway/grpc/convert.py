"""Between our records and the messages of the wire."""

from collections.abc import Iterable
from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from palyra.core.agent import Agent
from palyra.core.events import Entry, Mode
from palyra.core.ids import AgentId, PrincipalId
from palyra.core.limits import Limits
from palyra.core.message import Accepted, Inbound
from palyra.core.session import Session, SessionRef
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.gateway.status import RequestMalformed
from palyra.journal.runs import Run

_MODES = {
    pb.MODE_UNSPECIFIED: Mode.QUEUE,
    pb.MODE_QUEUE: Mode.QUEUE,
    pb.MODE_STEER: Mode.STEER,
    pb.MODE_INTERRUPT: Mode.INTERRUPT,
}


def to_inbound(message: pb.InboundMessage, principal: PrincipalId) -> Inbound:
    """Read a message of the principal's."""
    if message.mode not in _MODES:
        raise RequestMalformed(f"There is no mode {message.mode}. Use queue, steer or interrupt.")
    return Inbound(
        principal=principal,
        text=message.text,
        session=to_session_ref(message.session),
        mode=_MODES[message.mode],
        idempotency_key=message.idempotency_key or None,
        origin="grpc",
    )


def to_session_ref(ref: pb.SessionRef) -> SessionRef:
    """Read how a session is named; an empty name is no name."""
    return SessionRef(
        session_id=ref.session_id or None,
        key=ref.key or None,
        label=ref.label or None,
        require_existing=ref.require_existing,
        reset=ref.reset,
    )


def from_accepted(accepted: Accepted) -> pb.Accepted:
    return pb.Accepted(
        run_id=accepted.run_id,
        session_id=accepted.session_id,
        after_seq=accepted.after_seq,
        steered=accepted.steered,
        queued=accepted.queued,
        waiting_for=accepted.waiting_for or "",
        repeated=accepted.repeated,
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


def from_run(run: Run) -> pb.Run:
    return pb.Run(
        run_id=run.run_id,
        session_id=run.session_id,
        agent_id=run.agent_id,
        status=run.status.value,
        reason=run.reason or "",
        cancel_requested=run.cancel_requested,
        accepted_at=_timestamp(run.accepted_at),
        ended_at=_timestamp(run.ended_at),
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
    )


def to_agent(agent: pb.Agent, principal: PrincipalId) -> Agent:
    """Read an agent of the principal's; who is the default is decided elsewhere."""
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
    )


def _timestamp(moment: datetime | None) -> Timestamp | None:
    if moment is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp
