"""Scans texts for signs of prompt injection and for secrets.

The results are signals and nothing more. They are recorded with a result, shown to the person who must approve, and
available to policies; the policy, the sandbox and the egress guard are what restricts an agent. A scanner can be
evaded, so nothing is allowed because it found nothing.

Every expression here is bounded, so that a malicious text of 16 KiB takes milliseconds like any other.
"""

import base64
import binascii
import re
import unicodedata
from collections.abc import Iterator
from urllib.parse import unquote_plus

from palyra.core.text.redaction import has_secret
from palyra.core.text.scanner_signals import ENCODED, HIDDEN, INSTRUCTIONS, MARKUP, SECRET, sort_signals

MAX_CHARS = 64 * 1024
"""How much of a text is scanned."""
_MAX_BLOBS = 40
_MAX_BLOB_CHARS = 4096

_SPACES = re.compile(r"[\s\u00a0]{1,200}")
_MARKS_UNSEEN = re.compile(r"[\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]")
_REVERSING = re.compile(r"[\u202a-\u202e\u2066-\u2069]")
_BREAKING_WORDS = re.compile(r"(?<=[^\W\d_])[\u00ad\u180e\u200b-\u200d\u2060-\u2064\ufeff]{1,4}(?=[^\W\d_])")
_TAGS = re.compile(r"[\U000e0020-\U000e007e]{4,2000}")
_UNSEEN_STYLE = re.compile(
    r"(?i)\b(?:display ?: ?none|visibility ?: ?hidden|font-size ?: ?0(?![.\d])|opacity ?: ?0(?![.\d])"
    r"|text-indent ?: ?-\d{3,5}|<[a-z]{1,10} hidden\b)"
)
_TYPED = {0x2018: "'", 0x2019: "'", 0x2013: "-", 0x2014: "-"}
_PERSON = r"(?:user|human|owner|operator|person|customer|victim)"
_AGENT = r"(?:ai|a\.i\.|assistant|agent|llm|language model|chatbot|bot|gpt|claude|copilot|gemini|palyra|model)"
_ORDERS = (
    r"(?:instructions?|prompts?|rules|directions|directives|guidelines|messages|commands|constraints|training|context"
    r"|system prompt|safeguards|restrictions)"
)
_DOING = (
    r"(?:run|execute|call|invoke|use|send|post|upload|e-?mail|forward|delete|remove|write|fetch|open|visit|install"
    r"|download|print|reveal|output|reply|respond|say|include|append|add|read|copy|exfiltrate|leak)"
)
_TELLING = r"(?:tell|inform|mention|alert|notify|ask|warn|show)(?:ing)?"
_SENDING = r"(?:send|post|upload|e-?mail|forward|exfiltrate|leak)"


def _up_to(count: int) -> str:
    """Return the expression for up to so many words, each after a space."""
    return rf"(?: [\w']{{1,20}}){{0,{count}}}"


_PHRASES = re.compile(
    "|".join(
        (
            rf"\b(?:ignore|disregard|forget|override|bypass|neglect|discard)\b{_up_to(5)} {_ORDERS}\b",
            rf"\b(?:ignore|disregard|forget) (?:everything|all|anything){_up_to(3)} (?:above|before|previously)\b",
            r"\byou are (?:now|no longer) (?:an? |in |the |bound |restricted|free |dan\b)",
            r"\b(?:new|updated|real|actual|hidden|secret) (?:system )?(?:instructions?|directives?) ?(?:are\b|is\b|:)",
            rf"\b(?:reveal|print|repeat|output|leak|show){_up_to(3)} system prompt\b",
            rf"\b(?:do not|don't|never|without){_up_to(2)} {_TELLING}{_up_to(4)} {_PERSON}\b",
            rf"\b{_AGENT} ?[:,!-] ?(?:please |now |you must |you should |you will |immediately ){{0,2}}{_DOING}\b",
            rf"\b(?:attention|important|notice|warning|message|instructions?) (?:to|for){_up_to(4)} {_AGENT}s?\b",
            rf"\bif you are (?:an? )?(?:[\w-]{{1,20}} ){{0,3}}{_AGENT}\b",
            rf"\b(?:as|being) an? (?:[\w-]{{1,20}} )?{_AGENT},? you (?:must|should|have to|are required)\b",
            rf"\b(?:you must|your (?:new |only |real )?(?:task|job|goal) is(?: now)? to){_up_to(3)} {_SENDING}\b",
            rf"\b(?:ignoriere|vergiss|missachte)\b{_up_to(4)} (?:anweisungen|regeln|befehle|vorgaben)\b",
            rf"\b(?:ignore[zr]?|oublie[zr]?)\b{_up_to(4)} (?:instructions|consignes|règles)\b",
            rf"\b(?:ignora|olvida|omite)\b{_up_to(4)} (?:instrucciones|reglas|órdenes)\b",
        )
    )
)
_MARKUP = re.compile(
    r"(?i)<\|(?:im_start|im_end|system|user|assistant|endoftext|start_header_id|eot_id|tool_call)\|?"
    r"|</?(?:tool_call|tool_calls|tool_use|tool_result|function_call|function_calls|function_results|invoke|system"
    r"|system_prompt|assistant|antml:[a-z_]{2,30})\b[^<>]{0,200}>"
    r"|\[/?(?:inst|system|tool_calls|available_tools)\]|<<\s?/?sys\s?>>"
    r"|\"(?:tool_calls|function_call)\" ?:|\"role\" ?: ?\"(?:system|assistant|tool)\""
    r"|(?:\n\n|(?:^|\n)#{1,4} ?)(?:system|assistant|human|user) ?:[ \n]"
)
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{24,4096}={0,2}")
_HEXADECIMAL = re.compile(r"(?<![0-9A-Fa-f])(?:[0-9A-Fa-f]{2}){20,2048}(?![0-9A-Fa-f])")
_PRINTABLE = re.compile(r"[\t\n\r\x20-\x7e\u00a0-\U0010ffff]*")


