"""The only way to answer approval requests, whatever asks and wherever the answer comes from."""

import asyncio
from datetime import datetime, timedelta

from msgspec.structs import replace

from palyra.core.clock import Clock, to_ms
from palyra.core.errors import Conflict, Invalid, NotFound
from palyra.core.events import ApprovalDecision, ApprovalResolved, RunEvent
from palyra.core.ids import CallId, IdSource, PrincipalId, RunId, parse_ulid
from palyra.core.message import clean_text
from palyra.core.policy import labels
from palyra.core.policy.approval import Approval, ApprovalScope, Grant
from palyra.core.run.state import TERMINAL, CallStage, RunState
from palyra.core.session_events import GrantRevoked
from palyra.core.tool import JsonObject, ToolCall
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.projection.approvals_check import session_of_grant
from palyra.journal.stores import approvals, grants
from palyra.policy.command_patterns import check_pattern
from palyra.runs.recording.run_writer import write_from_outside
from palyra.runs.recording.session_writer import SessionWriter
from palyra.runs.services.sealing import MESSAGE, SecretSealer
from palyra.tools.arguments import CallProblem, check
from palyra.tools.toolbox import BUILTIN_ONLY, Toolbox

MAX_REASON_CHARS = 500
CODE_CHARS = 6
"""A person names an open approval request by this many characters from the end of its id."""
MAX_GRANT_LIFETIME = timedelta(days=365)
TIMED_OUT = "no answer in time"


class ApprovalNotFound(NotFound):
    """You have no such approval. `palyra approvals` lists the open ones."""


class ApprovalAnswered(Conflict):
    """This approval request is already answered. The first answer counts."""


class ApprovalExpired(Conflict):
    """The approval request has expired, and the call was denied. `palyra approvals reissue` requests it again."""


class ApprovalOpen(Conflict):
    """This approval request is still open. Answer it; only an expired one can be reissued."""


class ApprovalScopeInvalid(Invalid):
    """This call can only be allowed once: it belongs to no class of calls that could be allowed for longer."""


class ApprovalNotReissuable(Conflict):
    """This approval request was about a budget, and its run has ended. Send your message again."""


class ApprovalAnswerInvalid(Invalid):
    """The parts of the answer contradict each other."""


class GrantNotFound(NotFound):
    """You have no such grant. `palyra approvals grants` lists yours."""


