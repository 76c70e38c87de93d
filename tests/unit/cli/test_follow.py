"""A tape as it grows, over connections that break."""

import threading

import pytest

from palyra.core.events import TapeEvent
from palyra.gateway.client import AnswerUnreadable, Client, DaemonUnreachable, RemoteError
from palyra.gateway.follow import Stream, follow_run, follow_session, read_line, read_tape
from tests.support import builders as b
from tests.support.builders import RUN, SESSION
from tests.unit.cli.door import Answer, Door, entry, frame, problem

EVENTS = f"/runs/{RUN}/events"
STORY: list[TapeEvent] = [b.an_accepted(), b.a_start(), b.a_turn_start(), b.a_text(), b.a_turn_end(), b.a_completion()]
FRAMES = [frame(seq, event) for seq, event in enumerate(STORY, 1)]


def test_a_run_is_followed_to_its_end(client: Client, door: Door) -> None:
    door.streams(EVENTS, [": still here\n\n", *FRAMES])
    assert [line.kind for line in follow_run(client, RUN)][-1] == "run_completed"


def test_a_lost_connection_leaves_no_gap_and_repeats_nothing(client: Client, door: Door) -> None:
    # The second connection begins too early, as a careless daemon might.
    door.streams(EVENTS, FRAMES[:3], FRAMES[1:5], FRAMES[5:])
    lost: list[int] = []
    seqs = [line.tape_seq for line in follow_run(client, RUN, lost=lambda: lost.append(1))]
    assert seqs == [1, 2, 3, 4, 5, 6]
    assert [seen.query["after_seq"] for seen in door.asked("GET", EVENTS)] == ["0", "3", "5"]
    assert len(lost) == 2


def test_a_frame_that_was_cut_off_is_read_again(client: Client, door: Door) -> None:
    half = FRAMES[1][: len(FRAMES[1]) // 2]
    door.streams(EVENTS, [FRAMES[0], half], FRAMES[1:])
    assert [line.tape_seq for line in follow_run(client, RUN)] == [1, 2, 3, 4, 5, 6]


def test_a_run_of_which_everything_was_seen_gives_nothing(client: Client, door: Door) -> None:
    door.says("GET", EVENTS, Answer(b"", 204))
    assert list(follow_run(client, RUN, after_seq=6)) == []


def test_a_daemon_that_is_starting_is_waited_for(client: Client, door: Door) -> None:
    door.says("GET", EVENTS, problem("engine_closed", "Stopping.", status=503))
    door.streams(EVENTS, FRAMES)
    assert len(list(follow_run(client, RUN))) == 6


def test_a_refusal_ends_the_stream(client: Client, door: Door) -> None:
    door.says("GET", EVENTS, problem("position_beyond_end", "Too far.", status=400))
    with pytest.raises(RemoteError, match="Too far"):
        list(follow_run(client, RUN, after_seq=99))


def test_a_daemon_that_stays_away_is_given_up(client: Client, door: Door) -> None:
    door.streams(EVENTS, FRAMES[:2], cut=True)
    stream = Stream(client, f"/runs/{RUN}", run_id=RUN, patience=0.3)
    with pytest.raises(DaemonUnreachable):
        list(stream)
    assert stream.after_seq == 2


def test_a_stream_can_be_closed_from_another_thread(client: Client, door: Door) -> None:
    door.streams(f"/sessions/{SESSION}/events", FRAMES)
    stream = follow_session(client, SESSION, after_seq=0)
    seen: list[int] = []

    def follow() -> None:
        for line in stream:
            seen.append(line.tape_seq)
            if len(seen) == 6:
                stream.close()

    thread = threading.Thread(target=follow)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()
    assert len(seen) == 6


def test_a_tape_is_read_page_by_page(client: Client, door: Door) -> None:
    first = f'{{"entries":[{entry(1, STORY[0])},{entry(2, STORY[1])}],"next_after_seq":2}}'
    second = f'{{"entries":[{entry(3, STORY[2])}],"next_after_seq":null}}'
    door.says("GET", f"/runs/{RUN}/tape", Answer(first.encode()), Answer(second.encode()))
    assert [line.tape_seq for line in read_tape(client, f"/runs/{RUN}")] == [1, 2, 3]
    assert [seen.query["after_seq"] for seen in door.seen] == ["0", "2"]


def test_an_entry_is_kept_byte_for_byte() -> None:
    text = entry(4, b.a_text(text="Grüße \u2028 \x85"))
    assert read_line(text.encode()).text == text


def test_a_kind_of_a_newer_daemon_is_no_error() -> None:
    raw = (
        b'{"session_id":"s","run_id":null,"tape_seq":1,"run_seq":0,"event":{"kind":"new","at":"2026-01-02T03:04:05Z"}}'
    )
    line = read_line(raw)
    assert (line.kind, line.event) == ("new", None)


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"event":{}}', b"\xff"])
def test_what_is_no_entry_is_told(raw: bytes) -> None:
    with pytest.raises(AnswerUnreadable):
        read_line(raw)
