"""Finds private keys in a text: where each begins and ends.

A key ends with its END line. If that is missing, it ends with the last line of Base64, and what follows is other text.
The lines may be part of a listing, a diff, a mail or a string literal.
"""

import re
from collections.abc import Iterator

_BEGIN = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_END = re.compile(r"-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_BREAK = re.compile(r"\n|\\[nrt]")
_LINE = re.compile(
    r"[-+>|#*;,\"'\s]{0,40}(?:\d{1,6}[:.|)\s]{1,20})?[\"']?"
    r"(?:[A-Za-z0-9+/=]*|(?:Proc-Type|DEK-Info|Comment|Version|Hash|Charset): [^\"]{0,200})"
    r"[\"',;+\\\s]{0,20}"
)
_WORDS = re.compile(r"(?:\s{0,40}[A-Za-z0-9+/=]{16,})+")
_LAST_WORD = re.compile(r"\s{1,40}[A-Za-z0-9+/=]{0,15}\s{0,40}(?=-----END )")


def private_keys(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each private key."""
    begins = list(_BEGIN.finditer(text))
    limits = [*(begin.start() for begin in begins), len(text)][1:]
    for begin, limit in zip(begins, limits, strict=False):
        yield begin.start(), _end(text, begin.end(), limit)


def _end(text: str, index: int, limit: int) -> int:
    end = index
    while index <= limit:
        match = _BREAK.search(text, index, limit)
        stop = match.start() if match is not None else limit
        last = _END.search(text, index, stop)
        if _LINE.fullmatch(text, index, last.start() if last is not None else stop):
            if last is not None:
                return last.end()
            end = stop
        else:
            return _end_of_block(text, index, stop) or end
        if match is None:
            break
        index = match.end()
    return end


def _end_of_block(text: str, index: int, stop: int) -> int:
    """Return the end of a key on one line, whose lines were joined by spaces; 0 if there is none."""
    words = _WORDS.match(text, index, stop)
    if words is None:
        return 0
    rest = _LAST_WORD.match(text, words.end(), stop)
    last = _END.match(text, rest.end() if rest is not None else words.end(), stop)
    return last.end() if last is not None else words.end()
