"""A tape as it grows, over connections that break."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial

import grpc
import pytest

from palyra.core.events import TapeEvent
from palyra.gateway.client.client import Client
from palyra.gateway.client.errors import DaemonResponseInvalid, DaemonUnreachable, RemoteError
from palyra.gateway.client.grpc_calls import GrpcCalls
from palyra.gateway.client.tape_stream import TapeStream, follow_run, follow_session, read_entry, read_tape
from palyra.gateway.client.target import DaemonTarget
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from tests.support import builders as b
from tests.support.builders import RUN, SESSION
from tests.unit.cli import door as doors
from tests.unit.cli.door import TOKEN, Answer, Door, Refusal, open_grpc
from tests.unit.cli.wire import entry, tape_entry

STORY: list[TapeEvent] = [b.an_accepted(), b.a_start(), b.a_turn_start(), b.a_text(), b.a_turn_end(), b.a_completion()]
ENTRIES = [tape_entry(seq, event) for seq, event in enumerate(STORY, 1)]
STOPPING = Refusal(grpc.StatusCode.UNAVAILABLE, "Stopping.", code="daemon_stopping", retry_after_ms=100)


def test_a_run_is_followed_to_its_end(client: Client, door: Door) -> None:
    door.streams("AttachRun", ENTRIES)
    lines = list(follow_run(client, RUN))
    assert lines[-1].kind == "run_completed"
    assert [line.text for line in lines] == [entry(seq, event) for seq, event in enumerate(STORY, 1)]


def test_a_lost_connection_leaves_no_gap_and_repeats_nothing(client: Client, door: Door) -> None:
    # The second connection begins too early, as a careless daemon might.
    door.streams("AttachRun", ENTRIES[:3], ENTRIES[1:5], ENTRIES[5:])
    lost: list[int] = []
    seqs = [line.tape_seq for line in follow_run(client, RUN, lost=lambda: lost.append(1))]
    assert seqs == [1, 2, 3, 4, 5, 6]
    assert [asked.after_seq for asked in door.called("AttachRun")] == [0, 3, 5]
    assert len(lost) == 2


def test_a_daemon_that_is_started_again_elsewhere_is_followed_there(door: Door) -> None:
    places: list[str] = []

    def find() -> DaemonTarget:
        return DaemonTarget(address=door.address, grpc=door.grpc, token=TOKEN)

    def restarting() -> Iterator[int]:
        """Follow over two lives of a server, the first of which ends in the middle of a stream."""
        stream = iter(follow_run(Client(find), RUN))
        door.tells("AttachRun", doors.Stream(ENTRIES[:2], stays=True))
        with open_grpc(door):
            places.append(door.grpc)
            yield from (next(stream).tape_seq for _ in range(2))
        door.tells("AttachRun", doors.Stream(ENTRIES[2:]))
        door.forget("AttachRun")
        with open_grpc(door):
            places.append(door.grpc)
            yield from (line.tape_seq for line in stream)

    assert list(restarting()) == [1, 2, 3, 4, 5, 6]
    assert [asked.after_seq for asked in door.called("AttachRun")] == [0, 2]
    assert places[0] != places[1]


def test_a_run_of_which_everything_was_seen_gives_nothing(client: Client, door: Door) -> None:
    door.tells("AttachRun", doors.Stream([]))
    assert list(follow_run(client, RUN, after_seq=6)) == []


@pytest.mark.parametrize(
    "end", [STOPPING, Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "Many.", "stream_limit_reached")]
)
def test_a_daemon_that_says_later_is_waited_for(client: Client, door: Door, end: Refusal) -> None:
    door.tells("AttachRun", end, doors.Stream(ENTRIES[:2], end), doors.Stream(ENTRIES[2:]))
    assert len(list(follow_run(client, RUN))) == 6


def test_a_refusal_ends_the_stream(client: Client, door: Door) -> None:
    door.tells("AttachRun", Refusal(grpc.StatusCode.INVALID_ARGUMENT, "Too far.", code="position_beyond_end"))
    with pytest.raises(RemoteError, match="Too far") as caught:
        list(follow_run(client, RUN, after_seq=99))
    assert caught.value.code == "position_beyond_end"


def test_a_daemon_that_stays_away_is_given_up(client: Client, door: Door) -> None:
    door.streams("AttachRun", ENTRIES[:2], cut=True)
    stream = TapeStream(lambda seq: client.attach_run(RUN, after_seq=seq), run_id=RUN, timeout=0.3)
    with pytest.raises(DaemonUnreachable):
        list(stream)
    assert stream.after_seq == 2


def test_an_entry_that_makes_no_sense_ends_the_stream(client: Client, door: Door) -> None:
    door.tells("AttachRun", doors.Stream([pb.TapeEntry(session_id=SESSION, tape_seq=1, event=b"\xff")]))
    with pytest.raises(DaemonResponseInvalid):
        list(follow_run(client, RUN))


def test_a_stream_can_be_closed_from_another_thread(client: Client, door: Door) -> None:
    door.tells("AttachSession", doors.Stream(ENTRIES, stays=True))
    stream = follow_session(client, SESSION, after_seq=0)
    seen: list[int] = []
    all_there = threading.Event()

    def follow() -> None:
        for line in stream:
            seen.append(line.tape_seq)
            if len(seen) == 6:
                all_there.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert all_there.wait(60)
    stream.close()
    thread.join(60)
    assert not thread.is_alive()
    assert len(seen) == 6
    assert len(door.called("AttachSession")) == 1


def test_a_stream_that_was_closed_before_it_began_gives_nothing(client: Client, door: Door) -> None:
    stream = follow_session(client, SESSION, after_seq=0)
    stream.close()
    assert list(stream) == []


def test_a_signal_may_close_the_stream_that_it_interrupts(client: Client, door: Door) -> None:
    door.tells("AttachSession", doors.Stream(ENTRIES, stays=True))
    stream = follow_session(client, SESSION, after_seq=0)
    before = signal.signal(signal.SIGUSR1, lambda *_: stream.close())
    told = threading.Event()

    def interrupt() -> None:
        assert told.wait(60)
        os.kill(os.getpid(), signal.SIGUSR1)

    sender = threading.Thread(target=interrupt)
    sender.start()
    try:
        for line in stream:
            if line.tape_seq == 6:
                told.set()
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert stream.after_seq == 6


def test_a_daemon_that_never_speaks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palyra.gateway.client.grpc_channel.CONNECT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        client = Client(lambda: DaemonTarget(address=f"http://{at}", grpc=at, token=TOKEN))
        stream = TapeStream(lambda seq: client.attach_run(RUN, after_seq=seq), run_id=RUN, timeout=0)
        with pytest.raises(DaemonUnreachable, match="does not answer"):
            list(stream)


FROZEN = """
import sys
from tests.support import builders as b
from tests.unit.cli.door import Door, Stream, open_grpc
from tests.unit.cli.wire import tape_entry

