"""Approvals and grants, as the HTTP API takes and returns them."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from palyra.core.policy.approval import Approval, ApprovalScope, Grant
from palyra.core.policy.effect import MAX_PATTERN_CHARS
from palyra.core.tool import JsonObject

MAX_TTL_SECONDS = 365 * 86400


class ApprovalAnswerRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The answer to an approval request."""

    decision: Literal["allow", "deny"]
    scope: ApprovalScope = ApprovalScope.ONCE
    ttl_seconds: Annotated[int, Meta(ge=1, le=MAX_TTL_SECONDS)] | None = None
    """For how long, if the scope is `timeboxed`."""
    reason: Annotated[str, Meta(max_length=500)] = ""
    """The text that the agent gets."""
    arguments: JsonObject | None = None
    """Other arguments than the agent proposed; the policies judge them again."""
    pattern: Annotated[str, Meta(max_length=MAX_PATTERN_CHARS)] = ""
    """The commands that a longer answer covers (`git push origin *`); without it, the exact command. Options can make a
    program run others: whatever matches runs without an approval."""


class ApprovalPage(Struct, frozen=True, kw_only=True):
    """Approvals, the latest first."""

    approvals: Sequence[Approval]
    next_cursor: str | None = None


class ApprovalResponse(Struct, frozen=True, kw_only=True):
    """One approval."""

    approval: Approval


class GrantPage(Struct, frozen=True, kw_only=True):
    """Grants: what was allowed beyond single calls, the latest first."""

    grants: Sequence[Grant]
    next_cursor: str | None = None


class GrantResponse(Struct, frozen=True, kw_only=True):
    """One grant."""

    grant: Grant
