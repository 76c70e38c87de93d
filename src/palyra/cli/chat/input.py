"""Input from a person or a pipe, as a message that may be sent."""

import sys

from palyra.core.errors import Invalid
from palyra.core.message import MAX_MESSAGE_BYTES, MessageEmpty, MessageTooLarge, clean_text


class InputNotUtf8(Invalid):
    """The input is not valid UTF-8. Nothing was sent."""


def read_stdin() -> str:
    """Return all of stdin as one message."""
    # A little more than the maximum is enough to know that it is too long.
    data = sys.stdin.buffer.read(MAX_MESSAGE_BYTES + 8) if sys.stdin is not None else b""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(data) <= MAX_MESSAGE_BYTES:
            raise InputNotUtf8(
                f"The input is not valid UTF-8 (byte {data[error.start]:#04x} at position {error.start})."
                " Nothing was sent. Convert it first, for example with iconv."
            ) from None
        raise MessageTooLarge from None
    return check(text.removesuffix("\n"))


def check(text: str) -> str:
    """Return the text if it may be sent; the daemon need not be started for one that may not."""
    if not text.strip():
        raise MessageEmpty("The message is empty. Nothing was sent.")
    if len(clean_text(text, what="message").encode()) > MAX_MESSAGE_BYTES:
        raise MessageTooLarge
    return text
