"""Redaction of secrets in texts for people: by their shape, by the exact name of their field, and by their value where
it is known.

Names must match completely: `prompt_tokens` is a figure, `token` is not.
"""

import json
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

from palyra.core.text.secret_patterns import secret_spans

HIDDEN = "[redacted]"
MIN_VALUE_CHARS = 8
"""A shorter value would also match by chance, and the redaction would then reveal it."""

MIN_PIECE_CHARS = 20
"""A piece of a multi-line value with at least this many characters is not a common word."""

NAMES = frozenset(
    {
        "access_token",
        "api_key",
        "apikey",
        "authorization",
        "client_secret",
        "cookie",
        "password",
        "private_key",
        "refresh_token",
        "secret",
        "set_cookie",
        "token",
    }
)

_LOGIN = re.compile(r"(?<=://)[^\s:/@]{0,256}:[^\s@/]{1,1024}(?=@)")
"""The user name and password before the host of a URL. Where text is only hidden, the name is hidden too."""


def redact(text: str) -> str:
    """Return the text without anything that looks like a secret."""
    stored, index = list[str](), 0
    for start, end in find_secrets(text):
        if start >= index:
            stored += [text[index:start], HIDDEN]
        index = max(index, end)
    return "".join([*stored, text[index:]])


def has_secret(text: str) -> bool:
    """Return whether anything in the text looks like a secret."""
    return bool(secret_spans(text)) or _LOGIN.search(text) is not None


def find_secrets(text: str) -> list[tuple[int, int]]:
    """Return the spans that look like a secret: start and end, in order; two may overlap."""
    return sorted(
        [*((span.start, span.end) for span in secret_spans(text)), *(one.span() for one in _LOGIN.finditer(text))]
    )


def redact_fields(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields without secrets: fields with a secret's name are hidden completely, texts are searched."""
    return {
        name: HIDDEN if _is_secret_name(name) else redact(value) if isinstance(value, str) else value
        for name, value in fields.items()
    }


def hide_values(text: str, cached: Iterable[tuple[bytes, str]]) -> str:
    """Return the text without the values, each of which has a name; two may have the same."""
    # The longest first: one value may be part of another, and the rest of the other would stay visible.
    for form, name in sorted(_forms(cached), key=lambda pair: len(pair[0]), reverse=True):
        text = text.replace(form, f"[secret {name}]")
    return text


def replace_values(text: str, instead: Mapping[str, str]) -> str:
    """Return the text with each value replaced."""
    # The longest first: one value may be part of another, and the rest of the other would stay visible.
    for value in sorted(instead, key=len, reverse=True):
        text = text.replace(value, instead[value])
    return text


def _forms(cached: Iterable[tuple[bytes, str]]) -> Iterable[tuple[str, str]]:
    """Yield each value in the forms it may have in a text: as it is, within JSON, within a URL."""
    for value, name in cached:
        plain = value.decode("utf-8", errors="replace").strip()
        if len(plain) >= MIN_VALUE_CHARS:
            quoted = json.dumps(plain)[1:-1], json.dumps(plain, ensure_ascii=False)[1:-1]
            for form in {plain, *quoted, quote(plain, safe=""), quote(plain), *_pieces(plain)}:
                yield form, name


def _pieces(plain: str) -> Iterable[str]:
    """Return the pieces of a multi-line value, which are often shown one by one: numbered, indented or cut."""
    if "\n" not in plain:
        return ()
    return [piece for piece in plain.split() if len(piece) >= MIN_PIECE_CHARS and not piece.startswith("---")]


def _is_secret_name(name: str) -> bool:
    return name.lower().replace("-", "_") in NAMES
