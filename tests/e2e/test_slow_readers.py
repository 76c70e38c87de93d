"""Readers that do not read: they hold up nobody, cost little, are cut off in time, and come back without a gap."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest

from palyra.gateway.grpc.pb import gateway_pb2 as pb
from tests.e2e.conftest import NewDaemon
from tests.support.daemon import FINAL, Daemon, Line, Watcher, line_of, read_events, until

MEBIBYTE = 1024 * 1024
TEXT_BYTES = 1_000_000
MUCH = {"default": [{"do": "text", "text": "x" * TEXT_BYTES, "chunk": 10_000}]}
RUNS = 14
"""More than the kernel's buffers on the way to a reader hold."""
READERS = 24
HELD_EACH = 4 * MEBIBYTE
"""What may wait in the daemon for one reader: a page of the tape (2 MiB), and that page as it goes over the wire."""
HELD_ALWAYS = 48 * MEBIBYTE
"""What the daemon needs for so many runs without any slow reader: the latest entries and the model's prompts."""
SERVICE = pb.DESCRIPTOR.services_by_name["GatewayService"].full_name


class Unread:
    """A stream of server-sent events of which only the head is read, until it is asked for the rest."""

    def __init__(self, daemon: Daemon, session_id: str) -> None:
        at = urlsplit(daemon.address)
        assert at.hostname is not None
        assert at.port is not None
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.settimeout(10)
        self._socket.connect((at.hostname, at.port))
        head = (
            f"GET /console/v1/sessions/{session_id}/events HTTP/1.1",
            f"host: {at.netloc}",
            f"authorization: Bearer {daemon.token}",
        )
        self._socket.sendall("\r\n".join((*head, "", "")).encode())
        got = b""
        while b"\r\n\r\n" not in got:
            got += self._socket.recv(256)
        status, _, first = got.partition(b"\r\n\r\n")
        assert status.startswith(b"HTTP/1.1 200")
        self._body = Chunked(first)

    def close(self) -> None:
        self._socket.close()

    def until_cut_off(self) -> list[Line]:
        """Read what was under way to the end of the connection, which is no clean one; return the whole events."""
        while self._read():
            pass
        assert not self._body.over, "the stream ended as if there were nothing more"
        whole, _, _ = bytes(self._body.data).rpartition(b"\n\n")
        return list(read_events(iter([*whole.decode().split("\n"), ""])))

    def events(self, number: int) -> list[Line]:
        """Read so many events."""
        found = looked_to = 0
        while found < number:
            assert self._read(), "the stream ended"
            found += self._body.data.count(b"\n\n", looked_to)
            looked_to = max(looked_to, len(self._body.data) - 1)
        return list(read_events(iter(self._body.data.decode().split("\n"))))[:number]

    def _read(self) -> bytes:
        data = self._socket.recv(MEBIBYTE)
        self._body.feed(data)
        return data


class Chunked:
    """The body of an answer that comes in chunks."""

    def __init__(self, first: bytes) -> None:
        self.data = bytearray()
        self.over = False
        self._raw = bytearray()
        self._left = 0
        self.feed(first)

    def feed(self, raw: bytes) -> None:
        self._raw += raw
        while self._raw and not self.over:
            if self._left:
                piece = self._raw[: self._left]
                self.data += piece
                self._left -= len(piece)
                del self._raw[: len(piece)]
                continue
            line, found, rest = self._raw.partition(b"\r\n")
            if not found:
                return
            self._raw = rest
            if line:
                self._left = int(line, 16)
                self.over = self._left == 0


def test_an_http_stream_that_is_not_read_holds_up_nobody(new_daemon: NewDaemon) -> None:
    daemon = new_daemon(MUCH, gateway_write_timeout_seconds=600).start()
    session_id = first_session(daemon)
    with closing(Unread(daemon, session_id)) as slow:
        watcher = Watcher(daemon, session_id)
        for _ in range(RUNS):
            run = write(daemon)
            watcher.follow(lambda line, run=run: line.kind in FINAL and line.run_id == run)  # type: ignore[misc]
        # One saw everything while the other was held up all the time; nothing is lost for that one either.
        tape = daemon.tape(f"/sessions/{session_id}")
        assert [line.text for line in watcher.lines] == [line.text for line in tape[: watcher.last]]
        assert [line.text for line in slow.events(len(tape))] == [line.text for line in tape]
    assert cut_off(daemon) == 0


