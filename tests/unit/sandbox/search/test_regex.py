"""Patterns of others are matched in a process that is killed when it takes too long."""

import threading
import time
from contextlib import ExitStack

import pytest

from palyra.sandbox.search.regex import RegexInvalid, RegexProcess, RegexTimeout, SearchCancelled
from tests.support.stalling_clients import many_descriptors

CATASTROPHE = "(a+)+$"
BAIT = b"a" * 40 + b"!"


def a_process(pattern: str, *, ignore_case: bool = False, seconds: float = 60) -> RegexProcess:
    return RegexProcess(pattern, ignore_case=ignore_case, seconds=seconds, stop=lambda: False)


def test_matching_lines_are_numbered_from_zero() -> None:
    with a_process("b+") as process:
        assert process.lines(b"abc\nxyz\nbb", limit=9) == [0, 2]
        assert process.lines(b"nothing", limit=9) == []
        assert process.lines(b"b\nb\nb", limit=2) == [0, 1]


def test_it_works_however_many_descriptors_are_open() -> None:
    with many_descriptors(2_048), ExitStack() as stack:
        for _ in range(1_100):
            stack.enter_context(open("/dev/null", "rb"))
        with a_process("b+") as process:
            assert process.lines(b"abc", limit=9) == [0]


def test_case_counts_unless_told_otherwise() -> None:
    with a_process("ab") as process:
        assert process.lines(b"AB", limit=9) == []
    with a_process("ab", ignore_case=True) as process:
        assert process.lines(b"AB", limit=9) == [0]


def test_any_bytes_and_large_texts_are_taken() -> None:
    with a_process("needle") as process:
        text = bytes(range(256)) * 8000 + b"\nneedle"
        assert process.lines(text, limit=9) == [text.count(b"\n")]


@pytest.mark.parametrize("pattern", ["(", "*a", "[z-a]", "(?P<x>a)(?P<x>b)", "a{99999999999}", "x" * 2000])
def test_a_malformed_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(RegexInvalid, match="regular expression"):
        a_process(pattern)


def test_a_pattern_that_never_ends_is_ended() -> None:
    # Without an end it would take longer than any test may.
    with a_process(CATASTROPHE) as process:
        process._deadline = time.monotonic() + 0.3  # only now, however long it took to start
        with pytest.raises(RegexTimeout, match="simpler"):
            process.lines(BAIT, limit=9)


def test_the_rest_of_the_daemon_goes_on_meanwhile() -> None:
    """The engine of the standard library would hold the whole interpreter here."""
    beats = 0
    done = threading.Event()

    def beat() -> None:
        nonlocal beats
        while not done.wait(0.01):
            beats += 1

    beating = threading.Thread(target=beat)
    process = RegexProcess(CATASTROPHE, ignore_case=False, seconds=60, stop=lambda: beats >= 10)
    beating.start()
    with process, pytest.raises(SearchCancelled):
        process.lines(BAIT, limit=9)
    done.set()
    beating.join()


def test_a_stop_is_heeded_at_once() -> None:
    stop = threading.Event()
    process = RegexProcess(CATASTROPHE, ignore_case=False, seconds=60, stop=stop.is_set)
    # Only now: the stop must come while it searches, however long it took to start.
    threading.Timer(0.1, stop.set).start()
    with process, pytest.raises(SearchCancelled):
        process.lines(BAIT, limit=9)


def test_a_process_that_dies_is_not_waited_for() -> None:
    with a_process("a") as process:
        process._process.kill()
        process._process.wait()
        with pytest.raises(RegexTimeout):
            process.lines(b"x" * 1_000_000, limit=1)


def test_closing_leaves_no_process() -> None:
    process = a_process("a")
    process.close()
    assert process._process.poll() is not None


@pytest.mark.parametrize(
    ("pattern", "needles"),
    [
        (r"^budget.*\d$", ("budget",)),
        (r"foo|quux", ("foo", "quux")),
        (r"foobar|foobaz", ("fooba",)),
        (r"(?:ab|cd)+e?", ("ab", "cd")),
        (r"(ab|c)*def", ("def",)),
        (r"foo(?=x)\bbar(?!y)", ("foobar",)),
        (r"(?x) foo  bar # a word", ("foobar",)),
        (r"((?:(?i:Ab)))c", ("Ab",)),
        (r"(\w+) \1", ()),
        (r"foo|", ()),
        (r"foo|.", ()),
        (r"[fg]oo?", ()),
        (r"(foo)?", ()),
        (r"ab\nabc", ("abc",)),
        (r"größe", ("gr",)),
    ],
)
def test_it_is_known_what_a_match_can_not_do_without(pattern: str, needles: tuple[str, ...]) -> None:
    with a_process(pattern) as process:
        assert process.needles == needles
