"""Whatever is sent and however it is cut: the same events come out, and no two tools have one name."""

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from palyra.providers.dialects.tool_names import ToolNames
from palyra.providers.transport.sse import Event, SseParser

LINES = st.sampled_from(
    [b"", b"data: a", b"data:b", b"data", b"event: e", b": c", b"id: 1", b"nonsense", b"data: \xff\xfe", b"data: \xef"]
)
BREAKS = st.sampled_from([b"\n", b"\r", b"\r\n"])


def read(pieces: list[bytes]) -> list[Event]:
    events = SseParser()
    found = [event for piece in pieces for event in events.feed(piece)]
    return [*found, *events.end()]


@given(st.lists(st.tuples(LINES, BREAKS), max_size=30), st.booleans(), st.data())
def test_a_stream_means_the_same_however_it_is_cut(
    lines: list[tuple[bytes, bytes]], bom: bool, data: st.DataObject
) -> None:
    stream = (b"\xef\xbb\xbf" if bom else b"") + b"".join(line + end for line, end in lines)
    places = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    bounds = [0, *places, len(stream)]

    cut = read([stream[start:end] for start, end in pairwise(bounds)])

    assert cut == read([stream]) == plainly(lines)


def plainly(lines: list[tuple[bytes, bytes]]) -> list[Event]:
    """Read the lines one after the other, as the standard says it, but for events without data: those are none."""
    # A CR and an LF that meet are one break, also where one line ended with the first and an empty one is the second.
    text = b"".join(line + end for line, end in lines).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    found: list[Event] = []
    name = ""
    data: list[bytes] = []
    for line in [*text.split(b"\n"), b""]:
        field, _, value = line.partition(b":")
        if not line:
            found += [(name, b"\n".join(data))] if any(data) else []
            name, data = "", []
        elif field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ").decode(errors="replace")
    return found


TOOLS = st.one_of(
    st.text(max_size=80),
    st.lists(st.sampled_from(["a", "b", ".", "_", "/", "-", "1"]), max_size=5).map("".join),
    st.sampled_from(["files.read", "files_read", "x" * 64, "x" * 65, "x" * 200]),
)


@given(st.lists(TOOLS, max_size=12), st.lists(TOOLS, max_size=6))
def test_names_fit_and_come_back(offered: list[str], spoken_of: list[str]) -> None:
    names, tools = ToolNames(offered, spoken_of), {*offered, *spoken_of}

    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", names.out(tool)) for tool in tools)
    assert all(names.back(names.out(tool)) == tool for tool in tools)
    assert all(names.out(tool) == ToolNames(offered).out(tool) for tool in offered)
