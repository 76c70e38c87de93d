"""Attestations: what the daemon states about one execution of a tool, and its signature under that.

A statement stands for itself. Whoever has it and the public key can check who had what done, with which arguments,
under which policy and in which sandbox, and what came of it, without a journal and without Palyra. Arguments and
results are named by their digests only.
"""

import hashlib
from datetime import datetime

import msgspec
from msgspec import Struct

from palyra.core.ids import AgentId, CallId, PrincipalId, RunId, SessionId
from palyra.core.tool import Outcome, Runtime

FORMAT = 1

_in_order = msgspec.json.Encoder(order="sorted")
_encoder = msgspec.json.Encoder()


class Attestation(Struct, frozen=True, kw_only=True):
    """A statement byte for byte as it was signed, and by which key."""

    statement: str
    signature: str
    public_key: str


class Ran(Struct, frozen=True, kw_only=True):
    """A program that a call had run: how it was held, and how it ended."""

    tier: str
    limits: dict[str, int]
    """What it could not take more of."""
    exit_code: int | None = None
    """None if it was ended before it could tell."""
    stopped: str = ""
    """Why it was ended before its time, if it was."""


class Whole(Struct, frozen=True, kw_only=True):
    """A result that is longer than the text which the model was given: where it is kept, and what it is."""

    artifact_id: str
    digest: str
    size: int


class Statement(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the daemon states about an execution. Every digest is the SHA-256 of UTF-8 text, in hexadecimal."""

    attestation: int = FORMAT
    """The format. It comes first, so that no statement passes for anything else that is signed with the key."""
    principal: PrincipalId
    agent_id: AgentId
    session_id: SessionId
    run_id: RunId
    call_id: CallId
    tool: str
    runtime: Runtime
    spec: str
    """The digest of the tool's name, description, parameters and risk; empty if the tool was gone by then."""
    arguments: str
    """The digest of the arguments as they were decided on: as JSON without blanks, keys in order."""
    policy_hash: str
    approval_id: str | None
    """The question to a person whose answer let it run."""
    grant_id: str | None
    """The earlier answer that let it run."""
    attempt: int
    started_at: datetime
    finished_at: datetime
    outcome: Outcome
    ran: tuple[Ran, ...]
    """The programs that it had run, in order; none where the daemon did the work itself."""
    result: str
    """The digest of the text that the model was given."""
    whole: Whole | None
    """The whole of the result, if that text is only a part."""


_decoder = msgspec.json.Decoder(Statement)


def write(statement: Statement) -> str:
    """Return the statement as it is signed."""
    return _encoder.encode(statement).decode()


def read(text: str) -> Statement:
    """Return what a signed text states; `msgspec.DecodeError` if it is no statement."""
    return _decoder.decode(text)


def digest_of_text(text: str) -> str:
    """Return the digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of_json(value: object) -> str:
    """Return the digest of a value as JSON, whatever the order of its keys."""
    return hashlib.sha256(_in_order.encode(value)).hexdigest()
