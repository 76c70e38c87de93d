"""Finds secrets in a text: by the shape of a token, or by the name of the field that has the value.

Every match has exact bounds: what is around a secret stays readable. A text is first searched for fixed words, so one
without secrets costs a few substring searches; what follows a word is matched once, from there, without backtracking.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from palyra.core.text.private_keys import private_keys

MIN_VALUE_CHARS = 8
MAX_VALUE_CHARS = 512
MAX_TRIES = 8
"""How many names in one run of letters are checked for a value that ends with the run."""

_ID = r"[A-Za-z0-9_-]"


@dataclass(frozen=True, slots=True)
class SecretSpan:
    """The bounds of one secret in a text."""

    start: int
    end: int
    is_sure: bool
    """Whether it is almost certainly a secret. Something with only the shape may be a word, an example or a
    placeholder."""
    is_token: bool = True
    """Whether it has the shape of a token by itself, rather than a secret's name before it."""


@dataclass(frozen=True, slots=True)
class _Value:
    """The value after a field name, whether it is a secret or not."""

    start: int
    end: int
    run_end: int
    """The end of the letters that follow one another without a space or a quote."""
    is_bare: bool
    """Whether it has no quotes."""


# Each begins with the word that is searched for, and is certain unless the second value requires a closer check.
_TOKENS: tuple[tuple[str, re.Pattern[str], bool], ...] = tuple(
    (word, re.compile(re.escape(word) + rest), sure)
    for word, rest, sure in (
        ("palyra_", rf"{_ID}{{20,}}", False),
        ("sk-", rf"{_ID}{{16,}}", False),
        ("pk-", rf"{_ID}{{16,}}", False),
        ("rk-", rf"{_ID}{{16,}}", False),
        ("sk_live_", r"[A-Za-z0-9]{16,}", True),
        ("rk_live_", r"[A-Za-z0-9]{16,}", True),
        ("sk_test_", r"[A-Za-z0-9]{16,}", True),
        ("rk_test_", r"[A-Za-z0-9]{16,}", True),
        ("whsec_", r"[A-Za-z0-9+/=]{24,}", True),
        ("ghp_", r"[A-Za-z0-9]{20,}", True),
        ("gho_", r"[A-Za-z0-9]{20,}", True),
        ("ghu_", r"[A-Za-z0-9]{20,}", True),
        ("ghs_", r"[A-Za-z0-9]{20,}", True),
        ("ghr_", r"[A-Za-z0-9]{20,}", True),
        ("github_pat_", r"[A-Za-z0-9_]{20,}", True),
        ("glpat-", rf"{_ID}{{20,}}", True),
        ("glsa_", r"[A-Za-z0-9_]{20,}", True),
        ("AKIA", r"[0-9A-Z]{16}(?![0-9A-Za-z])", True),
        ("ASIA", r"[0-9A-Z]{16}(?![0-9A-Za-z])", True),
        ("AIza", rf"{_ID}{{35}}", True),
        ("ya29.", rf"{_ID}{{20,}}", True),
        ("GOCSPX-", rf"{_ID}{{20,}}", True),
        ("npm_", r"[A-Za-z0-9]{36}", True),
        ("pypi-AgE", rf"{_ID}{{16,}}", True),
        ("hf_", r"[A-Za-z0-9]{30,}", False),
        ("gsk_", r"[A-Za-z0-9]{40,}", True),
        ("xai-", r"[A-Za-z0-9]{40,}", True),
        ("r8_", r"[A-Za-z0-9]{30,}", True),
        ("SG.", rf"{_ID}{{16,80}}\.{_ID}{{16,80}}", True),
        ("dop_v1_", r"[a-f0-9]{64}", True),
        ("shpat_", r"[a-fA-F0-9]{32}", True),
        ("hvs.", rf"{_ID}{{24,}}", True),
        ("ATATT3x", r"[A-Za-z0-9_=-]{20,}", True),
        ("lin_api_", r"[A-Za-z0-9]{32,}", True),
        ("figd_", rf"{_ID}{{20,}}", True),
        ("tskey-", rf"{_ID}{{20,}}", True),
        ("AGE-SECRET-KEY-1", r"[0-9A-Z]{58}", True),
        ("hooks.slack.com/services/", r"T[A-Z0-9]{6,}/B[A-Z0-9]{6,}/[A-Za-z0-9]{16,}", True),
        ("eyJ", rf"{_ID}{{10,8000}}\.{_ID}{{10,16000}}\.{_ID}{{10,}}", True),
        ("xapp-", r"[A-Za-z0-9-]{20,}", True),
        *((f"xox{kind}-", r"[A-Za-z0-9-]{10,}", True) for kind in "abeoprs"),
    )
)
_PREFIXES = tuple(word.split("/")[0] for word, _, _ in _TOKENS)
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{14,}")
"""Anything that could be a token. One that follows other letters of this kind is skipped."""
_BEARER = re.compile(r"[A-Za-z0-9._~+/-]{8,}={0,2}")
_URL = re.compile(r"://[^\s:/@\"'<>\\]{0,100}:([^\s/@\"'<>\\]{3,200})@[A-Za-z0-9\[]")
_BASE64_RUN = re.compile(r"[A-Za-z0-9+/]{32}")
_BOT = re.compile(r":AA[A-Za-z0-9_-]{32,35}(?![A-Za-z0-9_-])")

