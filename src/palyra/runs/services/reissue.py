"""Reissues an approval request that expired: a new run that begins with the same call.

The call is judged by the current policies, like any other; its arguments keep their labels, so nothing is
trusted more because it is requested twice.
"""

from dataclasses import dataclass
from datetime import datetime

from palyra.core.agent import Agent
from palyra.core.events import Reissue, RunAccepted
from palyra.core.ids import PrincipalId
from palyra.core.limits import Limits
from palyra.core.message import AcceptedMessage
from palyra.core.policy.approval import Approval
from palyra.core.run.state import RunState
from palyra.core.session import Session, SessionArchivedError, SessionNotFound
from palyra.journal.engines.base import Connection
from palyra.journal.stores import agents, runs, sessions
from palyra.runs.recording.replay import replay
from palyra.runs.recording.session_writer import SessionWriter
from palyra.runs.services.agents import choose
from palyra.runs.services.approvals import check_overdue, is_waiting, overdue, timed_out

ORIGIN = "reissue"
SUMMARY_SHOWN = 500


@dataclass(frozen=True, slots=True)
class ReissuePlan:
    """An approval request that expired, and what a run that reissues it needs."""

    approval: Approval
    session: Session
    agent: Agent
    agent_reason: str
    channels: tuple[str, ...]
    """Those of the run that asked: a reissue adds no new text."""

    def accepted(self, principal: PrincipalId, limits: Limits, *, at: datetime) -> RunAccepted:
        """Return the event that accepts that run."""
        approval = self.approval
        return RunAccepted(
            at=at,
            actor=principal,
            # The text quotes what the call would do, so it is trusted as much as the arguments and no more.
            labels=approval.labels,
            text=f"Ask me again about this, which I did not answer in time: {approval.effect.summary[:SUMMARY_SHOWN]}",
            principal=principal,
            agent_id=self.agent.agent_id,
            agent_reason=self.agent_reason,
            limits=(self.agent.limits or limits).capped(limits),
            channel=ORIGIN,
            source_channels=self.channels,
            reissue=Reissue(
                approval_id=approval.approval_id,
                tool=approval.tool,
                arguments=approval.arguments,
                labels=approval.labels,
            ),
        )


def find(conn: Connection, principal: PrincipalId, name: str, *, at: datetime) -> tuple[Approval, Session]:
    """Return an approval request by its id or code, and its session; raise unless it can be reissued."""
    approval = overdue(conn, principal, name)
    check_overdue(approval, at=at)
    session = sessions.get(conn, approval.session_id, principal)
    if session is None:
        raise SessionNotFound(
            "The session of this approval request was moved to the archive. Ask the agent in another session."
        )
    if session.archived_at is not None:
        raise SessionArchivedError
    return approval, session


def settle(conn: Connection, writer: SessionWriter, approval: Approval, *, at: datetime) -> RunState | None:
    """Deny the call whose approval request expired, if that was not done yet; return the new state of its run."""
    state = replay(conn, approval.run_id)
    if not is_waiting(state, approval.call_id, approval.approval_id):
        return None
    return writer.add(state, timed_out(approval.call_id, approval.approval_id, at=at))


def under_way(conn: Connection, approval: Approval) -> AcceptedMessage | None:
    """Return the run that reissues it already, unless that has ended."""
    if approval.reissued_as is None:
        return None
    run = runs.get(conn, approval.reissued_as, approval.principal)
    if run is None or run.ended_at is not None:
        return None
    active = next((run_id for run_id, started in runs.open_in(conn, approval.session_id) if started), None)
    return AcceptedMessage(
        run_id=run.run_id,
        session_id=run.session_id,
        after_seq=run.accepted_seq - 1,
        queued=active != run.run_id,
        repeated=True,
    )


def prepare(conn: Connection, principal: PrincipalId, approval: Approval, session: Session) -> ReissuePlan:
    """Choose the agent that proposes the call: the same as before, or the session's if that one is gone."""
    agent = agents.get(conn, approval.agent_id, principal)
    reason = "it proposed the call"
    if agent is None:
        agent, reason = choose(conn, principal, session)
    return ReissuePlan(approval, session, agent, reason, replay(conn, approval.run_id).channels)
