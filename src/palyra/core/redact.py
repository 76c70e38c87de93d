"""Secrets taken out of what is written for people: by their shape, by the exact name of the field they stand in, and by
their value where it is known.

Names must match as a whole: `prompt_tokens` is a figure, `token` is not.
"""

import json
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

from palyra.core.shapes import spans

HIDDEN = "[redacted]"
SHORTEST_VALUE = 8
"""A shorter value would also be found where it is not meant, and its place would then tell of it."""

SHORTEST_PIECE = 20
"""From so many characters on, a part of a value of several lines is no word that others use."""

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
"""What an address names before its host. Where something is only hidden, the name goes with the password."""


def redact(text: str) -> str:
    """Return the text without what looks like a secret."""
    kept, place = list[str](), 0
    for start, end in find_secrets(text):
        if start >= place:
            kept += [text[place:start], HIDDEN]
        place = max(place, end)
    return "".join([*kept, text[place:]])


def has_secret(text: str) -> bool:
    """Tell whether anything in the text looks like a secret."""
    return bool(spans(text)) or _LOGIN.search(text) is not None


def find_secrets(text: str) -> list[tuple[int, int]]:
    """Return where something in the text looks like a secret: from and to, in order; two may overlap."""
    return sorted([*((span.start, span.end) for span in spans(text)), *(one.span() for one in _LOGIN.finditer(text))])


def redact_fields(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields without secrets: those of a telling name are hidden whole, texts are searched."""
    return {
        name: HIDDEN if _is_telling(name) else redact(value) if isinstance(value, str) else value
        for name, value in fields.items()
    }


def redact_values(text: str, known: Mapping[str, bytes]) -> str:
    """Return the text with `[secret NAME]` in the place of each known value."""
    return hide_values(text, ((value, name) for name, value in known.items()))


def hide_values(text: str, known: Iterable[tuple[bytes, str]]) -> str:
    """Return the text without the values, each of which has a name; two may have the same."""
    # The longest first: one value may stand within another, and what is left of the other would be seen.
    for form, name in sorted(_forms(known), key=lambda pair: len(pair[0]), reverse=True):
        text = text.replace(form, f"[secret {name}]")
    return text


def replaced(text: str, instead: Mapping[str, str]) -> str:
    """Return the text with something else in the place of each value."""
    # The longest first: one value may stand within another, and what is left of the other would be seen.
    for value in sorted(instead, key=len, reverse=True):
        text = text.replace(value, instead[value])
    return text


def _forms(known: Iterable[tuple[bytes, str]]) -> Iterable[tuple[str, str]]:
    """Yield each value as it may stand in a text: as it is, within JSON, within an address."""
    for value, name in known:
        plain = value.decode("utf-8", errors="replace").strip()
        if len(plain) >= SHORTEST_VALUE:
            quoted = json.dumps(plain)[1:-1], json.dumps(plain, ensure_ascii=False)[1:-1]
            for form in {plain, *quoted, quote(plain, safe=""), quote(plain), *_pieces(plain)}:
                yield form, name


def _pieces(plain: str) -> Iterable[str]:
    """Return the parts of a value of several lines, which are often shown one by one: numbered, indented or cut."""
    if "\n" not in plain:
        return ()
    return [piece for piece in plain.split() if len(piece) >= SHORTEST_PIECE and not piece.startswith("---")]


def _is_telling(name: str) -> bool:
    return name.lower().replace("-", "_") in NAMES
