"""Attestations: signed statements of the daemon about single executions of tools.

A statement can be verified on its own. With it and the public key anyone can check who requested which call, with which
arguments, under which policy and in which sandbox, and what the result was; neither a journal nor Palyra is needed.
Arguments and results are named by their digests only.
"""

import hashlib
from datetime import datetime

import msgspec
from msgspec import Struct, field

from palyra.core.ids import AgentId, CallId, PrincipalId, RunId, SessionId
from palyra.core.tool import CallOutcome, CallRuntime

FORMAT = 1

_in_order = msgspec.json.Encoder(order="sorted")
_encoder = msgspec.json.Encoder()


class Attestation(Struct, frozen=True, kw_only=True):
    """A statement, byte for byte as it was signed, and the key that signed it."""

    statement: str
    signature: str
    public_key: str


class ProgramRun(Struct, frozen=True, kw_only=True):
    """A program that a call ran: its sandbox, and how it ended."""

    tier: str
    limits: dict[str, int]
    """The resource limits that applied."""
    exit_code: int | None = None
    """None if it was killed before it could exit."""
    stopped: str = ""
    """Why it was killed, if it was."""


class FullResult(Struct, frozen=True, kw_only=True):
    """A result that is longer than the text the model got: where it is stored, and its digest."""

    artifact_id: str
    digest: str
    size: int


class Statement(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the daemon states about an execution. Every digest is the SHA-256 of UTF-8 text, in hexadecimal."""

    attestation: int = FORMAT
    """The format. It comes first, so that a statement cannot be mistaken for other data signed with the key."""
    principal: PrincipalId
    agent_id: AgentId
    session_id: SessionId
    run_id: RunId
    call_id: CallId
    tool: str
    runtime: CallRuntime
    spec: str
    """The digest of the tool's name, description, parameters and risk; empty if the tool no longer existed."""
    arguments: str
    """The digest of the arguments that were decided on, as JSON without whitespace and with sorted keys."""
    policy_hash: str
    approval_id: str | None
    """The approval that let it run."""
    grant_id: str | None
    """The grant (an earlier approval) that let it run."""
    attempt: int
    started_at: datetime
    finished_at: datetime
    outcome: CallOutcome
    programs: tuple[ProgramRun, ...] = field(name="ran")
    """The programs that it ran, in order; empty if the daemon did the work itself."""
    result: str
    """The digest of the text that the model got."""
    full_result: FullResult | None = field(name="whole")
    """The full result, if that text is only a part of it."""


_decoder = msgspec.json.Decoder(Statement)


def write(statement: Statement) -> str:
    """Return the text of a statement that is signed."""
    return _encoder.encode(statement).decode()


def read(text: str) -> Statement:
    """Parse a signed text; raise `msgspec.DecodeError` if it is not a statement."""
    return _decoder.decode(text)


def digest_of_text(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of_json(value: object) -> str:
    """Return the digest of a value as JSON; the order of its keys does not matter."""
    return hashlib.sha256(_in_order.encode(value)).hexdigest()
