"""Messages, runs and tapes, as the HTTP API takes and returns them."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Raw, Struct

from palyra.core.events import InputMode
from palyra.core.model.catalog import TaskClass
from palyra.core.run.record import RunRecord
from palyra.core.session import SessionRef


class MessageRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A message to the agent."""

    text: str
    session: SessionRef = SessionRef()
    mode: InputMode = InputMode.QUEUE
    idempotency_key: str | None = None
    model: str = ""
    """The model that must answer, as `PROVIDER` or `PROVIDER/MODEL`; the routing chooses if none is named."""
    task: TaskClass = TaskClass.INTERACTIVE
    """The task class, as routing rules name it."""


class CancelRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Why a run should stop."""

    reason: str = "cancelled by its owner"


class RunPage(Struct, frozen=True, kw_only=True):
    """Runs, the latest first."""

    runs: Sequence[RunRecord]
    next_cursor: str | None = None


class RunResponse(Struct, frozen=True, kw_only=True):
    """One run."""

    run: RunRecord


class TapeEntry(Struct, frozen=True, kw_only=True):
    """One entry of a session's tape."""

    session_id: str
    run_id: str | None
    tape_seq: int
    run_seq: int
    event: Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
    """What happened, with its `kind` and time, byte for byte as it is stored."""


class TapePage(Struct, frozen=True, kw_only=True):
    """Entries of a tape, and where to continue."""

    entries: Sequence[TapeEntry]
    next_after_seq: int | None = None
