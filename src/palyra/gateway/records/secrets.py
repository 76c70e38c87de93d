"""Secrets, as the HTTP API takes and returns them."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from palyra.core.secret import SealedRecord, SecretRecord, SecretScope


class ScopeRequest(SecretScope, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a secret may be used for; what is left out has its default."""


class SecretRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A secret to be stored."""

    value: str
    encoding: Literal["text", "base64"] = "text"
    """How the value is encoded; base64 for one that is not text."""
    scope: ScopeRequest = ScopeRequest()


class SecretPage(Struct, frozen=True, kw_only=True):
    """Secrets by name, without their values."""

    secrets: Sequence[SecretRecord]
    next_cursor: str | None = None


class SecretResponse(Struct, frozen=True, kw_only=True):
    """One secret, without its value."""

    secret: SecretRecord


class SealedSecretPage(Struct, frozen=True, kw_only=True):
    """Secrets that were found in texts, the latest first, without their values."""

    sealed: Sequence[SealedRecord]
    next_cursor: str | None = None


class RevealResponse(Struct, frozen=True, kw_only=True):
    """A value that a marker stands for."""

    value: str
