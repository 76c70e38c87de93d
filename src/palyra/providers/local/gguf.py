"""Reads the header of a model file, before native code reads the file.

A GGUF file begins with a table of metadata, including the vocabulary; then comes a list of the weights, then the
weights themselves. Whatever a length in it claims, nothing is read beyond the end of the file, and nothing large is
kept in memory. Everything here blocks.
"""

import math
import mmap
import os
import re
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_FACTS = 10_000
MAX_WEIGHTS = 100_000
MAX_PARTS = 1000
MAX_TEXT_BYTES = 1024 * 1024
"""A chat template has some thousand characters; longer values are not needed here."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_NUMBERS = {
    number: struct.Struct(f"<{code}")
    for number, code in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
_TEXT, _LIST = 8, 9
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


class GgufInvalid(Exception):
    """The file cannot be a model; says why, as the end of a sentence that begins with the file."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What is known about a model before it is loaded."""

    size: int
    """The size of the file in bytes, and of the further files if the model is split."""
    trained_tokens: int = 0
    """The window that the model was trained for; 0 if unknown."""
    token_bytes: int = 0
    """The memory for each token of a conversation; 0 if unknown."""
    chat_template: str = ""
    """The chat template; empty if the model was not made for conversations."""


def read_header(path: Path) -> GgufHeader:
    """Read the header of a model file, or raise `GgufInvalid`."""
    try:
        # Non-blocking: opening a pipe would wait until another process writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise GgufInvalid(f"cannot be read: {error.strerror}") from error
    try:
        matching_stat = os.fstat(descriptor)
        if not stat.S_ISREG(matching_stat.st_mode):
            raise GgufInvalid("is not a file")
        if os.pread(descriptor, len(MAGIC), 0) != MAGIC:
            raise GgufInvalid("is not a GGUF file")
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
            facts = _facts(content)
    except OSError as error:
        raise GgufInvalid(f"cannot be read: {error.strerror}") from error
    except (struct.error, UnicodeDecodeError, OverflowError, ValueError) as error:
        raise GgufInvalid("is damaged or incomplete") from error
    finally:
        os.close(descriptor)
    return GgufHeader(
        size=matching_stat.st_size + _further_parts(path),
        trained_tokens=_number(facts, "context_length"),
        token_bytes=_token_bytes(facts),
        chat_template=_text(facts.get("tokenizer.chat_template")),
    )


def _facts(content: mmap.mmap) -> dict[str, Any]:
    version, weights, facts = struct.unpack_from("<IQQ", content, len(MAGIC))
    if version not in VERSIONS:
        raise GgufInvalid(
            f"has version {version} of the GGUF format, but {' or '.join(map(str, VERSIONS))} is required"
        )
    if facts > MAX_FACTS or weights > MAX_WEIGHTS:
        raise GgufInvalid("is damaged: its header is too long")
    document: dict[str, Any] = {}
    at = len(MAGIC) + 20
    for _ in range(facts):
        name, at = _string(content, at)
        (kind,) = _U32.unpack_from(content, at)
        document[name or ""], at = _value(content, at + 4, kind)
    furthest = 0
    for _ in range(weights):
        _, at = _string(content, at)
        (dimensions,) = _U32.unpack_from(content, at)
        if dimensions > 8:
            raise ValueError("too many dimensions")
        at += 4 + 8 * dimensions + 4
        (offset,) = _U64.unpack_from(content, at)
        furthest = max(furthest, offset)
        at += 8
    if at + furthest >= len(content):
        raise ValueError("weights beyond the end of the file")
    return document


def _value(content: mmap.mmap, at: int, kind: int) -> tuple[Any, int]:
    """Return a value and the offset after it. A list is skipped: None."""
    if kind == _TEXT:
        return _string(content, at)
    if kind != _LIST:
        number = _number_kind(kind)
        return number.unpack_from(content, at)[0], at + number.size
    inner, length = struct.unpack_from("<IQ", content, at)
    at += 12
    if inner != _TEXT:
        return None, _within(content, at + length * _number_kind(inner).size)
    # The vocabulary has some 100,000 words, so this is the loop that takes time.
    unpack, end = _U64.unpack_from, len(content)
    for _ in range(length):
        at += 8 + unpack(content, at)[0]
        if at > end:
            raise ValueError("a text ends beyond the end of the file")
    return None, at


def _string(content: mmap.mmap, at: int) -> tuple[str | None, int]:
    """Return a text and the offset after it; None instead of one that is too long."""
    (length,) = _U64.unpack_from(content, at)
    begin = at + 8
    end = _within(content, begin + length)
    return content[begin:end].decode() if length <= MAX_TEXT_BYTES else None, end


def _number_kind(kind: int) -> struct.Struct:
    if kind not in _NUMBERS:
        raise ValueError("unknown type of value")
    return _NUMBERS[kind]


def _within(content: mmap.mmap, at: int) -> int:
    if at > len(content):
        raise ValueError("a value ends beyond the end of the file")
    return at


def _further_parts(path: Path) -> int:
    """Return the size of the other files of a split model, as far as they exist."""
    match = _PART.fullmatch(path.name)
    if match is None or not 1 < int(match[3]) <= MAX_PARTS:
        return 0
    names = (f"{match[1]}-{number:05}-of-{match[3]}.gguf" for number in range(1, int(match[3]) + 1))
    others = (path.with_name(name) for name in names if name != path.name)
    return sum(other.stat().st_size for other in others if other.is_file())


def _token_bytes(facts: dict[str, Any]) -> int:
    """Return the memory for a token: a key and a value of 16-bit numbers, for each layer and head that stores them."""
    layers, heads = _number(facts, "block_count"), _number(facts, "attention.head_count")
    if not layers or not heads:
        return 0
    storage = _number(facts, "attention.head_count_kv") or heads
    width = math.ceil(_number(facts, "embedding_length") / heads)
    key = _number(facts, "attention.key_length") or width
    value = _number(facts, "attention.value_length") or width
    return layers * storage * (key + value) * 2


def _number(facts: dict[str, Any], name: str) -> int:
    """Return a number stored under the name of the model's architecture; 0 if there is no plausible one."""
    value = facts.get(f"{_text(facts.get('general.architecture'))}.{name}")
    return value if isinstance(value, int) and 0 < value <= 1 << 31 else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
