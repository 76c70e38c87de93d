"""Server-sent events, as the standard has them and as servers send them."""

import msgspec
import pytest

from palyra.providers.transport import sse
from palyra.providers.transport.sse import Event, EventTooLarge, SseParser


def read(*pieces: bytes) -> list[Event]:
    events = SseParser()
    found = [event for piece in pieces for event in events.feed(piece)]
    return [*found, *events.end()]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: one\n\ndata: two\n\n", [("", b"one"), ("", b"two")]),
        (b"event: ping\ndata: {}\n\n", [("ping", b"{}")]),
        (b"data: {}\nevent: late\n\n", [("late", b"{}")]),
        (b"data:tight\n\n", [("", b"tight")]),
        (b"data:  two spaces\n\n", [("", b" two spaces")]),
        (b"data: a\ndata: b\n\n", [("", b"a\nb")]),
        (b"data\n\n", []),
        (b"data: \n\ndata:\n\nevent: ping\ndata: \n\ndata: x\n\n", [("", b"x")]),
        (b"data:\ndata: x\n\n", [("", b"\nx")]),
        (b"data: a: b\n\n", [("", b"a: b")]),
        (b": a comment\n\n", []),
        (b": a comment\ndata: x\n\n", [("", b"x")]),
        (b"id: 7\nretry: 10\ndata: x\n\n", [("", b"x")]),
        (b"event: only a name\n\n", []),
        (b"\n\n\n\ndata: x\n\n\n\n\n", [("", b"x")]),
        (b"\xef\xbb\xbfdata: x\n\n", [("", b"x")]),
        (b"data: \xef\xbb\xbf\n\n", [("", b"\xef\xbb\xbf")]),
        (b"event: \xff\ndata: x\n\n", [("\N{REPLACEMENT CHARACTER}", b"x")]),
        (b"data: no end", [("", b"no end")]),
        (b"", []),
    ],
)
def test_a_stream_is_read_as_its_events(stream: bytes, expected: list[Event]) -> None:
    assert read(stream) == expected


@pytest.mark.parametrize("line_break", [b"\n", b"\r", b"\r\n"])
def test_lines_may_break_in_three_ways_and_anywhere(line_break: bytes) -> None:
    stream = b"\xef\xbb\xbfdata: one\ndata: more\n\n: hm\nevent: two\ndata: 2\n\n".replace(b"\n", line_break)

    for place in range(len(stream) + 1):
        assert read(stream[:place], stream[place:]) == [("", b"one\nmore"), ("two", b"2")]


def test_an_event_comes_as_soon_as_it_is_whole() -> None:
    events = SseParser()

    assert events.feed(b"data: one\n") == []
    assert events.feed(b"\ndata: tw") == [("", b"one")]
    assert events.feed(b"o\r\r") == [("", b"two")]
    assert events.feed(b"\n") == []
    assert events.feed(b"data: three\r\n\r\n") == [("", b"three")]


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    events = SseParser()
    events.feed(b"data: fine\n\n" + b"x" * 1000)

    with pytest.raises(EventTooLarge):
        events.feed(b"x")


def test_many_small_pieces_of_a_large_event_take_no_longer_than_they_must() -> None:
    events = SseParser()
    for _ in range(80_000):
        assert events.feed(b"data: " if not events._rest else b"x" * 100) == []

    [(_, data)] = events.feed(b"\n\n")

    assert len(data) == 79_999 * 100


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([rb"\ud83d", rb"\ude00!"], "😀!"),
        ([rb"a\uD83D", rb"\uDE00"], "a😀"),
        ([rb"a\ud83d", rb"", rb"plain", rb"\ude00"], "aplain😀"),
        ([rb"\ud83d\ude00", rb"\ud83d\ude00\ud83d", rb"\ude00"], "😀😀😀"),
        ([rb"\ud83dx", rb"y"], "\ufffdxy"),
        ([rb"\ude00", rb"y"], "\ufffdy"),
        ([rb"x\ud83d\ud83d", rb"\ude00"], "x\ufffd😀"),
        ([rb"x\ud83d"], "x"),
        ([rb"\\ud83d", rb"\\ude00"], r"\ud83d\ude00"),
        ([rb"\"\ud83d", rb"\ude00\""], '"😀"'),
        ([rb"\ud7ff", rb"\udbff", rb"\udfff"], "\ud7ff\U0010ffff"),
    ],
)
def test_letters_that_were_cut_in_two_are_whole_again(texts: list[bytes], expected: str) -> None:
    stream = b"".join(b'data: {"text": "' + text + b'"}\n\n' for text in texts)

    said = [msgspec.json.decode(data)["text"] for _, data in read(stream)]

    assert "".join(said) == expected
