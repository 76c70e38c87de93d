"""What the head of a model file says about the model, read before native code sees the file.

A GGUF file begins with a table of facts, among them the vocabulary; then comes a list of the weights, then the weights
themselves. Whatever a length in it claims, nothing is read beyond the file, and nothing large is held. Everything here
blocks.
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
MOST_FACTS = 10_000
MOST_WEIGHTS = 100_000
MOST_PARTS = 1000
LONGEST_TEXT = 1024 * 1024
"""A chat template has some thousand characters; what is longer is no fact that is of use here."""

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


class NotAModel(Exception):
    """The file can not be a model; says why, as the end of a sentence that begins with the file."""


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of a model before it is loaded."""

    size: int
    """Bytes of the file, and of the further files if the model is in parts."""
    trained_tokens: int = 0
    """The window that the model was trained for; 0 if it does not say."""
    token_bytes: int = 0
    """What each token of a conversation takes in memory; 0 if it can not be told."""
    chat_template: str = ""
    """How a conversation is put before the model; empty if it was not made for conversations."""


def read_head(path: Path) -> Head:
    """Read the head of a model file, or raise `NotAModel`."""
    try:
        # Without waiting: to open a pipe would last until somebody writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise NotAModel(f"can not be read: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotAModel("is no file")
        if os.pread(descriptor, len(MAGIC), 0) != MAGIC:
            raise NotAModel("is not in the GGUF format")
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
            facts = _facts(content)
    except OSError as error:
        raise NotAModel(f"can not be read: {error.strerror}") from error
    except (struct.error, UnicodeDecodeError, OverflowError, ValueError) as error:
        raise NotAModel("is damaged, or was not fetched to its end") from error
    finally:
        os.close(descriptor)
    return Head(
        size=found.st_size + _further_parts(path),
        trained_tokens=_number(facts, "context_length"),
        token_bytes=_token_bytes(facts),
        chat_template=_text(facts.get("tokenizer.chat_template")),
    )


def _facts(content: mmap.mmap) -> dict[str, Any]:
    version, weights, facts = struct.unpack_from("<IQQ", content, len(MAGIC))
    if version not in VERSIONS:
        raise NotAModel(f"is in version {version} of the GGUF format, and {' or '.join(map(str, VERSIONS))} is needed")
    if facts > MOST_FACTS or weights > MOST_WEIGHTS:
        raise NotAModel("is damaged: its table of contents is too long")
    found: dict[str, Any] = {}
    at = len(MAGIC) + 20
    for _ in range(facts):
        name, at = _string(content, at)
        (kind,) = _U32.unpack_from(content, at)
        found[name or ""], at = _value(content, at + 4, kind)
    furthest = 0
    for _ in range(weights):
        _, at = _string(content, at)
        (dimensions,) = _U32.unpack_from(content, at)
        if dimensions > 8:
            raise ValueError("no weight has so many dimensions")
        at += 4 + 8 * dimensions + 4
        (offset,) = _U64.unpack_from(content, at)
        furthest = max(furthest, offset)
        at += 8
    if at + furthest >= len(content):
        raise ValueError("weights beyond the end of the file")
    return found


def _value(content: mmap.mmap, at: int, kind: int) -> tuple[Any, int]:
    """Return a value and where the next thing begins. A list is stepped over: None."""
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
            raise ValueError("a text beyond the end of the file")
    return None, at


def _string(content: mmap.mmap, at: int) -> tuple[str | None, int]:
    """Return a text and where the next thing begins; None instead of one that is too long."""
    (length,) = _U64.unpack_from(content, at)
    begin = at + 8
    end = _within(content, begin + length)
    return content[begin:end].decode() if length <= LONGEST_TEXT else None, end


def _number_kind(kind: int) -> struct.Struct:
    if kind not in _NUMBERS:
        raise ValueError("no such kind of value")
    return _NUMBERS[kind]


def _within(content: mmap.mmap, at: int) -> int:
    if at > len(content):
        raise ValueError("something beyond the end of the file")
    return at


def _further_parts(path: Path) -> int:
    """Return the bytes of the other files of a model in parts, as far as they are there."""
    found = _PART.fullmatch(path.name)
    if found is None or not 1 < int(found[3]) <= MOST_PARTS:
        return 0
    names = (f"{found[1]}-{number:05}-of-{found[3]}.gguf" for number in range(1, int(found[3]) + 1))
    others = (path.with_name(name) for name in names if name != path.name)
    return sum(other.stat().st_size for other in others if other.is_file())


def _token_bytes(facts: dict[str, Any]) -> int:
    """Return what a token takes: a key and a value of 16-bit numbers, for each layer and head that keeps them."""
    layers, heads = _number(facts, "block_count"), _number(facts, "attention.head_count")
    if not layers or not heads:
        return 0
    keeping = _number(facts, "attention.head_count_kv") or heads
    width = math.ceil(_number(facts, "embedding_length") / heads)
    key = _number(facts, "attention.key_length") or width
    value = _number(facts, "attention.value_length") or width
    return layers * keeping * (key + value) * 2


def _number(facts: dict[str, Any], name: str) -> int:
    """Return a number that is kept under the name of the model's kind; 0 if there is none that could be true."""
    value = facts.get(f"{_text(facts.get('general.architecture'))}.{name}")
    return value if isinstance(value, int) and 0 < value <= 1 << 31 else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
