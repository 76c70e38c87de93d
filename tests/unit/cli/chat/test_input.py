"""What may be sent."""

import io
import sys

import pytest

from palyra.cli.chat.input import InputNotUtf8, check, read_stdin
from palyra.core.message import MAX_MESSAGE_BYTES, MessageEmpty, MessageTooLarge, TextInvalid


def stdin(data: bytes, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    return read_stdin()


def test_all_of_stdin_is_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stdin("Grüße\nund mehr\n".encode(), monkeypatch) == "Grüße\nund mehr"


def test_a_byte_order_mark_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stdin(b"\xef\xbb\xbfHello", monkeypatch) == "Hello"


def test_what_is_no_text_is_refused_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputNotUtf8, match="byte 0xff at position 3"):
        stdin(b"abc\xff", monkeypatch)


@pytest.mark.parametrize("data", [b"", b"\n", b"  \t\n"])
def test_nothing_is_refused(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MessageEmpty):
        stdin(data, monkeypatch)


@pytest.mark.parametrize("data", [b"x" * (MAX_MESSAGE_BYTES + 1), "ü".encode() * MAX_MESSAGE_BYTES, b"\xff" * 999_999])
def test_too_much_is_refused_without_reading_all_of_it(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((MessageTooLarge, InputNotUtf8)):
        stdin(data, monkeypatch)


def test_the_longest_message_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(stdin(b"x" * MAX_MESSAGE_BYTES, monkeypatch)) == MAX_MESSAGE_BYTES


@pytest.mark.parametrize("text", ["a\0b", "half \udc80"])
def test_unclean_text_is_refused(text: str) -> None:
    with pytest.raises(TextInvalid):
        check(text)
