"""Text at the door: refused if it is bad, mended if it is ours to mend."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.core.message import MessageEmpty, MessageTooLarge, TextInvalid, clean_text, repair_text

any_text = st.text(st.characters(exclude_categories=()))
"""Text with everything that Python allows in one: NULs and half surrogates too."""


@pytest.mark.parametrize("text", ["", "plain", "Grüße 🙂", "lines\r\n\tand tabs", "\x1b[0m", "\ufeffmark"])
def test_clean_text_is_returned_unchanged(text: str) -> None:
    assert clean_text(text) == text
    assert repair_text(text) == text


@pytest.mark.parametrize(("text", "place"), [("\0", 0), ("ab\0", 2), ("ü\0", 1)])
def test_a_nul_is_refused_with_its_place(text: str, place: int) -> None:
    with pytest.raises(TextInvalid, match=rf"The title contains a NUL character at position {place}\."):
        clean_text(text, what="title")


@pytest.mark.parametrize(("text", "place"), [("\ud800", 0), ("ab\udfff", 2), ("\ud83d\ude00", 0)])
def test_half_of_a_surrogate_pair_is_refused_with_its_place(text: str, place: int) -> None:
    with pytest.raises(TextInvalid, match=rf"The text is not valid Unicode at position {place} .*UTF-8"):
        clean_text(text)


def test_the_cause_of_a_refusal_is_not_shown_twice() -> None:
    with pytest.raises(TextInvalid) as refused:
        clean_text("\ud800")
    assert refused.value.__suppress_context__


@given(any_text)
def test_text_is_either_clean_or_refused(text: str) -> None:
    try:
        kept = clean_text(text)
    except TextInvalid:
        assert "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text)
    else:
        assert kept == text
        assert kept.encode().decode() == text
        assert "\0" not in text


@given(any_text)
def test_mended_text_is_clean_and_as_long_as_before(text: str) -> None:
    mended = repair_text(text)
    assert clean_text(mended) == mended
    assert len(mended) == len(text)


@pytest.mark.parametrize(
    ("text", "mended"), [("a\0b", "a\ufffdb"), ("ü\0", "ü\ufffd"), ("ü\ud800.", "ü?."), ("\0\ud800", "\ufffd?")]
)
def test_what_is_bad_is_replaced_and_the_rest_kept(text: str, mended: str) -> None:
    assert repair_text(text) == mended


def test_refusals_say_what_to_do() -> None:
    assert MessageEmpty().detail == "The message is empty. Write some text."
    assert "Put long text into a file" in MessageTooLarge().detail