def test_http_streams_that_are_not_read_are_cut_off_cost_little_and_resume(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(MUCH, gateway_write_timeout_seconds=1).start()
    session_id = first_session(daemon)
    before = resident(daemon)
    with ExitStack() as stack:
        slow = [stack.enter_context(closing(Unread(daemon, session_id))) for _ in range(READERS)]
        for _ in range(RUNS):
            write(daemon)
        grown = resident(daemon) - before
        assert grown < HELD_ALWAYS + READERS * HELD_EACH < READERS * RUNS * TEXT_BYTES
        until(lambda: cut_off(daemon) == READERS)
        tape = daemon.tape(f"/sessions/{session_id}")
        for reader in slow[:2]:
            seen = reader.until_cut_off()
            assert 0 < len(seen) < len(tape)
            with closing(daemon.events(f"/sessions/{session_id}", after=seen[-1].seq)) as stream:
                seen += [next(stream) for _ in tape[len(seen) :]]
            assert [line.text for line in seen] == [line.text for line in tape]
    assert [line for line in daemon.log() if line["level"] in ("error", "warning")] == []


def test_a_response_that_is_not_read_is_cut_off_as_well(new_sqlite_daemon: NewDaemon) -> None:
    """Its stream ends with the run: nothing more would be sent, and the connection would stay for ever."""
    daemon = new_sqlite_daemon(MUCH, gateway_write_timeout_seconds=1).start()
    session_id = first_session(daemon)
    for _ in range(RUNS):
        write(daemon)
    with closing(Unread(daemon, session_id)):
        until(lambda: cut_off(daemon) == 1)
        until(lambda: "palyra_sessions_followed 0" in daemon.metrics())


def test_grpc_streams_that_are_not_read_are_cut_off_cost_little_and_resume(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(MUCH, gateway_write_timeout_seconds=1).start()
    session_id = first_session(daemon)
    before = resident(daemon)
    with ExitStack() as stack:
        slow = [stack.enter_context(attached(daemon, session_id)) for _ in range(READERS)]
        seen = [batch_of(stream) for stream in slow]
        watcher = Watcher(daemon, session_id)
        for _ in range(RUNS):
            run = write(daemon)
            watcher.follow(lambda line, run=run: line.kind in FINAL and line.run_id == run)  # type: ignore[misc]
        grown = resident(daemon) - before
        assert grown < HELD_ALWAYS + READERS * HELD_EACH < READERS * RUNS * TEXT_BYTES
        until(lambda: cut_off(daemon) == READERS)
        tape = daemon.tape(f"/sessions/{session_id}")
        for stream, got in zip(slow[:2], seen[:2], strict=True):
            assert read_on(stream, got) == (grpc.StatusCode.UNAVAILABLE, "stream_reader_timeout")
            assert 0 < len(got) < len(tape)
            with attached(daemon, session_id, after=got[-1].seq) as again:
                while len(got) < len(tape):
                    got += batch_of(again)
            assert [line.text for line in got] == [line.text for line in tape]
    assert [line for line in daemon.log() if line["level"] in ("error", "warning")] == []


def test_a_grpc_stream_that_is_not_read_keeps_its_place_until_it_is_dropped(new_sqlite_daemon: NewDaemon) -> None:
    """What was last written waits in the daemon until then; without this, there could be any number of them."""
    daemon = new_sqlite_daemon(MUCH, gateway_write_timeout_seconds=1, gateway_max_streams_per_token=3).start()
    session_id = first_session(daemon)
    for _ in range(RUNS):
        write(daemon)
    with ExitStack() as stack:
        slow = [stack.enter_context(attached(daemon, session_id)) for _ in range(3)]
        until(lambda: cut_off(daemon) == 3)
        with attached(daemon, session_id) as one_more, pytest.raises(grpc.RpcError) as caught:
            batch_of(one_more)
        assert refusal(caught.value) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "stream_limit_reached")

        slow[0].close()

        def come_in() -> list[Line] | None:
            try:
                with attached(daemon, session_id) as stream:
                    return batch_of(stream)
            except grpc.RpcError:
                return None

        assert until(come_in)[0].seq == 1


# -- what the tests need


class Attached:
    """A session's stream over gRPC, on a connection of its own."""

    def __init__(self, daemon: Daemon, session_id: str, *, after: int) -> None:
        # A client takes in ahead of its reader what it thinks the line can hold; this one keeps to little.
        options = (
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", 65536),
            ("grpc.use_local_subchannel_pool", 1),
        )
        self._channel = grpc.insecure_channel(json.loads(daemon.home.daemon.read_text())["grpc"], options)
        attach = self._channel.unary_stream(
            f"/{SERVICE}/AttachSession",
            request_serializer=pb.AttachSessionRequest.SerializeToString,
            response_deserializer=pb.TapeBatch.FromString,
        )
        metadata = (("authorization", f"Bearer {daemon.token}"),)
        request = pb.AttachSessionRequest(session_id=session_id, after_seq=after)
        self.batches: Iterator[Any] = attach(request, metadata=metadata, timeout=120)

    def __enter__(self) -> "Attached":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()


def attached(daemon: Daemon, session_id: str, *, after: int = 0) -> Attached:
    return Attached(daemon, session_id, after=after)


def batch_of(stream: Attached) -> list[Line]:
    """Read one batch, with its entries as HTTP shows them."""
    return [
        line_of(
            f'{{"session_id":"{entry.session_id}","run_id":{json.dumps(entry.run_id or None)},'
            f'"tape_seq":{entry.tape_seq},"run_seq":{entry.run_seq},"event":{entry.event.decode()}}}'
        )
        for entry in next(stream.batches).entries
    ]


def read_on(stream: Attached, lines: list[Line]) -> tuple[grpc.StatusCode, str]:
    """Read to the end of the stream, and return with which status and code it ends."""
    try:
        while True:
            lines += batch_of(stream)
    except grpc.RpcError as error:
        return refusal(error)


def refusal(error: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    call: Any = error
    return call.code(), dict(call.trailing_metadata() or ()).get("palyra-error-code", "")


def first_session(daemon: Daemon) -> str:
    sent = daemon.send("go", session={"key": "one"})
    daemon.finished(sent["run_id"])
    return str(sent["session_id"])


def write(daemon: Daemon) -> str:
    """Have the model say a great deal in the session that all follow."""
    run_id = str(daemon.send("go on", session={"key": "one"})["run_id"])
    assert daemon.finished(run_id)["status"] == "done"
    return run_id


def cut_off(daemon: Daemon) -> int:
    """How many readers were cut off."""
    return daemon.home.log.read_text().count("did not read")


def resident(daemon: Daemon) -> int:
    """How much memory the daemon has."""
    pages = int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[1])
    return pages * 4096
