"""Reads a tape from the daemon: the entries it holds now, and new ones as they are written.

New entries come over gRPC, with as many reconnects as needed. The daemon may be restarted while a client follows: the
stream waits for it and continues after the last entry seen, so the reader gets every entry once, in order.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from palyra.core.errors import PalyraError
from palyra.core.events import FINAL_KINDS, TapeEvent
from palyra.gateway.client.client import Client
from palyra.gateway.client.errors import (
    CONNECT_TIMEOUT_SECONDS,
    DaemonResponseInvalid,
    DaemonUnreachable,
    RemoteError,
    RetryDeadline,
)
from palyra.gateway.records.runs import TapeEntry, TapePage

if TYPE_CHECKING:
    from palyra.gateway.client.grpc_calls import EntryStream


@dataclass(frozen=True, slots=True)
class ReceivedEntry:
    """One entry of a tape, as the daemon sent it."""

    session_id: str
    run_id: str | None
    tape_seq: int
    run_seq: int
    kind: str
    at: datetime
    event: TapeEvent | None
    """None if this version does not know the kind: a newer daemon may send more kinds."""
    text: str
    """The entry's JSON, byte for byte."""

    def ends(self, run_id: str | None) -> bool:
        """Whether this entry is the final one of its run."""
        return self.kind in FINAL_KINDS and self.run_id == run_id


class _Stamp(Struct):
    kind: str
    at: datetime


class TapeStream:
    """The entries of one tape, live. It may be closed from another thread, or by a signal."""

    def __init__(
        self,
        attach: "Callable[[int], EntryStream]",
        *,
        after_seq: int = 0,
        run_id: str | None = None,
        lost: Callable[[], None] = lambda: None,
        timeout: float = CONNECT_TIMEOUT_SECONDS,
    ) -> None:
        """Follow what `attach` returns after a position: up to the final entry of `run_id`, or until it is closed.

        `lost` is called once each time the connection is lost.
        """
        self.after_seq = after_seq
        self._attach = attach
        self._run_id = run_id
        self._lost = lost
        self._timeout = timeout
        self._attached: EntryStream | None = None
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[ReceivedEntry]:
        wait: RetryDeadline | None = None
        while not self._closed.is_set():
            try:
                for line in self._connect():
                    wait = None
                    yield line
                    if line.ends(self._run_id):
                        return
                if self._run_id is not None:
                    # The run is over and all of its entries were seen.
                    return
                error: PalyraError = DaemonUnreachable("The daemon ended the stream.")
            except DaemonUnreachable as unreachable:
                error = unreachable
            except RemoteError as refused:
                # A daemon that is starting, stopping or out of streams reports it, which means "retry later".
                if refused.status not in (429, 503):
                    raise
                error = refused
            if self._closed.is_set():
                return
            if wait is None:
                self._lost()
                wait = RetryDeadline(self._timeout)
            wait.after(error)

    def close(self) -> None:
        """End the stream."""
        self._closed.set()
        if (attached := self._attached) is not None:
            attached.close()

    def _connect(self) -> Iterator[ReceivedEntry]:
        """Yield the entries of one connection."""
        self._attached = attached = self._attach(self.after_seq)
        try:
            if self._closed.is_set():
                # Another thread closed the stream just now and did not see this connection.
                attached.close()
            for text in attached:
                line = read_entry(text.encode())
                if line.tape_seq > self.after_seq:
                    self.after_seq = line.tape_seq
                    yield line
        finally:
            self._attached = None
            attached.close()


_entry = msgspec.json.Decoder(TapeEntry)
_stamp = msgspec.json.Decoder(_Stamp)
_event: msgspec.json.Decoder[TapeEvent] = msgspec.json.Decoder(TapeEvent)


def follow_run(
    client: Client, run_id: str, *, after_seq: int = 0, lost: Callable[[], None] = lambda: None
) -> TapeStream:
    """Return the run's entries, live, up to its final one."""
    return TapeStream(
        lambda seq: client.attach_run(run_id, after_seq=seq), run_id=run_id, after_seq=after_seq, lost=lost
    )


def follow_session(
    client: Client, session_id: str, *, after_seq: int, lost: Callable[[], None] = lambda: None
) -> TapeStream:
    """Return the session's entries, live, until the stream is closed."""
    return TapeStream(lambda seq: client.attach_session(session_id, after_seq=seq), after_seq=after_seq, lost=lost)


def read_tape(read_page: Callable[[int], TapePage], *, after_seq: int = 0) -> Iterator[ReceivedEntry]:
    """Yield what a tape holds now; `read_page` returns its page after a position."""
    seq: int | None = after_seq
    while seq is not None:
        page = read_page(seq)
        yield from map(_received, page.entries)
        seq = page.next_after_seq


def read_entry(raw: bytes) -> ReceivedEntry:
    """Decode an entry's JSON."""
    try:
        return _received(_entry.decode(raw))
    except msgspec.DecodeError as error:
        raise DaemonResponseInvalid from error


def _received(entry: TapeEntry) -> ReceivedEntry:
    try:
        stamp = _stamp.decode(entry.event)
    except msgspec.DecodeError as error:
        raise DaemonResponseInvalid from error
    try:
        event = _event.decode(entry.event)
    except msgspec.ValidationError:
        event = None
    return ReceivedEntry(
        session_id=entry.session_id,
        run_id=entry.run_id,
        tape_seq=entry.tape_seq,
        run_seq=entry.run_seq,
        kind=stamp.kind,
        at=stamp.at,
        event=event,
        text=msgspec.json.encode(entry).decode(),
    )
