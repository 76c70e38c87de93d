"""Secrets taken out of what is written for people: by their shape, and by the exact name of the field they stand in.

Names must match as a whole: `prompt_tokens` is a figure, `token` is not.
"""

import re
from collections.abc import Mapping

HIDDEN = "[redacted]"

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

_SHAPES = (
    re.compile(r"palyra_[A-Za-z0-9_-]{20,}"),
    re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\b(?:ghp|gho|ghs|ghu|github_pat)_[A-Za-z0-9_]{20,}"),
    re.compile(r"\bxox[abposr]-[A-Za-z0-9-]{10,}"),
    re.compile(r"\bAKIA[0-9A-Z]{16}\b"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    # The password of an address: scheme://user:password@host
    re.compile(r"(?<=://)[^\s:/@]+:[^\s@/]+(?=@)"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
)


def redact(text: str) -> str:
    """Return the text without what looks like a secret."""
    for shape in _SHAPES:
        text = shape.sub(HIDDEN, text)
    return text


def redact_fields(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields without secrets: those of a telling name are hidden whole, texts are searched."""
    return {
        name: HIDDEN if _is_telling(name) else redact(value) if isinstance(value, str) else value
        for name, value in fields.items()
    }


def _is_telling(name: str) -> bool:
    return name.lower().replace("-", "_") in NAMES