_NAMES = ("pass", "pwd", "secret", "token", "key")
"""Searched in lower case. A field's name ends in one of these, or in one and what `_REST` allows."""
_KEYS = tuple(
    f"{what}{joint}"
    for what in ("api", "access", "account", "private", "signing", "encryption", "auth", "shared")
    for joint in ("", "_", "-")
)
"""The words before "key" that make it a secret."""
_REST = re.compile(
    r"(?:word|wd|phrase)?(?:[_-]?(?:access[_-]?key|key(?:_base)?|value|[0-9]{1,3}|prod|production|staging|dev))?"
    r"(?P<mark>\\?[\"']?[ \t]{0,8}(?::=|=>|==?|:)[ \t]{0,8}| (?:is|was):? )",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"([\"'`])([^\"'`\r\n\\]{8,512})(?:\1)")
_ESCAPED = re.compile(r"\\\"([^\"\\\r\n]{8,512})\\\"")
_BARE = re.compile(r"[^\s\"'`\\]{8,}")
_NEXT_FIELD = re.compile(r"[;&,](?=\w+=)")

_PLACEHOLDER = re.compile(
    r"example|change.?me|placeholder|dummy|your|x{4}|\*{3}|\.{3}|…|<[^>]*>|redacted|hidden|sealed:|not.?a.?secret"
    r"|insert|replace|todo|fixme|sample|abcdefgh|12345678|deadbeef|0{8}|secret.?key|correct.?horse|foobar|[{(]"
)
_NOT_A_LITERAL = re.compile(
    r"[A-Za-z_][\w]*(?:\.[A-Za-z_]\w*)+[,;]?|[$%&*@!]\w+|[$%&@#]?[{(<\[].*|.*[({\[<].*"
    r"|(?:sha\d+|md5|h1|npm|git\S*|file|link|workspace|env|vault|keyring|https?|urn|arn|data|ssh)[:+-].*"
    r"|[~^<>=v]{0,2}\d+(?:\.\d+)+\S*|[~.]{0,2}/.*[^=]|[A-Za-z]:[\\/].*|[\d.,:+-]+"
)
_JOINTS = "-_./:"
"""The separators between the words of a name."""
_PART = re.compile(r"[^A-Za-z0-9]+")
_WORD = re.compile(r"(?:[A-Z]?[a-z]+|[A-Z]+)*\d{0,4}")
_KNOWN_EMPTY = frozenset("password pass passwd secret token user username admin root postgres guest".split())


def secret_spans(text: str) -> list[SecretSpan]:
    """Return the secrets in a text, in order, none within another."""
    lowered = text.lower() if text.isascii() else text.replace("\u0130", "i").lower()  # each letter keeps its index
    matching_secret_spans = [*_tokens(text), *_structured(text), *_bearers(text, lowered), *_assigned(text, lowered)]
    if len(matching_secret_spans) < 2:
        return matching_secret_spans
    # A token in a field with a secret's name is found twice: the token's own bounds are better.
    matching_secret_spans.sort(key=lambda span: (not span.is_token, span.start, -span.end))
    stored_secret_spans: list[SecretSpan] = []
    data = bytearray(len(text))
    for span in matching_secret_spans:
        if not data.find(1, span.start, span.end) >= 0:
            data[span.start : span.end] = b"\1" * (span.end - span.start)
            stored_secret_spans.append(span)
    return sorted(stored_secret_spans, key=lambda span: span.start)


def _tokens(text: str) -> Iterator[SecretSpan]:
    for run in _RUN.finditer(text):
        if not run[0].startswith(_PREFIXES):
            continue
        for word, pattern, sure in _TOKENS:
            if run[0].startswith(word) and (match := pattern.match(text, run.start())):
                is_sure = not _is_placeholder(match[0]) and (sure or _is_random(match[0][len(word) :]))
                yield SecretSpan(match.start(), match.end(), is_sure)
                break


def _structured(text: str) -> Iterator[SecretSpan]:
    yield from _urls(text)
    yield from _key_blocks(text)
    index = text.find(":AA")
    while index >= 0:
        start = index
        while start > 0 and index - start < 11 and text[start - 1].isdigit():
            start -= 1
        if 8 <= index - start <= 10 and (match := _BOT.match(text, index)):
            yield SecretSpan(start, match.end(), is_sure=True)
        index = text.find(":AA", index + 3)


