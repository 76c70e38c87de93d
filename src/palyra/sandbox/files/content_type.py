"""Detects what kind of content a file has, by its first bytes."""

import codecs

SNIFFED_BYTES = 8192
MAX_BAD_CHARS_SHARE = 0.1
"""The share of undecodable characters above which a file without NUL counts as binary."""

_KINDS = (
    (b"\x89PNG\r\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive or office document"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x7fELF", "an ELF program"),
    (b"SQLite format 3\0", "an SQLite database"),
    (codecs.BOM_UTF16_LE, "UTF-16 text"),
    (codecs.BOM_UTF16_BE, "UTF-16 text"),
)


def binary_kind(head: bytes) -> str | None:
    """Return what kind of binary file begins like this, or None if it is text that can be shown."""
    for magic, kind in _KINDS:
        if head.startswith(magic):
            return kind
    if b"\0" in head:
        return "a binary file"
    # The end may cut a character in two, so an incomplete last one does not count.
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(head)
    bad = text.count("�")
    return "a binary file" if bad > max(1, len(text) * MAX_BAD_CHARS_SHARE) else None
