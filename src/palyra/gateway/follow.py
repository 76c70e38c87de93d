"""A tape as the daemon tells it: what it holds now, and as it grows.

What grows comes as server-sent events, over as many connections as it takes. The daemon may be restarted while
somebody watches: the stream waits for it and goes on behind the last entry that was seen, so whoever reads gets every
entry once, in order.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from http.client import HTTPException, HTTPResponse

import msgspec
from msgspec import Struct

from palyra.core.errors import PalyraError
from palyra.core.events import TapeEvent
from palyra.gateway.client import (
    PATIENCE_SECONDS,
    AnswerUnreadable,
    Client,
    DaemonUnreachable,
    Patience,
    RemoteError,
)

SILENCE_SECONDS = 45.0
"""A living stream says something every 15 s."""
MAX_LINE_BYTES = 8 * 1024 * 1024

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
    """The entries of one tape, live. It may be closed from another thread."""

    def __init__(
        self,
        client: Client,
        path: str,
        *,
        after_seq: int = 0,
        run_id: str | None = None,
        lost: Callable[[], None] = lambda: None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """Follow `/runs/ID` up to the final entry of `run_id`, or `/sessions/ID` until it is closed.

        `lost` is called when the connection is gone, once for each time.
        """
        self.after_seq = after_seq
        self._client = client
        self._path = path
        self._run_id = run_id
        self._lost = lost
        self._patience = patience
        self._socket: socket.socket | None = None
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
                error: PalyraError = DaemonUnreachable("The daemon ended the stream.")
            except _NothingLeft:
                return
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
        if self._socket is not None:
            # Closing alone would not wake a thread that is reading.
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _connect(self) -> Iterator[Line]:
        """Yield what one connection brings."""
        connection, response = self._client.open(
            "GET", f"{self._path}/events", query={"after_seq": self.after_seq}, timeout=SILENCE_SECONDS
        )
        try:
            if response.status == 204:
                raise _NothingLeft
            self._socket = connection.sock
            for data in frames(response):
                line = read_line(data)
                if line.tape_seq > self.after_seq:
                    self.after_seq = line.tape_seq
                    yield line
        except (OSError, HTTPException, ValueError) as error:
            raise DaemonUnreachable("The connection to the daemon is lost.") from error
        finally:
            self._socket = None
            connection.close()


_envelope = msgspec.json.Decoder(_Envelope)
_stamp = msgspec.json.Decoder(_Stamp)
_event: msgspec.json.Decoder[TapeEvent] = msgspec.json.Decoder(TapeEvent)


class _NothingLeft(Exception):
    """The run is over and everything of it was seen."""


def follow_run(client: Client, run_id: str, *, after_seq: int = 0, lost: Callable[[], None] = lambda: None) -> Stream:
    """Return the run's entries, live, up to its final one."""
    return Stream(client, f"/runs/{run_id}", run_id=run_id, after_seq=after_seq, lost=lost)


def follow_session(
    client: Client, session_id: str, *, after_seq: int, lost: Callable[[], None] = lambda: None
) -> Stream:
    """Return the session's entries, live, until the stream is closed."""
    return Stream(client, f"/sessions/{session_id}", after_seq=after_seq, lost=lost)


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


def frames(response: HTTPResponse) -> Iterator[bytes]:
    """Yield the data of each event. Everything else in a frame repeats what the data says, or keeps the line alive."""
    data: list[bytes] = []
    while line := response.readline(MAX_LINE_BYTES):
        if len(line) == MAX_LINE_BYTES:
            raise AnswerUnreadable
        if line in (b"\n", b"\r\n"):
            if data:
                yield b"\n".join(data)
            data = []
        elif line.startswith(b"data:"):
            data.append(line[5:].strip())