def scan_text(text: str) -> tuple[str, ...]:
    """Return the signals in a text, by name and in a fixed order."""
    text = text[:MAX_CHARS]
    matches = set(_plain(text))
    if any(INSTRUCTIONS in _plain(other) or MARKUP in _plain(other) for other in _decoded(text)):
        matches.add(ENCODED)
    if is_hidden(text):
        matches.add(HIDDEN)
    if has_secret(text):
        matches.add(SECRET)
    return sort_signals(matches)


def is_hidden(text: str) -> bool:
    """Return whether a text contains something that a person does not see."""
    if _UNSEEN_STYLE.search(text):
        return True
    if text.isascii():
        return False
    if _REVERSING.search(text) or _TAGS.search(text):
        return True
    # One may break a long word, or join two letters of a script; several form words that no search finds.
    return len(_BREAKING_WORDS.findall(text)) > 2


def carries_secret(value: object) -> bool:
    """Return whether a value, or any part of it, contains a secret, plain or encoded."""
    if isinstance(value, str):
        text = value[:MAX_CHARS]
        return has_secret(text) or any(has_secret(other) for other in _unwrapped(text))
    if isinstance(value, dict):
        return any(carries_secret(name) or carries_secret(part) for name, part in value.items())
    if isinstance(value, list | tuple):
        return any(map(carries_secret, value))
    return False


def _plain(text: str) -> Iterator[str]:
    words = _normal(text)
    if _PHRASES.search(words):
        yield INSTRUCTIONS
    if _MARKUP.search(text):
        yield MARKUP


def _normal(text: str) -> str:
    """Return a text normalised: in lower case, with one space between words, without invisible characters."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _MARKS_UNSEEN.sub("", text)).translate(_TYPED)
    return _SPACES.sub(" ", text.lower())


def _unwrapped(text: str) -> Iterator[str]:
    yield from _decoded(text)
    if "%" in text:
        yield unquote_plus(text)


def _decoded(text: str) -> Iterator[str]:
    """Yield the texts that are encoded in a text."""
    for letters in _limited(_TAGS, text):
        yield "".join(chr(ord(letter) - 0xE0000) for letter in letters)
    for blob in _limited(_HEXADECIMAL, text):
        yield from _text(bytes.fromhex(blob))
    for blob in _limited(_BASE64, text):
        plain = blob.rstrip("=").replace("-", "+").replace("_", "/")
        # A single letter at the end does not encode a byte.
        plain = plain[: len(plain) - (len(plain) % 4 == 1)]
        try:
            yield from _text(base64.b64decode(plain + "=" * (-len(plain) % 4)))
        except binascii.Error:
            continue


def _limited(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    for number, match in enumerate(pattern.finditer(text)):
        if number == _MAX_BLOBS:
            return
        yield match[0][:_MAX_BLOB_CHARS]


def _text(data: bytes) -> Iterator[str]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    if len(text) > 3 and _PRINTABLE.fullmatch(text):
        yield text
