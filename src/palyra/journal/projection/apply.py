"""Writes the changes that follow from entries to the derived tables: the only place that does so as they happen."""

from collections.abc import Iterable
from typing import assert_never

from palyra.core.ids import SessionId
from palyra.core.projection import changes
from palyra.journal.engines.base import Connection
from palyra.journal.ledger import budget_warnings, turns
from palyra.journal.stores import approvals, grants, messages, runs, sessions
from palyra.journal.stores.runs import QueueSlot


def apply(
    conn: Connection, session_id: SessionId, row_changes: Iterable[changes.RowChange], *, slot: QueueSlot | None = None
) -> bool:
    """Write changes of a session's rows; False if one of them is not possible: a name was taken, a turn is settled.

    The `slot` is that of a run that is added, at the end of the queue if there is none.
    """
    done = True
    for change in row_changes:
        match change:
            case changes.RunProgress():
                runs.advance(conn, change)
            case changes.ConversationGrown():
                _grow(conn, session_id, change)
            case changes.TurnOpened(turn=turn):
                turns.begin(conn, turn)
            case changes.TurnClosed():
                done &= turns.settle(
                    conn,
                    change.root_run_id,
                    change.run_id,
                    change.turn,
                    outcome=change.outcome,
                    usage=change.usage,
                    micros=change.micros,
                )
            case changes.RunAdded():
                row = changes.run_row(change, changes.RunProgress(change.state, change.tape_seq))
                runs.insert(conn, row, slot or QueueSlot(change.tape_seq))
            case changes.ApprovalAdded(approval=approval):
                approvals.insert(conn, approval)
            case changes.ApprovalClosed():
                approvals.settle(
                    conn,
                    change.approval_id,
                    decision=change.decision,
                    scope=change.scope,
                    by=change.by,
                    answer=change.answer,
                    at_ms=change.at_ms,
                )
            case changes.ApprovalReissued():
                approvals.note_reissue(conn, change.approval_id, change.run_id)
            case changes.GrantAdded(grant=grant):
                grants.insert(conn, grant)
            case changes.GrantEnded():
                grants.revoke(conn, change.grant_id, at_ms=change.at_ms)
            case changes.WarningAdded():
                budget_warnings.insert(conn, change)
            case changes.SessionAdded(session=session):
                done &= sessions.insert(conn, session)
            case changes.SessionChanged():
                sessions.change(conn, session_id, change.columns, at_ms=change.at_ms)
            case changes.ContextReset():
                sessions.reset(conn, session_id, at_ms=change.at_ms, seq=change.tape_seq)
            case _ as never:
                assert_never(never)
    return done


def _grow(conn: Connection, session_id: SessionId, change: changes.ConversationGrown) -> None:
    if change.messages:
        stored = [added.message for added in change.messages]
        messages.insert(conn, session_id, change.messages[0].principal, messages=stored)
    sessions.touch(conn, session_id, at_ms=change.at_ms, active=change.active, messages=len(change.messages))