class ApprovalService:
    """Lists approval requests, records answers, and revokes grants."""

    def __init__(
        self, engine: Engine, *, clock: Clock, ids: IdSource, seals: SecretSealer, toolbox: Toolbox = BUILTIN_ONLY
    ) -> None:
        self._engine = engine
        self._seals = seals
        self._clock = clock
        self._ids = ids
        self._toolbox = toolbox

    async def get(self, principal: PrincipalId, approval_id: str) -> Approval:
        """Return an approval by its id, or an open one by its code."""
        return await self._engine.read(lambda conn: _in_full(conn, principal, approval_id))

    async def reveal(self, principal: PrincipalId, approval_id: str) -> Approval:
        """Return an approval as its owner may see it: with values in place of markers."""
        approval = await self.get(principal, approval_id)
        effect, texts = approval.effect, [approval.effect.summary, approval.effect.detail, approval.effect.command]
        summary, detail, command = await self._seals.revealed(principal, texts)
        effect = replace(effect, summary=summary, detail=detail, command=command)
        return replace(approval, effect=effect, arguments=await self._seals.revealed(principal, approval.arguments))

    async def page(
        self, principal: PrincipalId, *, only_open: bool, before: tuple[int, str] | None, limit: int
    ) -> list[Approval]:
        """Return the principal's approvals, the latest first."""

        def query(conn: Connection) -> list[Approval]:
            matching_approvals = approvals.page(conn, principal, only_open=only_open, before=before, limit=limit)
            return approvals.with_arguments(conn, matching_approvals)

        return await self._engine.read(query)

    async def resolve(
        self,
        principal: PrincipalId,
        approval_id: str,
        *,
        allow: bool,
        scope: ApprovalScope = ApprovalScope.ONCE,
        ttl: timedelta | None = None,
        reason: str = "",
        arguments: JsonObject | None = None,
        pattern: str = "",
    ) -> Approval:
        """Answer an approval request. The first answer counts; the run continues with it, also after a restart.

        With a `pattern`, a lasting answer covers all commands that match it instead of the exact one.
        """
        clean_text(reason, what="reason")
        clean_text(pattern, what="pattern")
        _check(allow=allow, scope=scope, ttl=ttl, arguments=arguments, pattern=pattern)
        if pattern:
            effect = (await self.get(principal, approval_id)).effect
            # Off the event loop: a malicious command line can take a second.
            await asyncio.to_thread(check_pattern, pattern, effect)
        sealing = self._seals.sealing(principal)
        reason = await sealing.seal(reason[:MAX_REASON_CHARS], MESSAGE)
        if arguments is not None:
            approval = await self.get(principal, approval_id)
            self._check_fit(approval, arguments)
            arguments = await sealing.seal_arguments(approval.tool, arguments, only_inert=False)
        at, grant_id = self._clock.now(), self._ids.new()

        def unit(conn: Connection) -> Approval:
            approval = _find_approval(conn, principal, approval_id)
            if approval.decision is not None:
                raise _answered(approval)
            if approval.expires_at <= at:
                raise ApprovalExpired
            if not approval.call_id and arguments is not None:
                raise ApprovalAnswerInvalid("This approval request is about a budget, so it has no arguments to edit.")
            lasting = allow and scope is not ApprovalScope.ONCE
            if lasting and not approval.effect.kind:
                raise ApprovalScopeInvalid
            answer = ApprovalResolved(
                at=at,
                actor=principal,
                labels=(labels.OWNER,),
                call_id=approval.call_id,
                approval_id=approval.approval_id,
                decision=ApprovalDecision.ALLOWED if allow else ApprovalDecision.DENIED,
                reason=reason or ("" if allow else "denied by the owner"),
                scope=scope,
                arguments=arguments,
                grant_id=grant_id if lasting else None,
                until=at + ttl if ttl is not None else None,
                sealed=sealing.sealed,
                removed=sealing.removed,
                pattern=pattern,
            )
            settle(conn, approval.run_id, answer, ids=self._ids, at=at)
            sealing.keep(conn, approval.session_id)
            return _in_full(conn, principal, approval.approval_id)

        return await self._engine.write(unit)

    def _check_fit(self, approval: Approval, arguments: JsonObject) -> None:
        """Refuse arguments that the tool cannot be called with: they would use up the approval request."""
        tools = self._toolbox.catalog(None, who=approval.principal)
        if tools.get(approval.tool) is None:
            return  # its server may be down; checked again when the call is due
        fit = check(tools, ToolCall(call_id=approval.call_id, tool=approval.tool, arguments=arguments))
        if isinstance(fit, CallProblem):
            raise ApprovalAnswerInvalid(f"With these arguments {fit.reason} The approval request is still open.")

    async def grants(self, principal: PrincipalId, *, limit: int, before: tuple[int, str] | None = None) -> list[Grant]:
        """Return the principal's grants, the latest first."""
        return await self._engine.read(lambda conn: grants.all_of(conn, principal, before=before, limit=limit))

    async def revoke(self, principal: PrincipalId, grant_id: str) -> Grant:
        """Revoke a grant; calls that were not executed yet need approval again."""
        requested = parse_ulid(grant_id, "grant id")
        at = self._clock.now()

        def unit(conn: Connection) -> Grant:
            grant = grants.get(conn, requested, principal)
            if grant is None:
                raise GrantNotFound
            if not self._note_end(conn, grant, at=at):
                grants.revoke(conn, requested, at_ms=to_ms(at))
            revoked = grants.get(conn, requested, principal)
            assert revoked is not None
            return revoked

        return await self._engine.write(unit)

    def _note_end(self, conn: Connection, grant: Grant, *, at: datetime) -> bool:
        """Record on the tape with the answer that the grant has ended; False if that tape was moved to the archive."""
        session_id = session_of_grant(conn, grant)
        if session_id is None:
            return False
        writer = SessionWriter.open(conn, session_id, ids=self._ids)
        # Checked again now that the tape is locked: it may have been archived, or another request was faster.
        now = grants.get(conn, grant.grant_id, grant.principal)
        is_here = now is not None and now.revoked_at is None and session_of_grant(conn, grant) == session_id
        if is_here:
            writer.note(GrantRevoked(at=at, actor=grant.principal, grant_id=grant.grant_id))
        writer.close()
        return is_here


