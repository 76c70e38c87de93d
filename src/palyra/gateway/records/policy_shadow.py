"""The shadow policy, as the HTTP API takes and returns it."""

from typing import Annotated

from msgspec import Meta, Struct

from palyra.core.policy.policy_shadow import MAX_POLICY_FILES, PolicyFile, ShadowPolicy


class ShadowPolicyRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The policy files that replace the home's own."""

    files: Annotated[tuple[PolicyFile, ...], Meta(min_length=1, max_length=MAX_POLICY_FILES)]


class ShadowPolicyResponse(Struct, frozen=True, kw_only=True):
    """The candidate that judges now, or did last."""

    shadow: ShadowPolicy
