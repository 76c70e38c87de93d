"""Builders for questions and grants: each says what the test cares about, and fills in the rest."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from palyra.core.ids import AgentId, PrincipalId, SessionId
from palyra.core.policy.approval import ApprovalScope, Grant
from palyra.core.policy.effect import Effect
from palyra.core.policy.manifest import CapabilityManifest
from palyra.core.tool import Risk, ToolSpec
from palyra.home import Home
from palyra.policy.cedar_source import split
from palyra.policy.gate import Gate
from palyra.policy.loader import combine
from palyra.policy.query import PolicyQuery

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OWNER = PrincipalId("owner")
AGENT = AgentId("agent-1")
SESSION = SessionId("session-1")


def a_question(
    risk: Risk = Risk.MEDIUM,
    *,
    tool: str = "files.write",
    read_only: bool = False,
    paths: tuple[str, ...] = (),
    hosts: tuple[str, ...] = (),
    command: str = "",
    kind: str = "folder:/home/ana/notes",
    labels: tuple[str, ...] = ("owner",),
    channels: tuple[str, ...] = ("grpc",),
    approver_reachable: bool = True,
    principal: PrincipalId = OWNER,
    agent_id: AgentId = AGENT,
    session_id: SessionId = SESSION,
    now: datetime = NOW,
    manifest: CapabilityManifest | None = None,
) -> PolicyQuery:
    spec = ToolSpec(name=tool, description="", parameters={}, read_only=read_only)
    effect = Effect(risk=risk, summary=tool, paths=paths, hosts=hosts, command=command, kind=kind)
    return PolicyQuery(
        principal, agent_id, session_id, spec, effect, labels, channels, approver_reachable, now, manifest
    )


def a_grant(
    *,
    policy_hash: str,
    scope: ApprovalScope = ApprovalScope.ALWAYS,
    label: str = "owner",
    tool: str = "files.write",
    kind: str = "folder:/home/ana/notes",
    principal: PrincipalId = OWNER,
    agent_id: AgentId = AGENT,
    session_id: SessionId | None = SESSION,
    expires_at: datetime | None = None,
    revoked_at: datetime | None = None,
) -> Grant:
    return Grant(
        grant_id="grant-1",
        principal=principal,
        agent_id=agent_id,
        tool=tool,
        kind=kind,
        policy_hash=policy_hash,
        label=label,
        scope=scope,
        session_id=session_id,
        granted_at=NOW - timedelta(hours=1),
        expires_at=expires_at,
        revoked_at=revoked_at,
    )


def a_gate(text: str = "") -> Gate:
    """Return a gate of the shipped policies with these on top."""
    return Gate(combine(split(text, "test.cedar")))


def write_policy(home: Home, text: str, name: str = "mine.cedar") -> Path:
    home.policy.mkdir(parents=True, exist_ok=True)
    path = home.policy / name
    path.write_text(text)
    return path
