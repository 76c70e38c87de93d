"""Decides whether a call may run: the one entry point of the policies.

The policies say allow or deny; three verdicts result from evaluating them twice. A call runs if `run` is permitted; if
not, approval is requested if `ask` is permitted; otherwise it is denied. It fails closed: an error in any policy
denies, since Cedar ignores a forbid that fails, and so does a request that the engine cannot evaluate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from msgspec.structs import replace

from palyra.core.channel import UNKNOWN
from palyra.core.policy import labels
from palyra.core.policy.approval import ApprovalScope, Grant
from palyra.core.policy.manifest import CapabilityManifest
from palyra.core.tool import Risk, Verdict
from palyra.policy import command_patterns, entities
from palyra.policy.cedar import CedarAnswer, CedarEngine
from palyra.policy.loader import Policies
from palyra.policy.query import PolicyQuery

MANIFEST = "manifest"
"""Used as the policy id when a manifest decides."""
STRICTNESS = (Verdict.ALLOW, Verdict.ASK, Verdict.DENY)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The decision about a call, and the reason."""

    verdict: Verdict
    risk: Risk
    reason: str
    """One sentence for a person."""
    policies: tuple[str, ...]
    """The ids of the policies that decided."""
    policy_hash: str
    grant_id: str | None = None
    """The grant that covers the call."""


class Gate:
    """Judges calls with one set of policies."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._reasons = {policy.id: policy.reason for policy in policies.items}

    @property
    def policy_hash(self) -> str:
        """The hash that distinguishes these policies from others."""
        return self._policies.hash

    def judge(self, question: PolicyQuery, grants: Sequence[Grant]) -> Judgement:
        """Decide about a call.

        If the run follows messages from several channels, the call is judged for each of them, and the strictest
        verdict counts: so a person who joins a run from another channel has no more rights in it than either channel.
        """
        if question.manifest is not None and (beyond := beyond_manifest(question.manifest, question)):
            return self._judgement(question, Verdict.DENY, beyond, (MANIFEST,))
        valid = _lifted(grants, question, policy_hash=self.policy_hash)
        grant = next((grant for grant in valid if covers(grant, question, policy_hash=self.policy_hash)), None)
        judged = (self._judge(question, one, grant) for one in question.channels or (UNKNOWN,))
        return max(judged, key=lambda judgement: STRICTNESS.index(judgement.verdict))

    def _judge(self, question: PolicyQuery, channel: str, grant: Grant | None) -> Judgement:
        run, ask = self._engine.decide(
            entities.cedar_request(
                question,
                label=labels.least_trusted(question.labels),
                channel=channel,
                granted=grant is not None,
            )
        )
        if run.errors or ask.errors:
            return self._failed(question, run, ask)
        if run.permitted:
            reason = self._why(run, "A policy allows it.")
            return self._judgement(question, Verdict.ALLOW, reason, run.policies, grant)
        if ask.permitted:
            # The policy that forbade it to run at once says more than the one that permits it with approval.
            reason = self._why(run, "") or self._why(ask, "A policy requires approval.")
            return self._judgement(question, Verdict.ASK, reason, _once(run.policies + ask.policies), grant)
        reason = self._why(ask, "") or self._why(run, "No policy allows it.")
        return self._judgement(question, Verdict.DENY, reason, _once(ask.policies + run.policies), grant)

    @cached_property
    def _engine(self) -> CedarEngine:
        return CedarEngine(self._policies.items)

    def _why(self, answer: CedarAnswer, otherwise: str) -> str:
        """Return the reason that the policies give; for one without a reason, its name."""
        if not answer.policies:
            return otherwise
        names = [self._reasons[name] or f"Policy {name} applies." for name in answer.policies]
        return " ".join(_once(tuple(names)))

    def _failed(self, question: PolicyQuery, run: CedarAnswer, ask: CedarAnswer) -> Judgement:
        erred = _once(run.erred + ask.erred)
        what = (run.errors + ask.errors)[0]
        if erred:
            reason = f"Policy {erred[0]} cannot be evaluated, so the call is denied: {what}. Fix the policy."
        else:
            reason = f"The policies cannot be evaluated for this call, so it is denied: {what}."
        return self._judgement(question, Verdict.DENY, reason, erred)

    def _judgement(
        self,
        question: PolicyQuery,
        verdict: Verdict,
        reason: str,
        policies: tuple[str, ...],
        grant: Grant | None = None,
    ) -> Judgement:
        grant_id = grant.grant_id if grant is not None else None
        return Judgement(verdict, question.effect.risk, reason, policies, self.policy_hash, grant_id)


def covers(grant: Grant, question: PolicyQuery, *, policy_hash: str) -> bool:
    """Return whether a grant covers this call."""
    same = (
        grant.principal == question.principal
        and grant.agent_id == question.agent_id
        and grant.tool == question.tool.name
        and command_patterns.covers(grant.kind, question.effect)
        and grant.policy_hash == policy_hash
    )
    if not same or _is_over(grant, question.now):
        return False
    # Results of the owner's own tools are not a reason to ask again about what was allowed for the owner's messages.
    highest = labels.TOOL if grant.label == labels.OWNER else grant.label
    if not labels.reaches(highest, labels.least_trusted(question.labels)):
        return False
    match grant.scope:
        case ApprovalScope.ONCE:
            return False
        case ApprovalScope.SESSION:
            return grant.session_id == question.session_id
        case ApprovalScope.TIMEBOXED:
            return grant.expires_at is not None
        case ApprovalScope.ALWAYS:
            return True


def _lifted(grants: Sequence[Grant], question: PolicyQuery, *, policy_hash: str) -> list[Grant]:
    """Return the grants as they apply in this session.

    A person who has allowed a call influenced by web content for a session was informed of that, and is not asked again
    about each class of calls allowed for this session. Grants for longer are not changed.
    """
    here = [
        grant
        for grant in grants
        if grant.scope is ApprovalScope.SESSION
        and grant.session_id == question.session_id
        and (grant.principal, grant.agent_id, grant.policy_hash) == (question.principal, question.agent_id, policy_hash)
        and not _is_over(grant, question.now)
    ]
    accepted = max((grant.label for grant in here if grant.label in labels.KNOWN), key=labels.rank, default=None)
    if accepted is None:
        return list(grants)
    lifted = [replace(grant, label=accepted) if grant.label in labels.KNOWN else grant for grant in here]
    return [*lifted, *(grant for grant in grants if grant not in here)]


def _is_over(grant: Grant, now: datetime) -> bool:
    return grant.revoked_at is not None or (grant.expires_at is not None and now >= grant.expires_at)


def beyond_manifest(manifest: CapabilityManifest, question: PolicyQuery) -> str:
    """Return how a call exceeds a manifest, or nothing."""
    effect = question.effect
    if question.tool.name not in manifest.tools:
        return f"{manifest.name} may not call {question.tool.name}: its manifest does not list it."
    for host in effect.hosts:
        above = entities.domains_above(host)
        if above[0] not in manifest.hosts and not any(f"*.{name}" in manifest.hosts for name in above[1:]):
            return f"{manifest.name} may not reach {host}: its manifest does not list it."
    for path in effect.paths:
        if manifest.paths.isdisjoint(entities.folders_above(path)):
            return f"{manifest.name} may not access {path}: it is not in a folder that its manifest lists."
    return ""


def _once(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