def _urls(text: str) -> Iterator[SecretSpan]:
    index = text.find("://")
    while index >= 0:
        if match := _URL.match(text, index):
            value = match[1]
            sure = value.lower() not in _KNOWN_EMPTY and not _is_placeholder(value) and value[0] not in "$%"
            yield SecretSpan(match.start(1), match.end(1), is_sure=sure)
        index = text.find("://", index + 3)


def _bearers(text: str, lowered: str) -> Iterator[SecretSpan]:
    for word in ("bearer ", "basic "):
        index = lowered.find(word)
        while index >= 0:
            start = index + len(word)
            match = _BEARER.match(text, start)
            # "basic" is a common word: only in a header is it followed by a value.
            if match and (word == "bearer " or lowered.endswith(("authorization: ", 'authorization": "'), 0, index)):
                value = match[0]
                sure = len(value) >= 12 and not _is_placeholder(value) and _is_random(value)
                yield SecretSpan(start, match.end(), is_sure=sure)
            index = lowered.find(word, max(start, match.end() if match else 0))


def _key_blocks(text: str) -> Iterator[SecretSpan]:
    for start, end in private_keys(text):
        yield SecretSpan(start, end, is_sure=_BASE64_RUN.search(text, start, end) is not None)


def _assigned(text: str, lowered: str) -> Iterator[SecretSpan]:
    for name in _NAMES:
        index, run_end, tries = lowered.find(name), 0, 0
        while index >= 0:
            end = index + len(name)
            answer = name != "key" or lowered.endswith(_KEYS, max(0, index - 12), index)
            if answer and (rest := _REST.match(text, end)) and (value := _value(text, rest)):
                tries, run_end = tries + 1 if value.run_end == run_end else 0, value.run_end
                if _is_value(text[value.start : value.end], value, is_spoken=_is_spoken(rest["mark"])):
                    yield SecretSpan(value.start, value.end, is_sure=True, is_token=False)
                    end = value.end
                elif tries == MAX_TRIES:
                    end = run_end
            index = lowered.find(name, end)


def _value(text: str, rest: re.Match[str]) -> _Value | None:
    """Return the value after a field name."""
    for pattern, group in ((_ESCAPED, 1), (_QUOTED, 2)):
        if match := pattern.match(text, rest.end()):
            return _Value(*match.span(group), run_end=match.end(), is_bare=False)
    if match := _BARE.match(text, rest.end()):
        value = _NEXT_FIELD.split(match[0][: MAX_VALUE_CHARS + 1], maxsplit=1)[0]
        value = value.rstrip(",;.)}]" if _is_spoken(rest["mark"]) else ",;)}]")
        return _Value(match.start(), match.start() + len(value), run_end=match.end(), is_bare=True)
    return None


def _is_spoken(mark: str) -> bool:
    return mark.strip(" :") in ("is", "was")


def _is_value(value: str, at: _Value, *, is_spoken: bool) -> bool:
    if not MIN_VALUE_CHARS <= len(value) <= MAX_VALUE_CHARS:
        return False
    if not _is_random(value) and not _is_varied(value):
        return False
    if _is_placeholder(value) or value.lower() in _KNOWN_EMPTY or " " in value.strip():
        return False
    if (at.is_bare or value[0] in "~^<>=/.$%{(") and _NOT_A_LITERAL.fullmatch(value):
        return False
    if re.match(r"(?:sha\d+|npm|git|file|link|workspace|https?|env|vault|keyring|arn|urn|data)[:+-]", value):
        return False
    return not is_spoken or _classes(value) >= 3


def _is_placeholder(value: str) -> bool:
    return _PLACEHOLDER.search(value.lower()) is not None or len(set(value)) < 5


def _is_random(value: str) -> bool:
    """Return whether a value looks random: it does not consist of words, and has many different letters."""
    parts = [part for part in _PART.split(value) if part]
    if all(_WORD.fullmatch(part) and not _is_mixed(part) for part in parts):
        return False
    return _bits(value) >= (2.7 if len(value) < 20 else 3.0)


def _is_varied(value: str) -> bool:
    """Return whether a value has as many kinds of characters as passwords have."""
    signs = sum(not letter.isalnum() and letter not in _JOINTS for letter in value)
    return _classes(value) >= 3 and (signs > 1 or any(map(str.isdigit, value)))


def _is_mixed(part: str) -> bool:
    """Return whether lower and upper case alternate more often than in a name of several words."""
    turns = sum(one.islower() != other.islower() for one, other in pairwise(part))
    return len(part) >= 8 and turns * 5 > len(part) * 2


def _classes(value: str) -> int:
    kinds = (str.islower, str.isupper, str.isdigit, lambda letter: not letter.isalnum() and letter not in _JOINTS)
    return sum(any(map(kind, value)) for kind in kinds)


def _bits(value: str) -> float:
    """Return the entropy of each letter of a value, in bits."""
    size = len(value)
    return -sum(count / size * math.log2(count / size) for count in Counter(value).values())
