"""A tape as the daemon tells it: what it holds now, and as it grows.

What grows comes over gRPC, on as many connections as it takes. The daemon may be restarted while
somebody watches: the stream waits for it and goes on behind the last entry that was seen, so whoever reads gets every
entry once, in order.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from palyra.core.errors import PalyraError
from palyra.core.events import TapeEvent
from palyra.gateway.client import Client
from palyra.gateway.remote import PATIENCE_SECONDS, AnswerUnreadable, DaemonUnreachable, Patience, RemoteError

if TYPE_CHECKING:
    from palyra.gateway.grpc.calls import Attachment

FINAL = frozenset({"run_completed", "run_failed", "run_cancelled"})


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of a tape as it came from the daemon."""

    session_id: str
    run_id: str | None
    tape_seq: int
    run_seq: int
    kind: str
    at: datetime
    event: TapeEvent | None
    """None if this version does not know the kind: a newer daemon may tell of more."""
    text: str
    """The entry's JSON, byte for byte."""

    def ends(self, run_id: str | None) -> bool:
        """Tell whether nothing more can come of the run."""
        return self.kind in FINAL and self.run_id == run_id


class _Stamp(Struct):
    kind: str
    at: datetime


class _Envelope(Struct):
    session_id: str
    run_id: str | None
    tape_seq: int
    run_seq: int
    event: msgspec.Raw


class _Page(Struct):
    entries: tuple[msgspec.Raw, ...]
    next_after_seq: int | None = None


class Stream:
    """The entries of one tape, live. It may be closed from another thread, or by a signal."""

    def __init__(
        self,
        attach: "Callable[[int], Attachment]",
        *,
        after_seq: int = 0,
        run_id: str | None = None,
        lost: Callable[[], None] = lambda: None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """Follow what `attach` gives behind a position: up to the final entry of `run_id`, or until it is closed.

        `lost` is called when the connection is gone, once for each time.
        """
        self.after_seq = after_seq
        self._attach = attach
        self._run_id = run_id
        self._lost = lost
        self._patience = patience
        self._attached: Attachment | None = None
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[Line]:
        wait: Patience | None = None
        while not self._closed.is_set():
            try:
                for line in self._connect():
                    wait = None
                    yield line
                    if line.ends(self._run_id):
                        return
                if self._run_id is not None:
                    # The run is over and everything of it was seen.
                    return
                error: PalyraError = DaemonUnreachable("The daemon ended the stream.")
            except DaemonUnreachable as unreachable:
                error = unreachable
            except RemoteError as refused:
                # A daemon that starts, stops or has no stream to spare says so, and means "later".
                if refused.status not in (429, 503):
                    raise
                error = refused
            if self._closed.is_set():
                return
            if wait is None:
                self._lost()
                wait = Patience(self._patience)
            wait.after(error)

    def close(self) -> None:
        """End the stream."""
        self._closed.set()
        if (attached := self._attached) is not None:
            attached.close()

    def _connect(self) -> Iterator[Line]:
        """Yield what one connection brings."""
        self._attached = attached = self._attach(self.after_seq)
        try:
            if self._closed.is_set():
                # Closed a moment ago, by somebody who did not see this connection.
                attached.close()
            for text in attached:
                line = read_line(text.encode())
                if line.tape_seq > self.after_seq:
                    self.after_seq = line.tape_seq
                    yield line
        finally:
            self._attached = None
            attached.close()


_envelope = msgspec.json.Decoder(_Envelope)
_stamp = msgspec.json.Decoder(_Stamp)
_event: msgspec.json.Decoder[TapeEvent] = msgspec.json.Decoder(TapeEvent)


def follow_run(client: Client, run_id: str, *, after_seq: int = 0, lost: Callable[[], None] = lambda: None) -> Stream:
    """Return the run's entries, live, up to its final one."""
    return Stream(lambda seq: client.attach_run(run_id, after_seq=seq), run_id=run_id, after_seq=after_seq, lost=lost)


def follow_session(
    client: Client, session_id: str, *, after_seq: int, lost: Callable[[], None] = lambda: None
) -> Stream:
    """Return the session's entries, live, until the stream is closed."""
    return Stream(lambda seq: client.attach_session(session_id, after_seq=seq), after_seq=after_seq, lost=lost)


def read_tape(client: Client, path: str, *, after_seq: int = 0) -> Iterator[Line]:
    """Yield what the tape of `/runs/ID` or `/sessions/ID` holds now, page by page."""
    seq: int | None = after_seq
    while seq is not None:
        page = client.ask(_Page, "GET", f"{path}/tape", query={"after_seq": seq})
        yield from (read_line(bytes(raw)) for raw in page.entries)
        seq = page.next_after_seq


def read_line(raw: bytes) -> Line:
    """Read an entry's JSON."""
    try:
        envelope = _envelope.decode(raw)
        stamp = _stamp.decode(envelope.event)
    except msgspec.DecodeError as error:
        raise AnswerUnreadable from error
    try:
        event = _event.decode(envelope.event)
    except msgspec.ValidationError:
        event = None
    return Line(
        session_id=envelope.session_id,
        run_id=envelope.run_id,
        tape_seq=envelope.tape_seq,
        run_seq=envelope.run_seq,
        kind=stamp.kind,
        at=stamp.at,
        event=event,
        text=raw.decode(),
    )
