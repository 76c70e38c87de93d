"""A question that nobody answered in time, asked once more: a new run that begins with the same call.

The call is judged by the policies of today, like any other; its arguments keep the labels that they had, so nothing is
trusted more for being asked about twice.
"""

from dataclasses import dataclass
from datetime import datetime

from palyra.core.agent import Agent
from palyra.core.approval import Approval
from palyra.core.events import Reissue, RunAccepted
from palyra.core.ids import PrincipalId
from palyra.core.limits import Limits
from palyra.core.message import Accepted
from palyra.core.run import RunState
from palyra.core.session import Session
from palyra.journal import agents, runs, sessions
from palyra.journal.engine import Connection
from palyra.runs.agents import choose
from palyra.runs.approvals import check_overdue, overdue, timed_out, waits
from palyra.runs.book import Book
from palyra.runs.replay import replay
from palyra.runs.sessions import SessionNotFound, SessionPutAway

ORIGIN = "reissue"
SUMMARY_SHOWN = 500


@dataclass(frozen=True, slots=True)
class Again:
    """A question whose time ran out, and what a run that asks it once more needs."""

    asked: Approval
    session: Session
    agent: Agent
    agent_reason: str
    channels: tuple[str, ...]
    """Those of the run that asked: whoever wants the question again adds no words of his own."""

    def accepted(self, principal: PrincipalId, limits: Limits, *, at: datetime) -> RunAccepted:
        """Return the acceptance of that run."""
        asked = self.asked
        return RunAccepted(
            at=at,
            actor=principal,
            # The words quote what the call would do, so they are trusted as much as its arguments and no more.
            labels=asked.labels,
            text=f"Ask me again about this, which I did not answer in time: {asked.effect.summary[:SUMMARY_SHOWN]}",
            principal=principal,
            agent_id=self.agent.agent_id,
            agent_reason=self.agent_reason,
            limits=(self.agent.limits or limits).capped(limits),
            origin=ORIGIN,
            channels=self.channels,
            reissue=Reissue(
                approval_id=asked.approval_id, tool=asked.tool, arguments=asked.arguments, labels=asked.labels
            ),
        )


def find(conn: Connection, principal: PrincipalId, name: str, *, at: datetime) -> tuple[Approval, Session]:
    """Return a question by its id or code, and its session; raise unless it can be asked once more."""
    asked = overdue(conn, principal, name)
    check_overdue(asked, at=at)
    session = sessions.get(conn, asked.session_id, principal)
    if session is None:
        raise SessionNotFound("The session of this question was moved to the archive. Ask the agent in another.")
    if session.archived_at is not None:
        raise SessionPutAway
    return asked, session


def settle(conn: Connection, book: Book, asked: Approval, *, at: datetime) -> RunState | None:
    """Deny the call whose time is over, if nobody has come to it yet; return where its run stands then."""
    state = replay(conn, asked.run_id)
    if not waits(state, asked.call_id, asked.approval_id):
        return None
    return book.add(state, timed_out(asked.call_id, asked.approval_id, at=at))


def under_way(conn: Connection, asked: Approval) -> Accepted | None:
    """Return the run that asks it once more already, unless that has ended."""
    if asked.reissued_as is None:
        return None
    run = runs.get(conn, asked.reissued_as, asked.principal)
    if run is None or run.ended_at is not None:
        return None
    active = next((run_id for run_id, started in runs.open_in(conn, asked.session_id) if started), None)
    return Accepted(
        run_id=run.run_id,
        session_id=run.session_id,
        after_seq=run.accepted_seq - 1,
        queued=active != run.run_id,
        repeated=True,
    )


def prepare(conn: Connection, principal: PrincipalId, asked: Approval, session: Session) -> Again:
    """Choose who proposes it: the agent of then, or whoever answers in the session if there is none of that id."""
    agent = agents.get(conn, asked.agent_id, principal)
    reason = "it proposed the call"
    if agent is None:
        agent, reason = choose(conn, principal, session)
    return Again(asked, session, agent, reason, replay(conn, asked.run_id).channels)
