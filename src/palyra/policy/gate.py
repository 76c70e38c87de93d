"""May this call run? The one question that is asked, and its answer.

The policies say allow or deny; three verdicts come of asking them twice. A call runs if `run` is permitted; if not, a
person is asked if `ask` is permitted; else it is denied. It fails closed: an error in any policy denies, since a
forbid that fails is otherwise passed over, and so does a question that the engine can not judge.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from msgspec.structs import replace

from palyra.core import labels
from palyra.core.approval import Grant, Scope
from palyra.core.channel import UNKNOWN
from palyra.core.effect import Effect
from palyra.core.ids import AgentId, PrincipalId, SessionId
from palyra.core.manifest import Manifest
from palyra.core.tool import Risk, ToolSpec, Verdict
from palyra.policy import entities, patterns
from palyra.policy.cedar import Answer, Engine
from palyra.policy.load import Policies

MANIFEST = "manifest"
"""Stands for the policy when a manifest decides."""
STRICTNESS = (Verdict.ALLOW, Verdict.ASK, Verdict.DENY)


@dataclass(frozen=True, slots=True)
class Question:
    """A call, and everything that its judgement may depend on."""

    principal: PrincipalId
    agent_id: AgentId
    session_id: SessionId
    tool: ToolSpec
    effect: Effect
    labels: tuple[str, ...]
    """Where the texts came from that the arguments were made of."""
    channels: tuple[str, ...]
    """By which channels the words came in that the run follows; none if that was not recorded."""
    has_channel: bool
    """Somebody entitled to answer can be reached."""
    now: datetime
    manifest: Manifest | None = None
    signals: tuple[str, ...] = ()
    """What scanners found in what the session has read."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What becomes of a call, and why."""

    verdict: Verdict
    risk: Risk
    reason: str
    """One sentence for a person."""
    policies: tuple[str, ...]
    """The ids of those that decided."""
    policy_hash: str
    grant_id: str | None = None
    """The earlier answer that covers the call."""


class Gate:
    """Judges calls by one set of policies."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._reasons = {policy.id: policy.reason for policy in policies.items}

    @property
    def policy_hash(self) -> str:
        """What tells these policies from others."""
        return self._policies.hash

    def judge(self, question: Question, grants: Sequence[Grant]) -> Judgement:
        """Decide about a call.

        One whose run follows words of several channels is judged for each of them, and the strictest verdict counts:
        so whoever joins a run by another channel has no more rights in it than either.
        """
        if question.manifest is not None and (beyond := beyond_manifest(question.manifest, question)):
            return self._judgement(question, Verdict.DENY, beyond, (MANIFEST,))
        valid = _lifted(grants, question, policy_hash=self.policy_hash)
        grant = next((grant for grant in valid if covers(grant, question, policy_hash=self.policy_hash)), None)
        judged = (self._judge(question, one, grant) for one in question.channels or (UNKNOWN,))
        return max(judged, key=lambda judgement: STRICTNESS.index(judgement.verdict))

    def _judge(self, question: Question, channel: str, grant: Grant | None) -> Judgement:
        run, ask = self._engine.decide(
            entities.request(
                principal=question.principal,
                agent_id=question.agent_id,
                tool=question.tool,
                effect=question.effect,
                label=labels.least_trusted(question.labels),
                channel=channel,
                has_channel=question.has_channel,
                granted=grant is not None,
                signals=question.signals,
            )
        )
        if run.errors or ask.errors:
            return self._failed(question, run, ask)
        if run.permitted:
            reason = self._why(run, "A policy allows it.")
            return self._judgement(question, Verdict.ALLOW, reason, run.policies, grant)
        if ask.permitted:
            # What forbade it to run at once says more than what lets it run after a question.
            reason = self._why(run, "") or self._why(ask, "A policy wants you to be asked.")
            return self._judgement(question, Verdict.ASK, reason, _once(run.policies + ask.policies), grant)
        reason = self._why(ask, "") or self._why(run, "No policy allows it.")
        return self._judgement(question, Verdict.DENY, reason, _once(ask.policies + run.policies), grant)

    @cached_property
    def _engine(self) -> Engine:
        return Engine(self._policies.items)

    def _why(self, answer: Answer, otherwise: str) -> str:
        """Return what the policies give as their reason; of one that gives none, its name."""
        if not answer.policies:
            return otherwise
        given = [self._reasons[name] or f"Policy {name} decides so." for name in answer.policies]
        return " ".join(_once(tuple(given)))

    def _failed(self, question: Question, run: Answer, ask: Answer) -> Judgement:
        erred = _once(run.erred + ask.erred)
        what = (run.errors + ask.errors)[0]
        if erred:
            reason = f"Policy {erred[0]} can not be evaluated, so the call is denied: {what}. Mend the policy."
        else:
            reason = f"The call can not be judged, so it is denied: {what}."
        return self._judgement(question, Verdict.DENY, reason, erred)

    def _judgement(
        self,
        question: Question,
        verdict: Verdict,
        reason: str,
        policies: tuple[str, ...],
        grant: Grant | None = None,
    ) -> Judgement:
        grant_id = grant.grant_id if grant is not None else None
        return Judgement(verdict, question.effect.risk, reason, policies, self.policy_hash, grant_id)


def covers(grant: Grant, question: Question, *, policy_hash: str) -> bool:
    """Tell whether an earlier answer is good for this call."""
    same = (
        grant.principal == question.principal
        and grant.agent_id == question.agent_id
        and grant.tool == question.tool.name
        and patterns.covers(grant.kind, question.effect)
        and grant.policy_hash == policy_hash
    )
    if not same or _is_over(grant, question.now):
        return False
    # What the person's own tools return is no reason to ask again about what was allowed for his own words.
    highest = labels.TOOL if grant.label == labels.OWNER else grant.label
    if not labels.reaches(highest, labels.least_trusted(question.labels)):
        return False
    match grant.scope:
        case Scope.ONCE:
            return False
        case Scope.SESSION:
            return grant.session_id == question.session_id
        case Scope.TIMEBOXED:
            return grant.expires_at is not None
        case Scope.ALWAYS:
            return True


def _lifted(grants: Sequence[Grant], question: Question, *, policy_hash: str) -> list[Grant]:
    """Return the grants as they hold in this session.

    Somebody who has allowed for a session what text of the web had a part in has been told so, and is not asked the
    same about each class of calls that he allows for this session. What he allowed for longer stays what it was.
    """
    here = [
        grant
        for grant in grants
        if grant.scope is Scope.SESSION
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


def beyond_manifest(manifest: Manifest, question: Question) -> str:
    """Return in what a call goes beyond a manifest, or nothing."""
    effect = question.effect
    if question.tool.name not in manifest.tools:
        return f"{manifest.name} may not call {question.tool.name}: its manifest does not list it."
    for host in effect.hosts:
        above = entities.domains_above(host)
        if above[0] not in manifest.hosts and not any(f"*.{name}" in manifest.hosts for name in above[1:]):
            return f"{manifest.name} may not reach {host}: its manifest does not list it."
    for path in effect.paths:
        if manifest.paths.isdisjoint(entities.folders_above(path)):
            return f"{manifest.name} may not touch {path}: it lies in no folder that its manifest lists."
    return ""


def _once(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
