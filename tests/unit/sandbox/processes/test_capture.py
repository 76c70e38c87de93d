"""However an output comes in, its head and tail are kept, and what lies between is counted."""

from hypothesis import given
from hypothesis import strategies as st

from palyra.sandbox.processes.capture import OutputCapture


def captured(pieces: list[bytes], *, head: int, tail: int) -> tuple[bytes, bytes, int]:
    capture = OutputCapture(head_bytes=head, tail_bytes=tail)
    for piece in pieces:
        capture.add(piece)
    output = capture.output()
    return output.head, output.tail, output.left_out


@given(st.lists(st.binary(max_size=40)), st.integers(0, 50), st.integers(0, 50))
def test_the_pieces_make_no_difference(pieces: list[bytes], head: int, tail: int) -> None:
    whole = b"".join(pieces)
    kept_head, kept_tail, left_out = captured(pieces, head=head, tail=tail)
    rest = whole[head:]
    assert kept_head == whole[:head]
    assert kept_tail == (rest[len(rest) - tail :] if len(rest) > tail else rest)
    assert len(kept_head) + left_out + len(kept_tail) == len(whole)


def test_what_is_left_out_is_said() -> None:
    capture = OutputCapture(head_bytes=3, tail_bytes=2)
    capture.add(b"abcdefgh")
    assert capture.output().text == "abc\n[… 3 bytes left out …]\ngh"


def test_a_character_cut_in_two_by_the_pieces_is_whole_again() -> None:
    capture = OutputCapture(head_bytes=1, tail_bytes=10)
    capture.add("ä".encode()[:1])
    capture.add("ä".encode()[1:])
    assert capture.output().text == "ä"