def settle(conn: Connection, run_id: RunId, answer: ApprovalResolved, *, ids: IdSource, at: datetime) -> None:
    """Record the answer, if the run still waits for it."""

    def decide(state: RunState, _: bool) -> list[RunEvent]:
        if not is_waiting(state, answer.call_id, answer.approval_id):
            raise ApprovalAnswered("The run no longer waits for this approval.")
        return [answer]

    write_from_outside(conn, run_id, decide, ids=ids, now_ms=to_ms(at))


def expire(conn: Connection, run_id: RunId, call_id: CallId, approval_id: str, *, clock: Clock, ids: IdSource) -> None:
    """Deny a call whose approval request was not answered; does nothing if it was."""
    at = clock.now()

    def decide(state: RunState, _: bool) -> list[RunEvent]:
        return [timed_out(call_id, approval_id, at=at)] if is_waiting(state, call_id, approval_id) else []

    write_from_outside(conn, run_id, decide, ids=ids, now_ms=to_ms(at))


def timed_out(call_id: CallId, approval_id: str, *, at: datetime) -> ApprovalResolved:
    """Return the event that ends an approval request that was not answered in time."""
    return ApprovalResolved(
        at=at,
        actor="system",
        labels=(labels.TOOL,),
        call_id=call_id,
        approval_id=approval_id,
        decision=ApprovalDecision.TIMED_OUT,
        reason=TIMED_OUT,
    )


def overdue(conn: Connection, principal: PrincipalId, name: str) -> Approval:
    """Return an approval request by its id, or one that is open or expired by its code."""
    return _find_approval(conn, principal, name, overdue=True)


def check_overdue(approval: Approval, *, at: datetime) -> None:
    """Raise unless the approval request expired without an answer."""
    if approval.decision is None and approval.expires_at > at:
        raise ApprovalOpen
    if not approval.call_id:
        raise ApprovalNotReissuable
    if approval.decision not in (None, ApprovalDecision.TIMED_OUT.value):
        raise _answered(approval)


def is_waiting(state: RunState, call_id: CallId, approval_id: str) -> bool:
    """Tell whether the run waits for this exact answer; it is about budgets if there is no call."""
    if not call_id:
        return state.status not in TERMINAL and state.question == approval_id
    return state.status not in TERMINAL and any(
        call.stage is CallStage.WAITING and call.waits_for == approval_id and call.call.call_id == call_id
        for call in state.calls
    )


def _find_approval(conn: Connection, principal: PrincipalId, name: str, *, overdue: bool = False) -> Approval:
    if len(name) == CODE_CHARS:
        fitting = approvals.ending_in(conn, name.upper(), principal, overdue=overdue)
        if len(fitting) != 1:
            raise ApprovalNotFound
        return fitting[0]
    approval = approvals.get(conn, parse_ulid(name, "approval id"), principal)
    if approval is None:
        raise ApprovalNotFound
    return approval


def _in_full(conn: Connection, principal: PrincipalId, name: str) -> Approval:
    return approvals.with_arguments(conn, [_find_approval(conn, principal, name)])[0]


def _answered(approval: Approval) -> ApprovalAnswered:
    when = f" at {approval.answered_at:%Y-%m-%d %H:%M:%S} UTC" if approval.answered_at else ""
    return ApprovalAnswered(
        f"This approval request was {approval.decision} by {approval.answered_by}{when}. The first answer counts."
    )


def _check(
    *, allow: bool, scope: ApprovalScope, ttl: timedelta | None, arguments: JsonObject | None, pattern: str
) -> None:
    if (scope is ApprovalScope.TIMEBOXED) != (ttl is not None):
        raise ApprovalAnswerInvalid("`until` must be given for an answer with a time limit, and for no other.")
    if ttl is not None and not timedelta(0) < ttl <= MAX_GRANT_LIFETIME:
        raise ApprovalAnswerInvalid("An approval is valid for at most 365 days.")
    if pattern and (not allow or scope is ApprovalScope.ONCE):
        raise ApprovalAnswerInvalid(
            "A pattern needs an answer that allows for longer: session, a time limit, or always."
        )
    if not allow and (scope is not ApprovalScope.ONCE or arguments is not None):
        raise ApprovalAnswerInvalid("An answer that denies the call takes neither a scope nor arguments.")
    if arguments is not None and scope is not ApprovalScope.ONCE:
        raise ApprovalAnswerInvalid("Edited arguments apply to this call only. Allow it once.")
