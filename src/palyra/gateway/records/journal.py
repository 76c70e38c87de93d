"""The journal as a whole, as the HTTP API takes and returns it."""

from collections.abc import Sequence

from msgspec import Struct

from palyra.core.ids import SessionId
from palyra.journal.proof.anchors import Anchor


class VerifyRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the journal is compared with."""

    anchor: Anchor | None = None
    """An anchor that was kept elsewhere; shows whether the journal was rolled back since."""


class VerificationProblem(Struct, frozen=True, kw_only=True):
    """Something that does not verify: where, and what."""

    session_id: SessionId | None
    tape_seq: int | None
    what: str


class VerificationResponse(Struct, frozen=True, kw_only=True):
    """What was verified, and what was wrong."""

    ok: bool
    sessions: int
    entries: int
    anchors: int
    after_anchor: int
    """Entries that no anchor covers yet."""
    rotated: int
    """Sessions whose tapes were moved to the archive."""
    attested: int
    """Executions of tools that are attested."""
    unattested: int
    """Executions from before there were attestations."""
    problem_count: int
    problems: Sequence[VerificationProblem]
    """The first thousand of them."""


class AnchorPage(Struct, frozen=True, kw_only=True):
    """Anchors, the latest first."""

    anchors: Sequence[Anchor]
    next_cursor: str | None = None