door = Door()
door.tells("AttachRun", Stream([tape_entry(1, b.an_accepted())], stays=True))
with open_grpc(door):
    print(door.grpc, flush=True)
    sys.stdin.read()
"""


def test_a_daemon_that_freezes_is_noticed() -> None:
    child = subprocess.Popen([sys.executable, "-c", FROZEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        target = DaemonTarget(address="http://127.0.0.1:1", grpc=child.stdout.readline().strip(), token=TOKEN)
        entries = iter(GrpcCalls(lambda: target, seconds=5, timeout=0).attach_run(RUN, after_seq=0, keepalive=0.5))
        assert next(entries)
        child.send_signal(signal.SIGSTOP)
        with pytest.raises(DaemonUnreachable, match="ping timeout"):
            next(entries)
    finally:
        child.kill()
        child.communicate()


def test_a_tape_is_read_page_by_page(client: Client, door: Door) -> None:
    first = f'{{"entries":[{entry(1, STORY[0])},{entry(2, STORY[1])}],"next_after_seq":2}}'
    second = f'{{"entries":[{entry(3, STORY[2])}],"next_after_seq":null}}'
    door.says("GET", f"/runs/{RUN}/tape", Answer(first.encode()), Answer(second.encode()))
    assert [line.tape_seq for line in read_tape(partial(client.run_tape, RUN))] == [1, 2, 3]
    assert [seen.query["after_seq"] for seen in door.seen] == ["0", "2"]


def test_an_entry_is_kept_byte_for_byte() -> None:
    text = entry(4, b.a_text(text="Grüße \u2028 \x85"))
    assert read_entry(text.encode()).text == text


def test_a_kind_of_a_newer_daemon_is_no_error() -> None:
    raw = (
        b'{"session_id":"s","run_id":null,"tape_seq":1,"run_seq":0,"event":{"kind":"new","at":"2026-01-02T03:04:05Z"}}'
    )
    line = read_entry(raw)
    assert (line.kind, line.event) == ("new", None)


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"event":{}}', b"\xff"])
def test_what_is_no_entry_is_told(raw: bytes) -> None:
    with pytest.raises(DaemonResponseInvalid):
        read_entry(raw)
