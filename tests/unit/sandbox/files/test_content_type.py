"""Binary files are told from text by their first bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.sandbox.files.content_type import binary_kind


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n", "a PNG image"),
        (b"%PDF-1.7", "a PDF document"),
        (b"PK\x03\x04rest", "a ZIP archive or office document"),
        (b"text\0text", "a binary file"),
        (bytes(range(128, 256)), "a binary file"),
        ("hallo".encode("utf-16"), "UTF-16 text"),
    ],
)
def test_binary_content_has_a_kind(head: bytes, kind: str) -> None:
    assert binary_kind(head) == kind


@pytest.mark.parametrize("head", [b"", b"plain", "übung".encode(), "übung, ein längerer Text".encode("latin-1")])
def test_text_has_none(head: bytes) -> None:
    assert binary_kind(head) is None


@given(st.text(alphabet=st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="�")), st.integers(0, 3))
def test_text_that_is_cut_anywhere_is_still_text(text: str, cut: int) -> None:
    raw = ("# " + text).encode()
    assert binary_kind(raw[: len(raw) - cut]) is None
