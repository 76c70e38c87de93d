"""What a model writes in a given form means the same however it is cut into pieces.

Hypothesis draws answers and calls, writes them as JSON in the ways in which JSON can be written, damages some, and cuts
them anywhere: within escapes, between the halves of a character, within the form itself.
"""

import json
from itertools import pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from palyra.providers.emulated_tools.reader import ConstrainedReader, OutputMalformed, TextAnswer, ToolChosen

TEXTS = st.text(alphabet=st.characters(codec="utf-8"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=3)
WRITTEN = st.one_of(
    st.builds(lambda answer: {"answer": answer}, TEXTS | OBJECTS),
    st.builds(lambda tool, arguments: {"tool": tool, "arguments": arguments}, TEXTS, OBJECTS),
)


@st.composite
def as_json(draw: st.DrawFn) -> str:
    """Write an answer or a call: with escapes or without, with spaces or without."""
    indent = draw(st.sampled_from([None, 0, 2]))
    return json.dumps(draw(WRITTEN), ensure_ascii=draw(st.booleans()), indent=indent)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """Write the same with something cut out of it or put into it."""
    text = draw(as_json())
    begin = draw(st.integers(0, len(text)))
    end = draw(st.integers(begin, min(len(text), begin + 6)))
    return text[:begin] + draw(st.sampled_from(["", "\\", '"', "\\ud83d", "\\ude00", "\\x", "\n", "}"])) + text[end:]


def read(pieces: list[str]) -> tuple[str, TextAnswer | ToolChosen | str]:
    """Return what was told while it came, and what it was in the end."""
    reading = ConstrainedReader()
    told = "".join(reading.feed(piece) for piece in pieces)
    try:
        end = reading.end()
    except OutputMalformed as error:
        return told, f"{type(error).__name__} {reading.is_text}"
    return (told + end.rest, TextAnswer("")) if isinstance(end, TextAnswer) else (told, end)


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[begin:end] for begin, end in pairwise(ends)]


PLACES = st.lists(st.integers(0, 10_000), max_size=12)


@given(text=as_json() | damaged(), places=PLACES)
@example(text='{"answer": "\\ud83d\\ude00 \\u00e9\\\\\\" end"}', places=list(range(60)))
@example(text='{"answer": "\\ud83d and no other half"}', places=[])
def test_any_cut_means_the_same(text: str, places: list[int]) -> None:
    whole = read([text])
    assert read(cut(text, places)) == whole
    assert read(list(text)) == whole


@given(written=WRITTEN, escaped=st.booleans())
def test_what_is_written_is_what_is_read(written: dict[str, Any], escaped: bool) -> None:
    told, end = read(list(json.dumps(written, ensure_ascii=escaped)))
    match written:
        case {"answer": str(answer)}:
            assert (told, end) == (answer, TextAnswer(""))
        case {"answer": answer}:
            assert (json.loads(told), end) == (answer, TextAnswer(""))
        case _:
            assert (told, end) == ("", ToolChosen(written["tool"], written["arguments"]))
